/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sinks.h: what dsinks take from the main loop. With p_i = exp(sink - lse_i), the weight of row i's sink,
 *
 *     dsink = -sum_i p_i (D_i - dlse_i)        D_i = sum_j P_ij dP_ij = rowsum(dO * O)
 *
 * O is rounded, and so would be D; a sum of such D over rows with gradients of either sign has six to twenty times the error
 * of one that is not. dS is made from the rounded D, but P and dP are fp32, so that the sum of dS over a row's keys gives
 * back the D that is not rounded: sum_j dS_ij = D_i - delta_i (1 - p_i), with delta_i = the rounded D_i - dlse_i. Consumers
 * sum p_i dS_ij over their keys and all rows of a query head, and of a sample of the rows p_i P_ij, by which
 * strobe__sink_sums knows whether all keys were there: a caller may have a part of the keys, with O and lse of all of them.
 * So it does where a sum is NaN, as a NaN of a hidden pair makes it. A thread has two sums; a warp leaves them for its
 * sixteen keys and each query head. */
#ifndef STROBE_CUDA_SM90_BACKWARD_SINKS_H
#define STROBE_CUDA_SM90_BACKWARD_SINKS_H

#include "cuda/device/lanes.h"
#include "cuda/sm90/backward/score_terms.h"

static_assert(TILE_KEYS == 16 * SINK_PARTS, "a warp has sixteen keys");

enum { SUMS_SINKS = HAS_ALL || ((FEATURE_CLASS)&FEATURES_SINKS) != 0 };

/* Whether this call sums: class ALL is taken with and without dsinks. */
INLINE bool sums_sinks(const struct sm90_backward_params *p) { return SUMS_SINKS && (!HAS_ALL || p->sink_parts); }

/* Of a thread, over its pairs of a query head, of none if it is -1: p dS and, of the sample, p P. */
struct sink_sums {
    int head;
    float ds, weights;
};

/* Adds a part of a block. sink: p of the rows from the thread's first one on. */
template <int count>
INLINE void add_to_sinks(struct sink_sums *sums, const float *sink, const float (&ds)[count], const float (&weights)[count],
                         int part) {
#pragma unroll
    for (int c = part * (PART / 4); c < (part + 1) * (PART / 4); ++c) {
        const float2 p = *(const float2 *)(sink + 8 * c);
        sums->ds = fmaf(p.x, ds[4 * c] + ds[4 * c + 2], sums->ds);
        sums->ds = fmaf(p.y, ds[4 * c + 1] + ds[4 * c + 3], sums->ds);
        if (!IS_SINK_SAMPLE(8 * c)) continue;
        sums->weights = fmaf(p.x, fabsf(weights[4 * c]) + fabsf(weights[4 * c + 2]), sums->weights);
        sums->weights = fmaf(p.y, fabsf(weights[4 * c + 1]) + fabsf(weights[4 * c + 3]), sums->weights);
    }
}

/* Stores a warp's sums of its sixteen keys from `key` on. */
INLINE void store_sinks(const struct sm90_backward_params *p, int batch, int key, const struct sink_sums *sums) {
    const float ds = warp_sum(sums->ds), weights = warp_sum(sums->weights);
    const int64_t head = (int64_t)batch * p->heads_kv * p->group + sums->head;
    if (threadIdx.x % 32 == 0)
        ((float2 *)p->sink_parts)[head * p->key_blocks * SINK_PARTS + key / 16] = make_float2(ds, weights);
}

/* From here on sums are the query head's. */
INLINE void sum_sinks_of(const struct sm90_backward_params *p, int batch, int head, int key, struct sink_sums *sums) {
    if (sums->head == head) return;
    if (sums->head >= 0) store_sinks(p, batch, key, sums);
    sums->head = head, sums->ds = sums->weights = 0;
}

#endif
