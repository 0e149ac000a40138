/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stmatrix.h: for src/cuda/ptx/stmatrix.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_STMATRIX_H
#define STROBE_CUDA_EMULATED_PTX_STMATRIX_H

#include "cuda/ptx/ldmatrix.h"

template <bool transposed> static inline void emulated_store_matrices(void *arguments[EMULATED_LANES]) {
    uint16_t elements[4][8][8];
    for (int n = 0; n < EMULATED_LANES; ++n) {
        if (!arguments[n]) emulated_fault("stmatrix without lane %d", n);
        for (int m = 0; m < 4; ++m) {
            const uint32_t pair = ((const emulated_matrices *)arguments[n])->r[m];
            const int row = n / 4, column = n % 4 * 2;
            (transposed ? elements[m][column][row] : elements[m][row][column]) = (uint16_t)pair;
            (transposed ? elements[m][column + 1][row] : elements[m][row][column + 1]) = (uint16_t)(pair >> 16);
        }
    }
    for (int n = 0; n < EMULATED_LANES; ++n) {
        const uint32_t address = ((const emulated_matrices *)arguments[n])->address;
        if (address % 16) emulated_fault("stmatrix at address %#x", address);
        memcpy(emulated_shared_pointer(address), elements[n / 8][n % 8], 16);
    }
}

static inline void stmatrix_x4(uint32_t address, const uint32_t *r) {
    emulated_matrices mine = {{r[0], r[1], r[2], r[3]}, address};
    emulated_converge(0xffffffffu, emulated_store_matrices<false>, &mine, "stmatrix");
}
static inline void stmatrix_x4_trans(uint32_t address, const uint32_t *r) {
    emulated_matrices mine = {{r[0], r[1], r[2], r[3]}, address};
    emulated_converge(0xffffffffu, emulated_store_matrices<true>, &mine, "stmatrix");
}

#endif
