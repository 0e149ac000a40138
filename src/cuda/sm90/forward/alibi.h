/* SPDX-License-Identifier: BSD-3-Clause
 *
 * alibi.h: ALiBi on the scores of a block: score - slope |i + start + keys - rows - j|. Included by forward.cu alone, after
 * its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_ALIBI_H
#define STROBE_CUDA_SM90_FORWARD_ALIBI_H

#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"

/* Row `row` stands at this key. */
INLINE int alibi_diagonal(const struct sm90_forward_params *p, const struct tile *t, int row) {
    return row + p->start + t->keys - t->rows;
}

/* With ALiBi alone: the head's slope, without the factor that all have. */
INLINE float alibi_slope(const struct sm90_forward_params *p, const struct tile *t) {
    return p->alibi ? p->alibi[t->batch * p->alibi_stride + t->head] : 1;
}

INLINE void add_slope(const struct sm90_forward_params *p, const struct tile *t, float slope, float (&s)[KEYS / 2],
                      int first, int key) {
    const int lane = threadIdx.x % 32;
    const int distance = alibi_diagonal(p, t, t->row + first + lane / 4) - key - 2 * (lane % 4);
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] -= slope * fabsf((float)(distance + 8 * (v / 2 % 2) - 8 * (v / 4) - v % 2));
}

INLINE void add_alibi(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    add_slope(p, t, p->alibi[t->batch * p->alibi_stride + t->head], s, first, key);
}

/* The same in a variant that has ALiBi alone, in units of raw dot products. On one side of the diagonal the distance of a
 * pair is that of its row less that of its column, so that one multiplication and addition is left for each score: what is
 * the row's own, `offset`, goes to its bound and shift. */
INLINE void add_alibi_of_columns(const struct sm90_forward_params *p, const struct tile *t, float slope,
                                 float (&s)[KEYS / 2], float (&offset)[2], int first, int key) {
    const int lane = threadIdx.x % 32, diagonal = alibi_diagonal(p, t, t->row + first);
    const bool left = key + KEYS - 1 <= diagonal, right = key >= diagonal + 15;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
    if (!left && !right) {
        add_slope(p, t, slope, s, first, key);
        return;
    }
    const float signed_slope = left ? slope : -slope;
    const int distance = diagonal + lane / 4 - key - 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) offset[i] = -signed_slope * (float)(distance + 8 * i);
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] = fmaf(signed_slope, (float)(8 * (v / 4) + v % 2), s[v]);
}

#endif
