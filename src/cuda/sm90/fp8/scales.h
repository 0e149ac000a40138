/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scales.h: the scales of e4m3 tensors: of a row of Q, and of a key. Included after the -D constants of forward.cu. */
#ifndef STROBE_CUDA_SM90_FP8_SCALES_H
#define STROBE_CUDA_SM90_FP8_SCALES_H

#include <limits.h>

#include "cuda/device/element.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"

/* Of row i of the sequence; rows past its end have that of the last. */
INLINE float scale_of_row(const struct sm90_forward_params *p, const struct tile *t, int i) {
    const struct sm90_scales *s = &p->scales;
    const int row = i < t->rows ? i : t->rows - 1;
    if (s->block_q == 0) return s->q[t->batch * s->q_stride[0] + t->head * s->q_stride[2]];
    return s->q[(p->cu_seqlens_q ? 0 : t->batch * s->q_stride[0]) + (t->first_row + row) / s->block_q * s->q_stride[1] +
                t->head * s->q_stride[2]];
}

/* Those of all rows of a tile, by a warp whose first lane has described it: consumers would wait for memory at every tile's
 * begin. */
INLINE void load_row_scales(const struct sm90_forward_params *p, const struct tile *t, float (&to)[64 * GROUPS]) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 64 * GROUPS; i += 32)
        to[i + threadIdx.x % 32] = scale_of_row(p, t, t->row + i + (int)(threadIdx.x % 32));
}

INLINE float scale_of_key(const struct sm90_forward_params *p, const struct tile *t, const float *scale,
                          const int64_t (&stride)[3], int key) {
    const int block = p->scales.block_k;
    if (block == 0) return scale[t->batch * stride[0] + t->kv_head * stride[2]];
    return scale[(p->cu_seqlens_k ? 0 : t->batch * stride[0]) + (t->first_key + key) / block * stride[1] +
                 t->kv_head * stride[2]];
}

/* The scales of K and of V in the blocks of a tile, from right to left: where those of the next block are, and how many
 * blocks more have the same. One thread steps through them, which has no time for divisions. */
struct scale_walk {
    const float *k, *v;
    int left, each; /* blocks of keys that have the scales yet; that share a scale */
};

INLINE struct scale_walk scales_of_tile(const struct sm90_forward_params *p, const struct tile *t) {
    const struct sm90_scales *s = &p->scales;
    const int last = t->end_block - 1, each = s->block_k == 0 ? INT_MAX : s->block_k / KEYS;
    struct scale_walk walk = {s->k + t->batch * s->k_stride[0] + t->kv_head * s->k_stride[2],
                              s->v + t->batch * s->v_stride[0] + t->kv_head * s->v_stride[2], last % each, each};
    if (s->block_k != 0) walk.k += last / each * s->k_stride[1], walk.v += last / each * s->v_stride[1];
    return walk;
}

/* Those of the block in hand; steps to the block before it. */
INLINE float2 next_scales(const struct sm90_forward_params *p, struct scale_walk *walk) {
    const float2 scales = make_float2(*walk->k, *walk->v);
    if (walk->left == 0 && walk->each != INT_MAX) {
        walk->k -= p->scales.k_stride[1], walk->v -= p->scales.v_stride[1];
        walk->left = walk->each;
    }
    --walk->left;
    return scales;
}

#endif
