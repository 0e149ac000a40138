/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile.h: a tile, which keys its rows see (math/mask.h, in 32 bits), and the band's mask on scores. Included by forward.cu
 * alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_TILE_H
#define STROBE_CUDA_SM90_FORWARD_TILE_H

#include "cuda/device/element.h"
#include "cuda/device/visible.h"
#include "cuda/sm90/forward/params.h"
#include "math/exp2.h"
#include "math/mask.h"

#define NO_TILE (-1)

/* With CTA_PAIRS two CTAs, a cluster, have neighbouring tiles of a head at the same time, and each copies half of every
 * block of K and V to both: the L2 cache hands it out once. PAIR: CTAs that do so. */
#if defined(CTA_PAIRS)
#define PAIR 2
#else
#define PAIR 1
#endif

struct tile {
    int number; /* or NO_TILE */
    int head, kv_head, batch;
    int row, rows, keys;        /* the tile's first row; rows and keys of the sequence */
    int first_row, first_key;   /* of the sequence in a packed tensor */
    int first_shift, end_shift; /* the band, see struct band32 */
    int first_block, end_block; /* causal skip: the loop goes over these blocks of KEYS, which some row of the tile sees */
    union {
        int start_block; /* with ALiBi alone: the loop starts at the diagonal, and goes round */
        struct {
            int16_t part, head_bits;
        } cut; /* with parts, see struct sm90_parts */
    };
    struct owner owner; /* of masks, see device/visible.h */
};

/* Whether scores come without a part that all scores of a row share, see alibi.h. */
enum { HAS_ROW_OFFSETS = FEATURE_CLASS == FEATURES_ALIBI };

/* The blocks of a tile from right to left. ALiBi's greatest scores are at the diagonal: a walk that starts there raises the
 * rows' maxima seldom. */
INLINE int start_of_walk(const struct tile *t) { return HAS_ROW_OFFSETS ? t->start_block : t->end_block - 1; }
INLINE int next_of_walk(const struct tile *t, int n) {
    return HAS_ROW_OFFSETS && n == t->first_block ? t->end_block - 1 : n - 1;
}

/* Where a tile's row stands in the sequence, and its head. */
INLINE int64_t position_of(const struct tile *t, int64_t row) { return HAS_PARTS ? row >> t->cut.head_bits : row; }
INLINE int head_of(const struct tile *t, int64_t row) {
    return HAS_PARTS ? (t->head << t->cut.head_bits) + ((int)row & ((1 << t->cut.head_bits) - 1)) : t->head;
}

/* Elements from the beginning of q, out or lse to a tile's row. */
INLINE int64_t row_at(const struct sm90_forward_params *p, const struct tile *t, const int64_t stride[3], int64_t row) {
    return (p->cu_seqlens_q ? 0 : t->batch * stride[0]) + (t->first_row + position_of(t, row)) * stride[1] +
           head_of(t, row) * stride[2];
}

/* Elements from part 0 of a row of out or lse to the tile's. */
INLINE int64_t part_at(const struct tile *t, int64_t step) { return HAS_PARTS ? t->cut.part * step : 0; }

INLINE int first_key_of(const struct tile *t, int row) { return band32_first_key(t->first_shift, (int)position_of(t, row)); }
INLINE int end_key_of(const struct tile *t, int row) {
    return band32_end_key(t->end_shift, (int)position_of(t, row), t->keys);
}

/* Scores are raw dot products or, with score features, in natural units: exp(score) = 2^(score * this). */
INLINE float exponent_factor(const struct sm90_forward_params *p) { return HAS_SCORE_TERMS ? (float)LOG2_E : p->exponent; }

/* Hides keys from the row's end on. Columns of accumulators are constants; their bound is relative to the thread's first
 * column. */
INLINE void mask_after(const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, origin = key + 2 * (lane % 4);
    const int end[2] = {end_key_of(t, row) - origin, end_key_of(t, row + 8) - origin};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        if (8 * (v / 4) + v % 2 >= end[v / 2 % 2]) s[v] = -INFINITY;
}

/* Hides keys before the row's first. */
INLINE void mask_before(const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, origin = key + 2 * (lane % 4);
    const int begin[2] = {first_key_of(t, row) - origin, first_key_of(t, row + 8) - origin};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        if (8 * (v / 4) + v % 2 < begin[v / 2 % 2]) s[v] = -INFINITY;
}

struct keys {
    int begin, end;
};

/* The keys that all sixteen rows of a warp see. */
INLINE struct keys keys_of_warp(const struct tile *t, int first) {
    const struct keys keys = {first_key_of(t, t->row + first + 15), end_key_of(t, t->row + first)};
    return keys;
}

/* Sets the scores to -inf that the band hides, in the block from key `key` on. In most blocks there are none, which two
 * comparisons tell; `shown` are the keys that all rows of the warp see. */
INLINE void mask_band(const struct tile *t, struct keys shown, float (&s)[KEYS / 2], int first, int key) {
    if (key + KEYS > shown.end) mask_after(t, s, first, key);
    if (key < shown.begin) mask_before(t, s, first, key);
}

#if defined(OUT_FP32)
#include "cuda/sm90/forward/store_fp32.h"
#endif

#endif
