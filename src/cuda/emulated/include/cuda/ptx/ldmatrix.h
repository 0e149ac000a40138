/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ldmatrix.h: for src/cuda/ptx/ldmatrix.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_LDMATRIX_H
#define STROBE_CUDA_EMULATED_PTX_LDMATRIX_H

#include "cuda/ptx/shared_address.h"

/* Each lane's four registers, and the address of a row of eight 16-bit elements: of matrix n from lane 8 n on. */
struct emulated_matrices {
    uint32_t r[4];
    uint32_t address;
};

template <bool transposed> static inline void emulated_load_matrices(void *arguments[EMULATED_LANES]) {
    uint16_t elements[4][8][8];
    for (int n = 0; n < EMULATED_LANES; ++n) {
        if (!arguments[n]) emulated_fault("ldmatrix without lane %d", n);
        const uint32_t address = ((const emulated_matrices *)arguments[n])->address;
        if (address % 16) emulated_fault("ldmatrix at address %#x", address);
        memcpy(elements[n / 8][n % 8], emulated_shared_pointer(address), 16);
    }
    for (int n = 0; n < EMULATED_LANES; ++n)
        for (int m = 0; m < 4; ++m) {
            const int row = n / 4, column = n % 4 * 2;
            const uint16_t low = transposed ? elements[m][column][row] : elements[m][row][column];
            const uint16_t high = transposed ? elements[m][column + 1][row] : elements[m][row][column + 1];
            ((emulated_matrices *)arguments[n])->r[m] = (uint32_t)high << 16 | low;
        }
}

static inline void ldmatrix_x4(uint32_t r[4], uint32_t address) {
    emulated_matrices mine = {{0, 0, 0, 0}, address};
    emulated_converge(0xffffffffu, emulated_load_matrices<false>, &mine, "ldmatrix");
    memcpy(r, mine.r, sizeof mine.r);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], uint32_t address) {
    emulated_matrices mine = {{0, 0, 0, 0}, address};
    emulated_converge(0xffffffffu, emulated_load_matrices<true>, &mine, "ldmatrix");
    memcpy(r, mine.r, sizeof mine.r);
}

#endif
