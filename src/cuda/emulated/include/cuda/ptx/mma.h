/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mma.h: for src/cuda/ptx/mma.h. Tensor cores add products exactly and cut the sum off, as is known of them by measurement.
 */
#ifndef STROBE_CUDA_EMULATED_PTX_MMA_H
#define STROBE_CUDA_EMULATED_PTX_MMA_H

#include "cuda/emulated/machine.h"
#include "cuda/ptx/convert.h"

/* To fp32, towards zero. */
static inline float emulated_cut_off(double x) {
    const float nearest = (float)x;
    if (!(fabs((double)nearest) > fabs(x)) || isinf(x)) return nearest;
    return nextafterf(nearest, 0);
}

struct emulated_mma {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

static inline float emulated_half(uint32_t pair, int high, bool is_bf16) {
    const uint16_t bits = (uint16_t)(high ? pair >> 16 : pair);
    return is_bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/* Fragments as the tables of PTX ISA 9.7.14.5.8 have them. */
template <bool is_bf16> static inline void emulated_multiply(void *arguments[EMULATED_LANES]) {
    double a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < EMULATED_LANES; ++lane) {
        if (!arguments[lane]) emulated_fault("mma without lane %d", lane);
        const emulated_mma *m = (const emulated_mma *)arguments[lane];
        const int row = lane / 4, column = lane % 4 * 2;
        for (int n = 0; n < 4; ++n)
            for (int high = 0; high < 2; ++high) {
                a[row + n % 2 * 8][column + n / 2 * 8 + high] = (double)emulated_half(m->a[n], high, is_bf16);
                if (n < 2) b[column + n * 8 + high][row] = (double)emulated_half(m->b[n], high, is_bf16);
            }
        for (int x = 0; x < 4; ++x) c[row + x / 2 * 8][column + x % 2] = (double)m->c[x];
    }
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 16; ++k)
            for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < EMULATED_LANES; ++lane)
        for (int x = 0; x < 4; ++x)
            ((const emulated_mma *)arguments[lane])->c[x] = emulated_cut_off(c[lane / 4 + x / 2 * 8][lane % 4 * 2 + x % 2]);
}

static inline void mma_m16n8k16_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    emulated_mma mine = {c, a, {b0, b1}};
    emulated_converge(0xffffffffu, emulated_multiply<true>, &mine, "mma");
}
static inline void mma_m16n8k16_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    emulated_mma mine = {c, a, {b0, b1}};
    emulated_converge(0xffffffffu, emulated_multiply<false>, &mine, "mma");
}

#endif
