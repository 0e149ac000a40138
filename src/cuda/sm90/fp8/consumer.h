/* SPDX-License-Identifier: BSD-3-Clause
 *
 * consumer.h: what the consumers of both FP8 kernels share. Included by these alone, after their -D constants. */
#ifndef STROBE_CUDA_SM90_FP8_CONSUMER_H
#define STROBE_CUDA_SM90_FP8_CONSUMER_H

#include "cuda/ptx/wgmma_fp8.h"
#include "cuda/ptx/wgmma_int8.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/fp8/softmax.h"

/* What the tensor cores add up to: raw scores of e4m3, or of int8, which are exact. */
#if defined(INT8_SCORES)
typedef int32_t product;
#else
typedef float product;
#endif

/* Of products that the tensor cores have finished. */
INLINE void scores_of(product (&of)[SCORES], float (&s)[SCORES]) {
#pragma unroll
    for (int v = 0; v < SCORES; ++v) {
        wgmma_keep(of[v]);
        s[v] = (float)of[v];
    }
}

INLINE void first_scores(product (&s)[SCORES], uint64_t q, uint64_t k) {
#if defined(INT8_SCORES)
    wgmma_int8_ss_128_start(s, q, k);
#else
    wgmma_e4m3_ss_128_start(s, q, k);
#endif
}

INLINE void next_scores(product (&s)[SCORES], uint64_t q, uint64_t k) {
#if defined(INT8_SCORES)
    wgmma_int8_ss_128(s, q, k);
#else
    wgmma_e4m3_ss_128(s, q, k);
#endif
}

INLINE int group_index(void) { return threadIdx.x / 128 - 1; }

/* The first of the warp's sixteen rows in a tile. */
INLINE int warp_row(void) { return (threadIdx.x / 32 - 4) * 16; }

/* The warp is done with what the barrier guards. */
INLINE void release(uint64_t *empty) { arrive_together(empty); }

/* What scores of the thread's rows of a tile are multiplied with, beside K's scale; without score terms they are of base 2
 * then. */
INLINE void row_scales_of(const struct sm90_forward_params *p, struct shared *shared, uint32_t tiles, float (&scale)[2]) {
    const float *const of = &shared->row_scale[slot_of(tiles)][warp_row() + threadIdx.x % 32 / 4];
    const float factor = HAS_SCORE_TERMS ? 1 : p->exponent;
    mbarrier_wait(&shared->rows_full[slot_of(tiles)], slot_parity(tiles));
    scale[0] = of[0] * factor, scale[1] = of[8] * factor;
}

/* The end of a tile: O / l and lse. lse takes the sum of the weights as they were, O that of the rounded ones, which V has
 * been multiplied with and which the first lane of four has. Returns whether all rows of the warp were finite. */
INLINE bool finish_tile(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[OUTPUTS], struct rows *r,
                        const float (&l)[2]) {
    const float unit = 1.0f / (1 << WEIGHTS_LOG2); /* weights of 1 at the maximum again: lse then has no logarithm of that */
    float factor[2], nothing[4];                   /* as in store_tile() */
#pragma unroll
    for (int i = 0; i < 2; ++i) r->sum[i] *= unit, r->shift[i] += WEIGHTS_LOG2;
    finish_rows(p, t, warp_row(), r->shift, r->sum, factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float rounded = __shfl_sync(0xffffffffu, l[i], (int)threadIdx.x % 32 & 28);
        factor[i] *= rounded == 0 ? 0 : __fdividef(r->sum[i] * ONE, rounded);
        nothing[2 * i] = factor[i] * 0, nothing[2 * i + 1] = 0;
    }
    store_rows(p, t, o, factor, warp_row());
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) nothing[v % 4] = fmaf(o[v], 0, nothing[v % 4]);
    return are_finite(t, warp_row(), nothing);
}

#endif
