/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.h: what the rows of a tile see of a block of keys. Band, block mask, boolean mask, the user's function and, where
 * that is cheap, a bias of -inf give one answer:
 *
 *     BLOCK_SKIPPED   no row sees a key: neither K nor V of the block is loaded, and nothing is computed
 *     BLOCK_PARTIAL   bits says who sees what; the vectors of rows outside of [first, end) see nothing
 *     BLOCK_FULL      every row sees every key: nothing has to be hidden
 *
 * The answer is worked out on the stack when a tile comes to a block. A mask that is broadcast over rows is read once for
 * all of them; a row of a mask is read by vectors. */
#ifndef STROBE_CPU_VISIBLE_H
#define STROBE_CPU_VISIBLE_H

#include <math.h>

#include "cpu/vector/rows.h"
#include "cpu/vector/score_function.h"

/* What the features ask of a tile's packed rows, worked out once a tile; only for the features that there are. */
struct row_features {
    int64_t bool_mask[TILE_ROWS], block_mask[TILE_ROWS], bias[TILE_ROWS]; /* where the row begins, elements from the data */
    bool bias_is_shared;                                                  /* all rows have the same bias */
    bool masks_are_shared;        /* and the same masks, of which there are some: what one row says goes for all */
    int64_t alibi_key[TILE_ROWS]; /* the key at which ALiBi's distance is 0 */
    float minus_slope[TILE_ROWS];
    struct score_memory score;       /* of the user's function; set before find_row_features() */
    uint64_t dropout_row[TILE_ROWS]; /* dropout_row(); of each LANES rows first the even ones, then the odd ones */
};

struct visible_block {
    enum coverage coverage;
    int first, end;                            /* vectors of rows that see a key */
    uint32_t bits[BLOCK_KEYS / 32][TILE_ROWS]; /* where partial: bit j % 32 of [j / 32][r]: row r sees key j of the block */
};

/* The offset of each packed row in something with these strides, of which `height` query rows share one. */
static inline void find_rows(int64_t at[TILE_ROWS], const struct tile_rows *t, const int64_t stride[3], int64_t height) {
    int64_t i = packed_row(t, 0), h = packed_head(t, 0), row = i / height, left = (row + 1) * height - i;
    for (int64_t r = 0; r < t->n; ++r) {
        at[r] = t->s.b * stride[0] + h * stride[1] + row * stride[2];
        if (++h < (t->kv + 1) * t->p->group) continue;
        h = t->kv * t->p->group;
        if (--left > 0) continue;
        ++row;
        left = height;
    }
}

static inline void find_alibi(struct row_features *features, const struct tile_rows *t) {
    const float *slopes = t->p->alibi.slopes + t->s.b * t->p->alibi.stride_batch;
    const int64_t diagonal = strobe__alibi_diagonal(t->p, &t->s);
    for (int64_t r = 0; r < TILE_ROWS; ++r) {
        features->alibi_key[r] = r < t->n ? packed_row(t, r) + diagonal : 0;
        features->minus_slope[r] = r < t->n ? -slopes[packed_head(t, r)] : 0;
    }
}

static inline bool rows_are_equal(const int64_t *at, int64_t rows) {
    bool equal = true;
    for (int64_t r = 1; r < rows; ++r) equal = equal && at[r] == at[0];
    return equal;
}

/* Where dropout's counters start; lanes without a row get what the first row has. */
static inline void find_dropout(struct row_features *features, const struct tile_rows *t) {
    const struct dropout_place place = strobe__dropout_place(t->p);
    for (int64_t r = 0; r < TILE_ROWS; ++r) {
        const int64_t lane = r % LANES, to = r - lane + lane % 2 * (LANES / 2) + lane / 2, row = r < t->n ? r : 0;
        features->dropout_row[to] = dropout_row(&place, t->s.b, packed_head(t, row), packed_row(t, row));
    }
}

static inline void find_row_features(struct row_features *features, const struct tile_rows *t) {
    const struct problem *p = t->p;
    bool shared = p->a.bool_mask || p->a.block_mask || p->a.bias;
    if (p->a.bool_mask) {
        find_rows(features->bool_mask, t, p->bool_mask.stride, 1);
        shared = shared && rows_are_equal(features->bool_mask, t->n);
    }
    if (p->a.block_mask) {
        find_rows(features->block_mask, t, p->block_mask.stride, p->block_mask.block_q);
        shared = shared && rows_are_equal(features->block_mask, t->n);
    }
    if (p->a.bias) {
        find_rows(features->bias, t, p->bias.stride, 1);
        features->bias_is_shared = rows_are_equal(features->bias, t->n);
        shared = shared && features->bias_is_shared;
    }
    features->masks_are_shared = shared && !(p->features & FEATURE(VISIBLE));
    if (p->a.score) start_score_function(t, &features->score);
    if (p->a.alibi) find_alibi(features, t);
    if (p->a.dropout) find_dropout(features, t);
}

