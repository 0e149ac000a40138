/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_tile.h: which rows and keys a CTA of forward.cu has, what happens to its scores between the products, and where a
 * finished row goes. Included by forward.cu alone, which defines ROWS, KEYS and SCORES by its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_TILE_H
#define STROBE_CUDA_SM90_FORWARD_TILE_H

#include "math/exp2.h"

struct tile {
    int number;
    int head, batch;
    int row, rows, keys;          /* the tile's first row; rows and keys of the sequence */
    int64_t first_row, first_key; /* of the sequence in a packed tensor */
    int first_shift, end_shift;   /* row i sees the keys max(0, i + first_shift) .. min(keys, i + end_shift) - 1 */
    int first_block, end_block;   /* blocks of KEYS that some row of the tile sees */
};

static __device__ __forceinline__ int first_key_of(const struct tile *t, int row) {
    return row + t->first_shift > 0 ? row + t->first_shift : 0;
}

static __device__ __forceinline__ int end_key_of(const struct tile *t, int row) {
    return row + t->end_shift < t->keys ? row + t->end_shift : t->keys;
}

/* Beyond a quarter of the range of int a shift means the same as there: sequences are shorter. */
static __device__ __forceinline__ int clamp_shift(int64_t shift) {
    const int64_t most = 1 << 29;
    return (int)(shift < -most ? -most : shift > most ? most : shift);
}

static __device__ __forceinline__ int64_t entry(const void *entries, int bits, int at) {
    return bits == 64 ? ((const int64_t *)entries)[at] : ((const int32_t *)entries)[at];
}

/* Tile `number`. Heads are taken a section at a time, in a section the last rows first, since under a causal mask they see
 * the most keys: CTAs, which take the next number when they are done with one, end together. */
static __device__ __forceinline__ struct tile tile_of(const struct sm90_forward_params *p, int number) {
    const int section_tiles = p->section_heads * p->row_tiles, first_head = number / section_tiles * p->section_heads;
    const int all_heads = p->tiles / p->row_tiles, left = all_heads - first_head;
    const int heads = left < p->section_heads ? left : p->section_heads, in_section = number % section_tiles;
    const int batch = (first_head + in_section % heads) / p->heads_q;
    if (number >= p->tiles) return (struct tile){.number = p->tiles};
    struct tile t;
    t.number = number;
    t.head = (first_head + in_section % heads) % p->heads_q, t.batch = batch;
    t.rows = p->seq_q, t.keys = p->seq_k, t.first_row = 0, t.first_key = 0;
    if (p->cu_seqlens_q) {
        t.first_row = entry(p->cu_seqlens_q, p->index_bits, batch);
        t.rows = (int)(entry(p->cu_seqlens_q, p->index_bits, batch + 1) - t.first_row);
    }
    if (p->cu_seqlens_k) {
        t.first_key = entry(p->cu_seqlens_k, p->index_bits, batch);
        t.keys = (int)(entry(p->cu_seqlens_k, p->index_bits, batch + 1) - t.first_key);
    }
    if (p->used_q) t.rows = (int)entry(p->used_q, p->index_bits, batch);
    if (p->used_k) t.keys = (int)entry(p->used_k, p->index_bits, batch);
    t.row = (p->row_tiles - 1 - in_section / heads) * (64 * GROUPS);
    const int64_t diagonal = p->start + (p->bottom_right ? t.keys - t.rows : 0);
    t.first_shift = clamp_shift(diagonal - p->left), t.end_shift = clamp_shift(diagonal + p->right + 1);
    const int last = t.row + 64 * GROUPS < t.rows ? t.row + 64 * GROUPS - 1 : t.rows - 1;
    t.first_block = first_key_of(&t, t.row) / KEYS;
    t.end_block = (end_key_of(&t, last) + KEYS - 1) / KEYS;
    if (t.row >= t.rows) t.end_block = t.first_block = 0; /* past the end of a short sequence: nothing to do or to store */
    if (t.end_block < t.first_block) t.end_block = t.first_block;
    return t;
}

