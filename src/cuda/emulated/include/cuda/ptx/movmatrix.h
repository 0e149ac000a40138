/* SPDX-License-Identifier: BSD-3-Clause
 *
 * movmatrix.h: for src/cuda/ptx/movmatrix.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_MOVMATRIX_H
#define STROBE_CUDA_EMULATED_PTX_MOVMATRIX_H

static inline void emulated_transpose(void *arguments[EMULATED_LANES]) {
    uint16_t elements[8][8];
    for (int n = 0; n < EMULATED_LANES; ++n) {
        if (!arguments[n]) emulated_fault("movmatrix without lane %d", n);
        const uint32_t pair = *(const uint32_t *)arguments[n];
        elements[n / 4][n % 4 * 2] = (uint16_t)pair, elements[n / 4][n % 4 * 2 + 1] = (uint16_t)(pair >> 16);
    }
    for (int n = 0; n < EMULATED_LANES; ++n) {
        const int row = n / 4, column = n % 4 * 2;
        *(uint32_t *)arguments[n] = (uint32_t)elements[column + 1][row] << 16 | elements[column][row];
    }
}

static inline uint32_t movmatrix_trans(uint32_t x) {
    emulated_converge(0xffffffffu, emulated_transpose, &x, "movmatrix");
    return x;
}

#endif
