/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile.h: a tile, who of its rows sees which keys, and what hides the others. Included by forward.cu alone, after
 * its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_TILE_H
#define STROBE_CUDA_SM90_FORWARD_TILE_H

#include "cuda/sm90/forward/params.h"
#include "math/exp2.h"

#define NO_TILE (-1)

struct tile {
    int number; /* or NO_TILE */
    int head, kv_head, batch;
    int row, rows, keys;        /* the tile's first row; rows and keys of the sequence */
    int first_row, first_key;   /* of the sequence in a packed tensor */
    int first_shift, end_shift; /* row i sees the keys max(0, i + first_shift) .. min(keys, i + end_shift) - 1 */
    int first_block, end_block; /* blocks of KEYS that some row of the tile sees */
};

static __device__ __forceinline__ int first_key_of(const struct tile *t, int row) {
    return row + t->first_shift > 0 ? row + t->first_shift : 0;
}

static __device__ __forceinline__ int end_key_of(const struct tile *t, int row) {
    return row + t->end_shift < t->keys ? row + t->end_shift : t->keys;
}

/* Scores are raw or, with terms, in natural units; exp(score) = 2^(score * this). */
static __device__ __forceinline__ float exponent_factor(const struct sm90_forward_params *p) {
    return TERMS ? (float)LOG2_E : p->exponent;
}

/* How far a score may pass a row's maximum: by 8 in base 2. */
static __device__ __forceinline__ float growth_limit(const struct sm90_forward_params *p) {
    return TERMS ? 8 / (float)LOG2_E : p->growth_limit;
}

/* -inf for keys from the row's end on. Columns are constants, their bound is relative to the thread's first one. */
static __device__ __forceinline__ void hide_after(const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, origin = key + 2 * (lane % 4);
    const int end[2] = {end_key_of(t, row) - origin, end_key_of(t, row + 8) - origin};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        if (8 * (v / 4) + v % 2 >= end[v / 2 % 2]) s[v] = -INFINITY;
}

/* The same for keys before the row's first. */
static __device__ __forceinline__ void hide_before(const struct tile *t, float (&s)[KEYS / 2], int first, int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, origin = key + 2 * (lane % 4);
    const int begin[2] = {first_key_of(t, row) - origin, first_key_of(t, row + 8) - origin};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        if (8 * (v / 4) + v % 2 < begin[v / 2 % 2]) s[v] = -INFINITY;
}

struct keys {
    int begin, end;
};

/* Keys that all sixteen rows of a warp see. */
static __device__ __forceinline__ struct keys keys_of_warp(const struct tile *t, int first) {
    const struct keys keys = {first_key_of(t, t->row + first + 15), end_key_of(t, t->row + first)};
    return keys;
}

/* What the band hides; in most blocks nothing, which the warp finds out by two comparisons. */
static __device__ __forceinline__ void hide(const struct tile *t, struct keys shown, float (&s)[KEYS / 2], int first,
                                            int key) {
    if (key + KEYS > shown.end) hide_after(t, s, first, key);
    if (key < shown.begin) hide_before(t, s, first, key);
}

#endif
