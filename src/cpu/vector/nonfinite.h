/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nonfinite.h: keys whose row of V (in the backward, of K) is not finite. In a block where some pairs are hidden, O += P V
 * must not bring 0 * NaN to a row from a key that it does not see. So these keys are left out of the product, as zeros, and
 * then added one by one to the rows where their P is not 0. Blocks without hidden pairs never come here. */
#ifndef STROBE_CPU_NONFINITE_H
#define STROBE_CPU_NONFINITE_H

#include "cpu/vector/tile.h"

struct nonfinite_keys {
    int count;
    int8_t key[BLOCK_KEYS];
};

/* Whether no element of a row is an infinity or a NaN. */
static inline bool row_is_finite(const float *row, int64_t columns) {
    vec sum = v_set(0); /* of 0 x, which is 0 unless x is an infinity or a NaN */
    int64_t x = 0;
    for (; x + LANES <= columns; x += LANES) sum = v_fma(v_load(row + x), v_set(0), sum);
    float lanes[LANES], rest = 0;
    v_store(lanes, sum);
    for (int lane = 0; lane < LANES; ++lane) rest += lanes[lane];
    for (; x < columns; ++x) rest += row[x] * 0;
    return rest == 0;
}

/* Whether no element of several rows is one, asked of all together. */
static inline bool rows_are_finite(struct rows32 a, int64_t rows, int64_t columns) {
    enum { CHAINS = 4 };
    vec sum[CHAINS];
    float rest = 0;
    for (int n = 0; n < CHAINS; ++n) sum[n] = v_set(0);
    for (int64_t j = 0; j < rows; ++j) {
        const float *row = a.data + j * a.stride;
        int64_t x = 0;
        for (; x + CHAINS * LANES <= columns; x += CHAINS * LANES)
            for (int n = 0; n < CHAINS; ++n) sum[n] = v_fma(v_load(row + x + n * LANES), v_set(0), sum[n]);
        for (; x + LANES <= columns; x += LANES) sum[0] = v_fma(v_load(row + x), v_set(0), sum[0]);
        for (; x < columns; ++x) rest += row[x] * 0;
    }
    return v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]))) + rest == 0;
}

/* Finds the keys of a that are not finite. Returns the rows to multiply with: a itself, or a copy with zeros for such keys
 * in block [2][BLOCK_KEYS][columns], of which a may be the first half. */
static inline struct rows32 leave_out_nonfinite(struct nonfinite_keys *nonfinite, struct rows32 a, float *block,
                                                int64_t keys, int64_t columns) {
    nonfinite->count = 0;
    if (rows_are_finite(a, keys, columns)) return a;
    for (int64_t j = 0; j < keys; ++j)
        if (!row_is_finite(a.data + j * a.stride, columns)) nonfinite->key[nonfinite->count++] = (int8_t)j;
    float *copy = a.data == block ? block + BLOCK_KEYS * columns : block;
    for (int64_t j = 0; j < keys; ++j) memcpy(copy + j * columns, a.data + j * a.stride, (size_t)columns * sizeof *copy);
    for (int n = 0; n < nonfinite->count; ++n) memset(copy + nonfinite->key[n] * columns, 0, (size_t)columns * sizeof *copy);
    return (struct rows32){copy, columns, false};
}

/* O[x][row] += P[j][row] A[j][x] for the keys that were left out and the rows [first, end), where P is not 0. */
static inline void add_nonfinite(const struct nonfinite_keys *nonfinite, float *o, struct rows32 a, const float *p,
                                 int64_t first, int64_t end, int64_t columns) {
    for (int n = 0; n < nonfinite->count; ++n)
        for (int64_t r = first; r < end; ++r) {
            const float p_ij = p[nonfinite->key[n] * TILE_ROWS + r];
            if (p_ij == 0) continue;
            for (int64_t x = 0; x < columns; ++x) o[x * TILE_ROWS + r] += p_ij * a.data[nonfinite->key[n] * a.stride + x];
        }
}

#endif
