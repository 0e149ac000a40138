/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_fp8.h: for src/cuda/ptx/wgmma_fp8.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_FP8_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_FP8_H

#include "cuda/ptx/wgmma.h"

enum { EMULATED_WGMMA_FP8_K = 32, EMULATED_WGMMA_FP8_BITS = 13 };

/* Hopper's tensor cores add 32 products of e4m3 and the accumulator in units of 2^-13 of the largest of them, cut off
 * (DeepSeek-V3 Technical Report, 2024, section 3.5.2). */
static inline float emulated_coarse_sum(const double *product, double before) {
    double most = fabs(before), sum;
    for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k) most = fabs(product[k]) > most ? fabs(product[k]) : most;
    sum = before;
    if (most == 0 || !isfinite(most)) {
        for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k) sum += product[k];
        return (float)sum;
    }
    int exponent;
    frexp(most, &exponent);
    const double unit = ldexp(1, exponent - 1 - EMULATED_WGMMA_FP8_BITS), inverse = 1 / unit;
    sum = trunc(before * inverse);
    for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k) sum += trunc(product[k] * inverse);
    return (float)(sum * unit);
}

static inline void emulated_run_wgmma_fp8(const emulated_wgmma (&of)[EMULATED_LANES]) {
    static thread_local double a[16][EMULATED_WGMMA_FP8_K], b[EMULATED_WGMMA_MOST_N][EMULATED_WGMMA_FP8_K];
    const emulated_wgmma *m = &of[0];
    const int first_row = (int)threadIdx.x / EMULATED_LANES % 4 * 16;
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k)
            if (m->a_registers) {
                const int lane = row % 8 * 4 + k % 16 / 4, number = row / 8 + k / 16 * 2;
                const uint32_t four = of[lane].a_registers[number];
                a[row][k] = (double)e4m3_to_float((uint8_t)(four >> 8 * (k % 4)));
            } else {
                a[row][k] = (double)e4m3_to_float(
                    *emulated_operand_byte(m->a, emulated_offset_in_row(m->a, first_row + row, k)));
            }
    for (int column = 0; column < m->n; ++column)
        for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k)
            b[column][k] = (double)e4m3_to_float(*emulated_operand_byte(m->b, emulated_offset_in_row(m->b, column, k)));
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < m->n; ++column) {
            float *d = &of[row % 8 * 4 + column % 8 / 2].d[column / 8 * 4 + row / 8 * 2 + column % 2];
            double product[EMULATED_WGMMA_FP8_K];
            for (int k = 0; k < EMULATED_WGMMA_FP8_K; ++k) product[k] = a[row][k] * b[column][k];
            *d = emulated_coarse_sum(product, m->add ? (double)*d : 0);
        }
}

static inline void emulated_wgmma_fp8_of(emulated_wgmma mine) {
    emulated_converge(0xffffffffu, emulated_issue_wgmma<emulated_run_wgmma_fp8>, &mine, "wgmma in FP8");
}

#define EMULATED_WGMMA_FP8_SS(n)                                                             \
    static inline void wgmma_e4m3_ss_##n(float(&d)[n / 2], uint64_t a, uint64_t b) {         \
        emulated_wgmma_fp8_of({d, nullptr, a, b, n, 1, false, false, false});                \
    }                                                                                        \
    static inline void wgmma_e4m3_ss_##n##_start(float(&d)[n / 2], uint64_t a, uint64_t b) { \
        emulated_wgmma_fp8_of({d, nullptr, a, b, n, 0, false, false, false});                \
    }
EMULATED_WGMMA_FP8_SS(128)

#define EMULATED_WGMMA_FP8_RS(n)                                                                    \
    static inline void wgmma_e4m3_rs_##n(float(&d)[n / 2], const uint32_t *a, uint64_t b) {         \
        emulated_wgmma_fp8_of({d, a, 0, b, n, 1, false, false, false});                             \
    }                                                                                               \
    static inline void wgmma_e4m3_rs_##n##_start(float(&d)[n / 2], const uint32_t *a, uint64_t b) { \
        emulated_wgmma_fp8_of({d, a, 0, b, n, 0, false, false, false});                             \
    }
EMULATED_WGMMA_FP8_RS(32)
EMULATED_WGMMA_FP8_RS(40)
EMULATED_WGMMA_FP8_RS(64)
EMULATED_WGMMA_FP8_RS(72)

#endif