/* Bits [first, end) of a block. */
static inline uint64_t bits_between(int64_t first, int64_t end) {
    return first >= end ? 0 : ~(uint64_t)0 >> (64 - (end - first)) << first;
}

static inline void see_band(uint64_t *seen, const struct tile_rows *t, int64_t j0, int64_t keys) {
    int64_t i = packed_row(t, 0), left = (i + 1) * t->p->group - t->first;
    struct block_keys range = keys_seen(&t->s.band, i, j0, keys);
    for (int64_t r = 0; r < t->n; ++r, --left) {
        if (left == 0) {
            range = keys_seen(&t->s.band, ++i, j0, keys);
            left = t->p->group;
        }
        seen[r] = bits_between(range.first, range.end);
    }
}

/* The visible keys of a row of blocks, from `block` on, the one of key j0. */
static inline uint64_t bits_of_blocks(const uint8_t *block, int64_t first_end, int64_t block_k, int64_t keys) {
    uint64_t bits = 0;
    for (int64_t first = 0, end = first_end; first < keys; first = end, end += block_k)
        if (*block++) bits |= bits_between(first, end < keys ? end : keys);
    return bits;
}

static inline void see_blocks(uint64_t *seen, const struct tile_rows *t, const int64_t *at, int64_t j0, int64_t keys) {
    const strobe_block_mask *mask = &t->p->block_mask;
    const int64_t block = j0 / mask->block_k, first_end = (block + 1) * mask->block_k - j0;
    uint64_t bits = 0;
    for (int64_t r = 0; r < t->n; ++r) {
        if (r == 0 || at[r] != at[r - 1]) bits = bits_of_blocks(mask->data + at[r] + block, first_end, mask->block_k, keys);
        seen[r] &= bits;
    }
}

/* Prefetches bytes of a row of a mask or a bias into L2, which the tile reads when it comes to the next block. The rows lie
 * far apart, and few bytes of each are read at a time, so that the hardware does not. Nothing has to be there. */
ALWAYS_INLINE void prefetch_row(const void *data, int64_t from, int64_t bytes) {
    for (int64_t at = from; at < from + bytes; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)data + (uintptr_t)at), 0, 2);
}

/* The visible keys of a row of a boolean mask. */
static inline uint64_t bits_of_bytes(const uint8_t *mask, int64_t keys) {
    uint8_t tail[BLOCK_KEYS] = {0};
    if (keys == 32) return nonzero_bytes(mask);
    if (keys < BLOCK_KEYS) mask = memcpy(tail, mask, (size_t)keys);
    return (uint64_t)nonzero_bytes(mask + 32) << 32 | nonzero_bytes(mask);
}

static inline void see_mask(uint64_t *seen, const struct tile_rows *t, const int64_t *at, int64_t j0, int64_t keys) {
    const uint8_t *mask = t->p->bool_mask.data + j0;
    uint64_t bits = 0;
    for (int64_t r = 0; r < t->n; ++r) {
        if (r == 0 || at[r] != at[r - 1]) {
            bits = bits_of_bytes(mask + at[r], keys);
            prefetch_row(mask, at[r] + BLOCK_KEYS, BLOCK_KEYS);
        }
        seen[r] &= bits;
    }
}

/* The keys of a row of the bias that are not -inf. */
static inline uint64_t bits_of_bias(const strobe_bias *bias, int64_t at, int64_t keys) {
    uint64_t bits = 0;
    if (bias->dtype == STROBE_FP64) { /* narrowed, a number could become -inf */
        for (int64_t j = 0; j < keys; ++j)
            bits |= (uint64_t)(((const double *)bias->data)[at + j] != -(double)INFINITY) << j;
        return bits;
    }
    float row[BLOCK_KEYS] = {0}; /* whole vectors are read */
    widen_row(row, bias->data, bias->dtype, at, keys);
    for (int64_t j = 0; j < keys; j += LANES) bits |= (uint64_t)v_equal_bits(v_load(row + j), v_set(-INFINITY)) << j;
    return ~bits & bits_between(0, keys);
}

/* Leaves out what a bias hides that all rows share. One of several rows is only asked whether it hides all that is left, row
 * after row, until something is visible: what else it hides is found when it is added. */
static inline void see_bias(uint64_t *seen, const struct tile_rows *t, const struct row_features *features, int64_t j0,
                            int64_t keys) {
    const strobe_bias *bias = &t->p->bias;
    const int64_t *at = features->bias;
    if (features->bias_is_shared) {
        const uint64_t bits = bits_of_bias(bias, at[0] + j0, keys);
        for (int64_t r = 0; r < t->n; ++r) seen[r] &= bits;
        return;
    }
    for (int64_t r = 0; r < t->n; ++r)
        if (seen[r] && seen[r] & bits_of_bias(bias, at[r] + j0, keys)) return;
    memset(seen, 0, (size_t)t->n * sizeof *seen);
}

