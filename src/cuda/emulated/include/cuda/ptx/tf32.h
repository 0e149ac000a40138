/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tf32.h: for src/cuda/ptx/tf32.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_TF32_H
#define STROBE_CUDA_EMULATED_PTX_TF32_H

#include <string.h>

#include "cuda/ptx/mma.h"

/* What an operand of tf32 is taken for: its upper 19 bits. */
static inline double emulated_tf32(uint32_t bits) {
    float x;
    bits &= ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* The sum of an accumulator and four products, each cut off below a unit of the greatest one, 2^-25 of it, and then the sum
 * to fp32 (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). */
static inline float emulated_sum_of_five(const double part[5]) {
    double greatest = 0, sum = 0;
    for (int n = 0; n < 5; ++n) {
        if (!isfinite(part[n])) return (float)(part[0] + part[1] + part[2] + part[3] + part[4]);
        if (fabs(part[n]) > greatest) greatest = fabs(part[n]);
    }
    if (greatest == 0) return (float)part[0];
    int exponent;
    frexp(greatest, &exponent);
    for (int n = 0; n < 5; ++n) sum += ldexp(trunc(ldexp(part[n], 25 - exponent)), exponent - 25);
    return emulated_cut_off(sum);
}

static inline void emulated_multiply_tf32(void *arguments[EMULATED_LANES]) {
    double a[16][8], b[8][8];
    for (int lane = 0; lane < EMULATED_LANES; ++lane) {
        if (!arguments[lane]) emulated_fault("mma without lane %d", lane);
        const emulated_mma *m = (const emulated_mma *)arguments[lane];
        for (int n = 0; n < 4; ++n) a[lane / 4 + n % 2 * 8][lane % 4 + n / 2 * 4] = emulated_tf32(m->a[n]);
        for (int n = 0; n < 2; ++n) b[lane % 4 + n * 4][lane / 4] = emulated_tf32(m->b[n]);
    }
    for (int lane = 0; lane < EMULATED_LANES; ++lane)
        for (int x = 0; x < 4; ++x) {
            const int i = lane / 4 + x / 2 * 8, j = lane % 4 * 2 + x % 2;
            float *c = ((const emulated_mma *)arguments[lane])->c + x;
            for (int k = 0; k < 8; k += 4) {
                const double part[5] = {(double)*c, a[i][k] * b[k][j], a[i][k + 1] * b[k + 1][j], a[i][k + 2] * b[k + 2][j],
                                        a[i][k + 3] * b[k + 3][j]};
                *c = emulated_sum_of_five(part);
            }
        }
}

static inline void mma_m16n8k8_tf32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    emulated_mma mine = {c, a, {b0, b1}};
    emulated_converge(0xffffffffu, emulated_multiply_tf32, &mine, "mma");
}

#endif
