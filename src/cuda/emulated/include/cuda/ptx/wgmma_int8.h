/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_int8.h: for src/cuda/ptx/wgmma_int8.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_INT8_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_INT8_H

#include <string.h>

#include "cuda/ptx/wgmma.h"

enum { EMULATED_WGMMA_INT8_K = 32 };

/* The accumulators are integers in the memory that emulated_wgmma names as floats. */
static inline void emulated_run_wgmma_int8(const emulated_wgmma (&of)[EMULATED_LANES]) {
    static thread_local int32_t a[16][EMULATED_WGMMA_INT8_K], b[EMULATED_WGMMA_MOST_N][EMULATED_WGMMA_INT8_K];
    const emulated_wgmma *m = &of[0];
    const int first_row = (int)threadIdx.x / EMULATED_LANES % 4 * 16;
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < EMULATED_WGMMA_INT8_K; ++k)
            a[row][k] = (int8_t)*emulated_operand_byte(m->a, emulated_offset_in_row(m->a, first_row + row, k));
    for (int column = 0; column < m->n; ++column)
        for (int k = 0; k < EMULATED_WGMMA_INT8_K; ++k)
            b[column][k] = (int8_t)*emulated_operand_byte(m->b, emulated_offset_in_row(m->b, column, k));
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < m->n; ++column) {
            float *d = &of[row % 8 * 4 + column % 8 / 2].d[column / 8 * 4 + row / 8 * 2 + column % 2];
            int32_t sum = 0;
            if (m->add) memcpy(&sum, d, sizeof sum);
            for (int k = 0; k < EMULATED_WGMMA_INT8_K; ++k) sum += a[row][k] * b[column][k];
            memcpy(d, &sum, sizeof sum);
        }
}

static inline void emulated_wgmma_int8_of(emulated_wgmma mine) {
    emulated_converge(0xffffffffu, emulated_issue_wgmma<emulated_run_wgmma_int8>, &mine, "wgmma of int8");
}

static inline void wgmma_int8_ss_128(int32_t (&d)[64], uint64_t a, uint64_t b) {
    emulated_wgmma_int8_of({(float *)(void *)d, nullptr, a, b, 128, 1, false, false, false});
}

static inline void wgmma_int8_ss_128_start(int32_t (&d)[64], uint64_t a, uint64_t b) {
    emulated_wgmma_int8_of({(float *)(void *)d, nullptr, a, b, 128, 0, false, false, false});
}

#endif