/* Scores are raw or, with terms, in natural units; exp(score) = 2^(score * this). */
static __device__ __forceinline__ float exponent_factor(const struct sm90_forward_params *p) {
    return TERMS ? (float)LOG2_E : p->scale * (float)LOG2_E;
}

/* Softcap and ALiBi on the thread's scores of keys [key, key + KEYS), rows first + lane / 4 and + 8. */
static __device__ __forceinline__ void add_terms(const struct sm90_forward_params *p, const struct tile *t,
                                                 float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32;
    const float slope = p->alibi ? p->alibi[t->batch * p->alibi_stride + t->head] : 0;
    const int64_t diagonal = p->start + t->keys - t->rows;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        s[v] *= p->scale;
        if (p->softcap > 0) s[v] = p->softcap * tanhf(s[v] / p->softcap);
        const int64_t i = t->row + first + lane / 4 + 8 * (v / 2 % 2), j = key + 8 * (v / 4) + 2 * (lane % 4) + v % 2;
        const int64_t distance = i + diagonal - j;
        s[v] -= slope * (float)(distance < 0 ? -distance : distance);
    }
}

/* -inf where the band hides a key. Bounds are relative to the thread's first column, columns are constants. */
static __device__ __forceinline__ void hide(const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32;
    int low[2], high[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = t->row + first + lane / 4 + 8 * i, origin = key + 2 * (lane % 4);
        low[i] = first_key_of(t, row) - origin, high[i] = end_key_of(t, row) - origin;
    }
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        const int column = 8 * (v / 4) + v % 2, i = v / 2 % 2;
        if (column < low[i] || column >= high[i]) s[v] = -INFINITY;
    }
}

/* Between the products: nothing at all for a block that every row sees whole. */
static __device__ __forceinline__ void finish_scores(const struct sm90_forward_params *p, const struct tile *t,
                                                     float (&s)[KEYS / 2], int first, int key) {
    if (TERMS) add_terms(p, t, s, first, key);
    const int row = t->row + first; /* of the warp: the branch is the same for all its lanes */
    const bool full = key >= first_key_of(t, row + 15) && key + KEYS <= end_key_of(t, row);
    if (!full) hide(t, s, first, key);
}

/* The row's lse is written; what its O has to be multiplied by is returned: 0 for a row that saw no key. */
static __device__ __forceinline__ float finish_row(const struct sm90_forward_params *p, const struct tile *t, int row,
                                                   float maximum, float sum, bool writes) {
    const float keys_lse = sum == 0 ? -INFINITY : maximum * exponent_factor(p) * (float)LN_2 + logf(sum);
    float lse = keys_lse, factor = sum == 0 ? 0 : 1 / sum;
    if (p->sinks) {
        const float sink = p->sinks[t->head], high = fmaxf(keys_lse, sink);
        if (high != -INFINITY) {
            lse = high + logf(expf(keys_lse - high) + expf(sink - high));
            factor *= sum == 0 ? 0 : expf(keys_lse - lse);
        }
    }
    const int64_t i = t->row + row;
    if (p->lse && writes && i < t->rows)
        p->lse[(p->cu_seqlens_q ? 0 : t->batch * p->lse_stride[0]) + (t->first_row + i) * p->lse_stride[1] +
               t->head * p->lse_stride[2]] = lse;
    return factor;
}

/* Eight elements of a row of the tile, in shared memory, to out. */
static __device__ __forceinline__ void store_piece(const struct sm90_forward_params *p, const struct tile *t, int row,
                                                   int column, const unsigned char *piece) {
    const int64_t i = t->row + row;
    if (i >= t->rows || column >= p->dim_v) return;
    uint16_t *to = (uint16_t *)p->out + (p->cu_seqlens_q ? 0 : t->batch * p->out_stride[0]) +
                   (t->first_row + i) * p->out_stride[1] + t->head * p->out_stride[2] + column;
    if (p->out_is_aligned && column + 8 <= p->dim_v) {
        *(uint4 *)to = *(const uint4 *)piece;
        return;
    }
    for (int x = 0; x < 8 && column + x < p->dim_v; ++x) to[x] = ((const uint16_t *)piece)[x];
}

#endif