/* From the keys that each row sees: coverage, vectors, bits. Lanes without a row get what the last row sees. */
static inline void sum_up(struct visible_block *v, uint64_t seen[TILE_ROWS], int64_t rows, int64_t keys) {
    uint64_t every = bits_between(0, keys);
    for (int64_t r = rows; r < TILE_ROWS; ++r) seen[r] = seen[rows - 1];
    for (int64_t r = 0; r < TILE_ROWS; ++r) {
        every &= seen[r];
        v->bits[0][r] = (uint32_t)seen[r];
        v->bits[BLOCK_KEYS / 32 - 1][r] = (uint32_t)(seen[r] >> 32);
    }
    v->first = v->end = 0;
    for (int n = vectors_of(rows) - 1; n >= 0; --n) {
        uint64_t some = 0;
        for (int lane = 0; lane < LANES; ++lane) some |= seen[n * LANES + lane];
        if (some && v->end == 0) v->end = n + 1;
        if (some) v->first = n;
    }
    v->coverage = v->end == 0 ? BLOCK_SKIPPED : every == bits_between(0, keys) ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* The keys of a block that masks and bias leave to all rows, where all share them. */
static inline uint64_t shared_bits(const struct tile_rows *t, const struct row_features *features, int64_t j0,
                                   int64_t keys) {
    const struct problem *p = t->p;
    uint64_t bits = bits_between(0, keys);
    if (p->a.block_mask) {
        const int64_t block_k = p->block_mask.block_k, block = j0 / block_k;
        bits &= bits_of_blocks(p->block_mask.data + features->block_mask[0] + block, (block + 1) * block_k - j0, block_k,
                               keys);
    }
    if (p->a.bool_mask && bits) bits &= bits_of_bytes(p->bool_mask.data + features->bool_mask[0] + j0, keys);
    if (p->a.bias && bits) bits &= bits_of_bias(&p->bias, features->bias[0] + j0, keys);
    return bits;
}

/* What the tile sees of the keys [j0, j0 + keys), 0 < keys <= BLOCK_KEYS, that exist. */
static inline void see_block(struct visible_block *v, const struct tile_rows *t, const struct row_features *features,
                             int64_t j0, int64_t keys) {
    const strobe_attention *a = &t->p->a;
    v->coverage = tile_covers(t, j0, j0 + keys);
    v->first = 0;
    v->end = vectors_of(t->n);
    if (v->coverage == BLOCK_SKIPPED) return;
    enum coverage function = BLOCK_FULL;
    if (t->p->features & FEATURE(VISIBLE)) function = function_covers(t, &features->score, j0, keys);
    if (function == BLOCK_SKIPPED) v->coverage = BLOCK_SKIPPED;
    if (function == BLOCK_SKIPPED) return;
    if (v->coverage == BLOCK_FULL && function == BLOCK_FULL && !a->block_mask && !a->bool_mask && !a->bias) return;
    uint64_t seen[TILE_ROWS];
    if (features->masks_are_shared) { /* one row tells whether there is more to do */
        const uint64_t bits = shared_bits(t, features, j0, keys);
        if (bits == 0) v->coverage = BLOCK_SKIPPED;
        if (bits == 0 || (v->coverage == BLOCK_FULL && bits == bits_between(0, keys))) return;
    }
    for (int64_t r = 0; r < TILE_ROWS; ++r) seen[r] = bits_between(0, keys);
    if (v->coverage == BLOCK_PARTIAL) see_band(seen, t, j0, keys);
    if (a->block_mask) see_blocks(seen, t, features->block_mask, j0, keys);
    if (a->bool_mask) see_mask(seen, t, features->bool_mask, j0, keys);
    if (a->bias) see_bias(seen, t, features, j0, keys);
    if (function == BLOCK_PARTIAL) see_function(seen, t, &features->score, j0, keys);
    sum_up(v, seen, t->n, keys);
}

/* Sets the scores of keys that do not exist, whose place in K and V is 0, to -inf. */
static inline void hide_missing_keys(float *s, uint64_t missing) {
    for (int64_t j = 0; missing; ++j, missing >>= 1)
        for (int64_t at = 0; missing & 1 && at < TILE_ROWS; at += LANES) v_store(s + j * TILE_ROWS + at, v_set(-INFINITY));
}

/* Sets scores s [keys][TILE_ROWS] of pairs that are not visible to -inf, in a block that is partial. The last key's bit
 * comes first: it is shifted to the highest place, and each step shifts the words by one more. */
static inline void hide_scores(float *s, const struct visible_block *v, int64_t keys) {
    const vec hidden = v_set(-INFINITY);
    for (int n = v->first; n < v->end; ++n)
        for (int64_t j0 = 0; j0 < keys; j0 += 32) {
            vec_words bits = w_load(v->bits[j0 / 32] + n * LANES);
            const int64_t count = keys - j0 < 32 ? keys - j0 : 32;
            for (int64_t j = 32; j > count; --j) bits = w_double(bits);
            for (int64_t j = j0 + count - 1; j >= j0; --j) {
                float *at = s + j * TILE_ROWS + n * LANES;
                v_store(at, v_select_highest_bit(bits, v_load(at), hidden));
                bits = w_double(bits);
            }
        }
}

#endif
