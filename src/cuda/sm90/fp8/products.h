/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.h: the products of a consumer. S = Q K^T goes to registers that are free then. P V is worked out a few columns at
 * a time, T, anew for each block of keys, and added to O in fp32: the accumulator of an FP8 product keeps about 14 bits.
 * Where there are registers for the sums of two parts, one is added while the tensor cores have the next; beyond 128 columns
 * these are of 64 and of 32 columns in turn. Behind the last column of V stands a column of ones, whose sums are l.
 *
 * Operands in shared memory are told apart by the low half of their descriptor, which is the same for a warp. ptxas cannot
 * know that, and would work out each one by vector instructions that the products wait for; of a number that comes from a
 * shuffle it knows. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FP8_PRODUCTS_H
#define STROBE_CUDA_SM90_FP8_PRODUCTS_H

#include "cuda/ptx/wgmma_fp8.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/fp8/consumer.h"

INLINE uint32_t place_of(const unsigned char *operand, uint32_t bytes) {
    return __shfl_sync(0xffffffffu, ((shared_address(operand) + bytes) & 0x3ffff) / 16, 0);
}

INLINE uint64_t operand(uint32_t place) { return wgmma_operand(0, 0) + place; }

/* Issues S = Q K^T. */
INLINE void issue_scores(product (&s)[SCORES], uint32_t q, uint32_t k) {
    wgmma_fence();
    first_scores(s, operand(q), operand(k));
#pragma unroll
    for (int step = 1; step < HEAD_DIM / 32; ++step)
        next_scores(s, operand(q + step / 4 * (Q_SLAB / 16) + step % 4 * 2),
                    operand(k + step / 4 * (KV_SLAB / 16) + step % 4 * 2));
    wgmma_commit();
}

/* T has a register for two columns, and four more where the column of ones is among them. */
#define WIDTH(columns, registers)                                                       \
    INLINE void first_step(float(&t)[registers], const uint32_t *weights, uint64_t v) { \
        wgmma_e4m3_rs_##columns##_start(t, weights, v);                                 \
    }                                                                                   \
    INLINE void next_step(float(&t)[registers], const uint32_t *weights, uint64_t v) {  \
        wgmma_e4m3_rs_##columns(t, weights, v);                                         \
    }
WIDTH(32, 16)
WIDTH(40, 20)
WIDTH(64, 32)
WIDTH(72, 36)
#undef WIDTH

/* Issues T = P V of the columns from `column` on, as many as T has room for. */
template <int COUNT>
INLINE void issue_part(float (&t)[COUNT], const uint32_t (&weights)[KEYS / 8], uint32_t vt, int column) {
    const uint32_t rows = vt + column * (ROW_BYTES / 16);
    wgmma_fence();
    first_step(t, &weights[0], operand(rows));
#pragma unroll
    for (int step = 1; step < KEYS / 32; ++step) next_step(t, &weights[4 * step], operand(rows + 2 * step));
    wgmma_commit();
}

/* O += T scale_v. */
template <int COUNT> INLINE void promote(float (&o)[OUTPUTS], float (&t)[COUNT], int column, float v_scale) {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) wgmma_keep(t[v]);
#pragma unroll
    for (int v = 0; v < COUNT / 8 * 8; ++v) o[column / 2 + v] = fmaf(t[v], v_scale, o[column / 2 + v]);
}

/* O += P V scale_v, l += the column of ones, which the first lane of four holds. The last sums are still to be promoted. */
enum { LAST_COLUMN = HEAD_DIM == 192 ? 160 : HEAD_DIM - 64, LAST_SUMS = (HEAD_DIM - LAST_COLUMN) / 2 + 4 };

INLINE void issue_products(const uint32_t (&weights)[KEYS / 8], float (&o)[OUTPUTS], float (&last)[LAST_SUMS], uint32_t vt,
                           float v_scale) {
#if HEAD_DIM == 64
    issue_part(last, weights, vt, 0);
#elif HEAD_DIM == 128
    float t[32];
    issue_part(t, weights, vt, 0);
    if (GROUPS > 2) {
        wgmma_wait(0);
        promote(o, t, 0, v_scale);
        issue_part(last, weights, vt, 64);
    } else {
        issue_part(last, weights, vt, 64);
        wgmma_wait(1);
        promote(o, t, 0, v_scale);
    }
#else
    float large[32], small[16];
    issue_part(large, weights, vt, 0);
    issue_part(small, weights, vt, 64);
    wgmma_wait(1);
    promote(o, large, 0, v_scale);
    issue_part(large, weights, vt, 96);
    wgmma_wait(1);
    promote(o, small, 64, v_scale);
#if HEAD_DIM == 192
    issue_part(last, weights, vt, 160);
    wgmma_wait(1);
    promote(o, large, 96, v_scale);
#else
    issue_part(small, weights, vt, 160);
    wgmma_wait(1);
    promote(o, large, 96, v_scale);
    issue_part(last, weights, vt, 192);
    wgmma_wait(1);
    promote(o, small, 160, v_scale);
#endif
#endif
}

#endif
