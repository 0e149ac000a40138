/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax_sums.h: online softmax on scores of e4m3 products without maxima in most blocks. P = 2^(s c - shift) has to stay
 * in e4m3's range, whose largest number is 448. Where a thread's weights of a row sum up to 448 or less, none of them is
 * larger, and their sum is wanted in any case; only where it is larger, and where a row sees its first keys, a shift is
 * found by maxima. It puts the largest weight at a power of two, where e4m3 is exact, at 2^6 or as far below as the sum asks
 * for. Weights that are lost to 0 are thus below 2^-15 of the block's.
 *
 * A row whose weights overflow fp32 itself, which takes scores that grow by 80 from one block to the next, becomes NaN and
 * then an exact row. Included by forward_long.cu alone. */
#ifndef STROBE_CUDA_SM90_FP8_SOFTMAX_SUMS_H
#define STROBE_CUDA_SM90_FP8_SOFTMAX_SUMS_H

#include "cuda/sm90/fp8/softmax.h"

#define LARGEST_WEIGHT 448.0f /* of e4m3 */
#define START_LOG2     5      /* of the largest weight of the first block: scores grow, and each time O has to follow */
#define WANTED_SUM     128.0f /* of a thread's weights in a block, once these are lowered; in tiles of more blocks than */
#define SHORT_TILE     16     /* these the first block's are lowered to it: sums then seldom pass 448 later */

INLINE bool has_odd_scale(const float (&c)[2]) { return !HAS_SCORE_TERMS && !(fminf(c[0], c[1]) > 0); }

/* Whether a row of the thread needs its maximum found before the exponentials: it has seen no key yet, or its scores are
 * multiplied with what is not positive. */
INLINE bool lacks_shift(const struct rows *r, const float (&c)[2]) {
    return (r->bound[0] == -INFINITY) | (r->bound[1] == -INFINITY) | has_odd_scale(c);
}

/* Shifts both rows as the maxima of this block ask for; c: log2 of a weight per unit of score, of each row. `bound`: whether
 * a row has seen a key. */
INLINE void find_shift(const float (&s)[KEYS / 2], struct rows *r, const float (&c)[2]) {
    float seen[2];
    thread_maxima(s, seen);
    maxima_of_lanes(seen);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float highest = seen[i] * c[i]; /* of base 2 */
        const float before = r->bound[i] == -INFINITY ? -INFINITY : r->shift[i], now = fmaxf(before, highest - START_LOG2);
        const float shift = now == -INFINITY ? r->shift[i] : now;
        r->factor[i] = ex2(before - shift);
        r->shift[i] = shift;
        r->bound[i] = r->bound[i] < highest ? highest : r->bound[i];
        r->sum[i] *= r->factor[i];
    }
}

/* S becomes P in place; `sums`: of the thread's weights, which lse takes. */
INLINE void exponentials_and_sums(float (&s)[KEYS / 2], const struct rows *r, const float (&c)[2], float (&sums)[2]) {
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        s[v] = ex2(fmaf(s[v], c[v / 2 % 2], -r->shift[v / 2 % 2]));
        sums[v / 2 % 2] += s[v];
    }
}

/* Rows of which a thread's weights sum up to more than `limit` get a shift for smaller ones. */
INLINE void lower_weights(float (&s)[KEYS / 2], struct rows *r, float (&sums)[2], float limit) {
    float most[2], part[2] = {sums[0], sums[1]};
    thread_maxima(s, most);
    maxima_of_lanes(most);
    maxima_of_lanes(part);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float height = fminf(WEIGHTS_LOG2, floorf(__log2f(most[i] * WANTED_SUM / part[i])));
        const float down = part[i] > limit ? __log2f(most[i]) - height : 0;
        r->factor[i] = ex2(-down);
        r->shift[i] += down, r->sum[i] *= r->factor[i], sums[i] *= r->factor[i];
    }
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] *= r->factor[v / 2 % 2];
}

#endif
