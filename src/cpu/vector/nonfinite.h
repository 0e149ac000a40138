/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nonfinite.h: in a block where some pairs are invisible, O += P V must not bring 0 * NaN to a row from a key that it does
 * not see. Keys whose row of V (in backward of K) is not finite are left out of the product, held as zeros, and then added
 * one by one to the rows that give them a weight. Blocks without invisible pairs never come here. */
#ifndef STROBE_CPU_NONFINITE_H
#define STROBE_CPU_NONFINITE_H

#include "cpu/vector/tile.h"

struct held_keys {
    int count;
    int8_t key[BLOCK_KEYS];
};

static inline bool row_is_finite(const float *row, int64_t columns) {
    vec sum = v_set(0); /* 0 x = 0 unless x is an infinity or a NaN */
    int64_t x = 0;
    for (; x + LANES <= columns; x += LANES) sum = v_fma(v_load(row + x), v_set(0), sum);
    float lanes[LANES], rest = 0;
    v_store(lanes, sum);
    for (int lane = 0; lane < LANES; ++lane) rest += lanes[lane];
    for (; x < columns; ++x) rest += row[x] * 0;
    return rest == 0;
}

/* The rows of a to multiply with: a itself, or, with keys held, a copy in block [2][BLOCK_KEYS][columns], whose first half
 * may be a. */
static inline struct rows32 hold_back(struct held_keys *held, struct rows32 a, float *block, int64_t keys, int64_t columns) {
    held->count = 0;
    for (int64_t j = 0; j < keys; ++j)
        if (!row_is_finite(a.data + j * a.stride, columns)) held->key[held->count++] = (int8_t)j;
    if (held->count == 0) return a;
    float *copy = a.data == block ? block + BLOCK_KEYS * columns : block;
    for (int64_t j = 0; j < keys; ++j) memcpy(copy + j * columns, a.data + j * a.stride, (size_t)columns * sizeof *copy);
    for (int n = 0; n < held->count; ++n) memset(copy + held->key[n] * columns, 0, (size_t)columns * sizeof *copy);
    return (struct rows32){copy, columns};
}

/* O[x][row] += P[j][row] A[j][x] for the held keys, where P is not 0. */
static inline void release_held(const struct held_keys *held, float *o, struct rows32 a, const float *p, int64_t rows,
                                int64_t columns) {
    for (int n = 0; n < held->count; ++n)
        for (int64_t r = 0; r < rows; ++r) {
            const float weight = p[held->key[n] * TILE_ROWS + r];
            if (weight == 0) continue;
            for (int64_t x = 0; x < columns; ++x) o[x * TILE_ROWS + r] += weight * a.data[held->key[n] * a.stride + x];
        }
}

#endif
