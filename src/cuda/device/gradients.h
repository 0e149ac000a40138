/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.h: between the products of the backward pass, on accumulators of one 16-row tile: scores S and dP become P Z,
 * which dV takes, and dS, which dQ and dK take.
 *
 *   P = 2^(S c - lse2)      dS = P (Z dP - D) slope      Z: dropout's 0 or 1 / (1 - p)      slope: softcap's derivative
 *
 * Rows that see nothing have lse2 = +inf, and so weights of 0. Both are 0 for hidden pairs, whatever a NaN in the row or the
 * key made of S and dP. */
#ifndef STROBE_CUDA_TILE_GRADIENTS_H
#define STROBE_CUDA_TILE_GRADIENTS_H

#include "cuda/device/scores.h"

/* Where lse2 and D of a packed row lie. */
INLINE int64_t statistic_at(const struct params *p, const struct job *t, int packed) {
    return ((int64_t)t->b * p->heads_kv + t->kv) * p->packed_rows + packed;
}

/* Marks keys or packed rows [first, first + count), of `tiles` units in a head, to be worked out again; see params.h. */
INLINE void mark_again(int32_t *again, const struct params *p, const struct job *t, int first, int count, int tiles) {
    again[0] = 1;
    for (int n = first / AGAIN_UNIT; n < (first + count) / AGAIN_UNIT && n < tiles; ++n)
        again[1 + ((int64_t)t->b * p->heads_kv + t->kv) * tiles + n] = 1;
}

INLINE bool is_marked(const int32_t *again, const struct params *p, const struct job *t, int first, int tiles) {
    return again[1 + ((int64_t)t->b * p->heads_kv + t->kv) * tiles + first / AGAIN_UNIT] != 0;
}

/* dbias gets its part of dS, of scores in sight only. */
INLINE void add_to_dbias(const struct params *p, const struct job *t, struct patch at, bool transposed, int m, int n_tiles,
                         uint32_t bits, const float (*ds)[4]) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const struct pair pair = pair_of(at, transposed, m, n, x / 2, x % 2);
            if (!(bits >> bit_of(n, x) & 1)) continue;
            const int64_t to = score_offset(&p->dbias_sum, t, place_of(p, t, pair.packed)) + pair.j;
            atomicAdd((float *)p->dbias_sum.data + to, ds[n][x]);
        }
}

/* lse2 and D: [2] of the lane's two rows, or, transposed, of the patch's rows, which are its columns. hidden: some pairs
 * have a bit of 0. */
INLINE void weights_and_gradients(const struct params *p, const struct job *t, struct patch at, bool transposed, int m,
                                  int n_tiles, bool hidden, uint32_t bits, bool wants_dbias, float (*s)[4], float (*dp)[4],
                                  float (*slope)[4], const float *lse2, const float *D) {
    const uint32_t kept = FEATURES && p->dropout ? kept_bits(p, t, at, transposed, m, n_tiles) : 0;
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int row = transposed ? 8 * n + column + x % 2 : x / 2;
            const float weight = ex2(fmaf(s[n][x], p->exponent, -lse2[row]));
            float z = 1;
            if (FEATURES && p->dropout) z = kept >> bit_of(n, x) & 1 ? p->place.keep_scale : 0;
            s[n][x] = weight * z;
            dp[n][x] = weight * (dp[n][x] * z - D[row]);
            if (FEATURES && weight == 0) dp[n][x] = 0; /* a bias of -inf hides as well, and has no bit */
        }
    if (hidden) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                if (!(bits >> bit_of(n, x) & 1)) s[n][x] = dp[n][x] = 0;
    }
    if (!FEATURES) return;
    if (wants_dbias && p->dbias_sum.data) add_to_dbias(p, t, at, transposed, m, n_tiles, bits, dp);
    if (p->softcap > 0) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x) dp[n][x] *= slope[n][x];
    }
}

#endif
