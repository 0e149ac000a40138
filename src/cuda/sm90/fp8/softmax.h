/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.h (fp8): online softmax on scores of e4m3 products. P is 2^WEIGHTS_LOG2 times what it is elsewhere, up to 2^6 and
 * with the lagging maximum up to 2^8.8 = 446, so that it fills the range of e4m3, whose largest number is 448; the row's
 * shift is lower by as much, and with it lse is right. Scores are raw sums: what a row's are multiplied with follows from
 * the scales of Q's row and of K's block. The sum of this file is lse's; O is divided by that of the rounded weights, for
 * which V has a column of ones. Included by forward.cu alone. */
#ifndef STROBE_CUDA_SM90_FP8_SOFTMAX_H
#define STROBE_CUDA_SM90_FP8_SOFTMAX_H

#include "cuda/sm90/forward/softmax.h"

/* Their sum is the logarithm of e4m3's largest number. A long lag saves rescales of O, for which all warps of a group wait;
 * a weight below 2^-6 has fewer bits, and is then 2^-12 of the largest or less. */
#define WEIGHTS_LOG2      6
#define WEIGHTS_GROW_LOG2 2.8f /* before O and l are rescaled */

/* What the column of ones behind V holds. An FP8 product cuts off what lies below 2^-13 of a sum: of products with V, which
 * have up to eight bits, more than of products with 1, which have four, so that O was 6e-4 too small where V has one sign.
 * 1.75 is the significand of 448, the number that a constant V is stored as. Its sums lose exactly what these lose. */
#define ONE      1.75f
#define ONE_E4M3 0x3e

/* Scales may be negative, 0 and NaN: the scores take over what their products would be spoilt by, and hidden ones, -inf,
 * stay what they are. */
INLINE void make_positive(float (&s)[KEYS / 2], float (&c)[2]) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        factor[i] = c[i] > 0 ? 1 : c[i] < 0 ? -1 : c[i];
        c[i] = c[i] > 0 || c[i] < 0 ? fabsf(c[i]) : 1;
    }
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] = s[v] == -INFINITY ? -INFINITY : s[v] * factor[v / 2 % 2];
}

/* Moves m of both rows to the maxima of this block; c: log2 of a weight per unit of score, of each row. */
INLINE void raise_weights(const float (&s)[KEYS / 2], struct rows *r, const float (&c)[2]) {
    float seen[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) seen[v % 4] = fmaxf(seen[v % 4], s[v]);
    seen[0] = fmaxf(seen[0], seen[1]), seen[1] = fmaxf(seen[2], seen[3]);
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int i = 0; i < 2; ++i) seen[i] = fmaxf(seen[i], __shfl_xor_sync(0xffffffffu, seen[i], lanes));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float highest = seen[i] * c[i]; /* of base 2 */
        const float before = r->bound[i] == -INFINITY ? -INFINITY : r->shift[i], now = fmaxf(before, highest - WEIGHTS_LOG2);
        const float shift = now == -INFINITY ? r->shift[i] : now;
        r->factor[i] = ex2(before - shift);
        r->shift[i] = shift;
        const float bound = highest + WEIGHTS_GROW_LOG2;
        r->bound[i] = r->bound[i] < bound ? bound : r->bound[i];
        r->sum[i] *= r->factor[i];
    }
}

/* The largest of the thread's scores of row i, as integers, in two chains. */
INLINE int largest_bits(const float (&s)[KEYS / 2], int i) {
    int most[2] = {(int)0x80000000, (int)0x80000000};
#pragma unroll
    for (int v = 2 * i; v < KEYS / 2; v += 4)
        most[v / 4 % 2] = max(max(most[v / 4 % 2], __float_as_int(s[v])), __float_as_int(s[v + 1]));
    return max(most[0], most[1]);
}

/* Moves m to where scores that pass their row's bound ask for it. A row's largest score is found as an integer: where some
 * score is positive, the order of the bits is that of the numbers; where the bound, which is in base 2, is negative, the
 * maximum is looked for in any case. */
INLINE void follow_maxima(float (&s)[KEYS / 2], struct rows *r, float (&c)[2]) {
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
    const float most[2] = {__int_as_float(largest_bits(s, 0)) * c[0], __int_as_float(largest_bits(s, 1)) * c[1]};
    const bool above = (r->bound[0] < 0) | (r->bound[1] < 0) | (most[0] > r->bound[0]) | (most[1] > r->bound[1]);
    const bool odd = !HAS_SCORE_TERMS && !(fminf(c[0], c[1]) > 0); /* a NaN of one row alone is one of all its scores */
    r->grown = __any_sync(0xffffffffu, above | odd);
    if (!r->grown) return;
    if (odd) make_positive(s, c);
    raise_weights(s, r, c);
}

/* S becomes P in place, and lse's sum follows. */
INLINE void exponentials_fp8(float (&s)[KEYS / 2], struct rows *r, const float (&c)[2]) {
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        s[v] = ex2(fmaf(s[v], c[v / 2 % 2], -r->shift[v / 2 % 2]));
        r->sum[v / 2 % 2] += s[v];
    }
}

/* P rounded to e4m3, as the A operand of P V: sixteen keys of a row are a register of the lane's four columns 2 q, 2 q + 1,
 * 2 q + 8, 2 q + 9 each, an order that V's keys have as well (transpose.h). */
INLINE void pack_weights(uint32_t (&packed)[KEYS / 8], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (int b = 0; b < KEYS / 16; ++b)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            packed[2 * b + i] = cvt_e4m3x4(s[8 * b + 2 * i], s[8 * b + 2 * i + 1], s[8 * b + 4 + 2 * i],
                                           s[8 * b + 5 + 2 * i]);
}

#endif
