/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.h: between the products of the backward pass, on accumulators of one 16-row tile: scores S and dP become P Z,
 * which dV takes, and dS, which dQ and dK take.
 *
 *   P = exp(S - lse)      dS = P (Z dP - delta) slope      Z: dropout's 0 or 1 / (1 - p)      slope: softcap's derivative
 *
 * A row that sees nothing has lse = +inf, which makes its weights 0. P Z and dS are set to 0 for hidden pairs, so that a
 * NaN in the row or the key goes nowhere. */
#ifndef STROBE_CUDA_SM80_GRADIENTS_H
#define STROBE_CUDA_SM80_GRADIENTS_H

#include "cuda/device/row_statistics.h"
#include "cuda/sm80/scores.h"

/* Adds dS of the visible pairs to the fp32 sums of dbias. */
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

/* dS of the scores that the user's function was given, from dS of those that it gave; and the gradients of its arrays. A
 * pair that is hidden has a dS of 0. */
INLINE void through_score_function(const struct params *p, const struct job *t, struct patch at, bool transposed, int m,
                                   int n_tiles, bool wants_gradients, const float (*input)[4], float (*ds)[4]) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            if (ds[n][x] == 0) continue;
            const struct score_place place = score_place_of(p, t, pair_of(at, transposed, m, n, x / 2, x % 2));
            if (wants_gradients && WANTS_SCORE_GRADIENTS(p)) score_gradients(SCORE_OF(p), &place, input[n][x], ds[n][x]);
            ds[n][x] = score_F_CHAIN(ds[n][x], score_slope(SCORE_OF(p), &place, input[n][x]));
        }
}

/* exp(S - lse). For 16 bits it is worked out in base 2, and so is lse. In fp32 the rounding of a large lse in base 2 would
 * be the largest error, while S scale - lse is rounded once, as the small number that it is. */
INLINE float weight_of(const struct params *p, float s, float lse) {
#if defined(ELEMENT_FP32)
    return ex2(fmaf(s, p->scaled ? 1 : p->scale, -lse) * (float)LOG2_E);
#else
    return ex2(fmaf(s, p->exponent, -lse));
#endif
}

/* What a lane has of the sums that dsinks need of its rows: two rows or, transposed, 2 n_tiles. */
struct row_sums {
    float ds, p;
};

/* Whether this variant sums dS and P over keys, if it is asked to: fp32 tensors have an exact O. */
#if (FEATURES || defined(ROW_SUMS)) && !defined(ELEMENT_FP32)
#define HAS_ROW_SUMS 1
#else
#define HAS_ROW_SUMS 0
#endif

INLINE int row_of_sums(bool transposed, int n, int x) { return transposed ? 2 * n + x % 2 : x / 2; }

/* S becomes P Z, and dP becomes dS. lse and delta: [2] of the lane's two rows or, transposed, of the patch's rows, which
 * are its columns. hidden: some pairs have a bit of 0. sums: are added to, where they are wanted; NULL: never. */
INLINE void p_and_ds(const struct params *p, const struct job *t, struct patch at, bool transposed, int m, int n_tiles,
                     bool hidden, uint32_t bits, bool wants_dbias, float (*s)[4], float (*dp)[4], float (*slope)[4],
                     const float *lse, const float *delta, struct row_sums *sums) {
    const bool wants_sums = HAS_ROW_SUMS && sums && (!FEATURES || p->row_ds);
    const uint32_t kept = FEATURES && p->dropout ? kept_bits(p, t, at, transposed, m, n_tiles) : 0;
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int row = transposed ? 8 * n + column + x % 2 : x / 2;
            const bool biased_away = FEATURES && s[n][x] == -INFINITY; /* a weight of 0, also where lse is NaN */
            const float weight = biased_away ? 0 : weight_of(p, s[n][x], lse[row]);
            float z = 1;
            if (wants_sums && bits >> bit_of(n, x) & 1) sums[row_of_sums(transposed, n, x)].p += weight;
            if (FEATURES && p->dropout) z = kept >> bit_of(n, x) & 1 ? p->place.keep_scale : 0;
            s[n][x] = weight * z;
            dp[n][x] = weight * (dp[n][x] * z - delta[row]);
            if (FEATURES && weight == 0) dp[n][x] = 0; /* a bias of -inf hides as well, and has no bit */
        }
    if (hidden) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                if (!(bits >> bit_of(n, x) & 1)) s[n][x] = dp[n][x] = 0;
    }
    if (wants_sums) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x) sums[row_of_sums(transposed, n, x)].ds += dp[n][x];
    }
    if (!FEATURES) return;
    if (HAS_SCORE_FUNCTION) through_score_function(p, t, at, transposed, m, n_tiles, wants_dbias, slope + n_tiles, dp);
    if (wants_dbias && p->dbias_sum.data) add_to_dbias(p, t, at, transposed, m, n_tiles, bits, dp);
    if (p->softcap > 0) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                if (dp[n][x] != 0) dp[n][x] *= slope[n][x]; /* the slope of a hidden key may be NaN */
    }
}

#endif
