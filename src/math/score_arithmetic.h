/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_arithmetic.h: the operations of a score function on single values, an integer of 32 bits or a float, as
 * strobe_score.h has them. A function has the name of its operation; the text that is generated for a GPU calls them by
 * these names. One text for C and CUDA C. SCORE_FAST_CURVES: exp, exp2 and tanh as GPU kernels of 16-bit tensors take them,
 * by the hardware's 2^x; their error is 4e-7 of the result and less. */
#ifndef STROBE_MATH_SCORE_ARITHMETIC_H
#define STROBE_MATH_SCORE_ARITHMETIC_H

#if !defined(__CUDACC__)
#include <math.h>
#include <stdint.h>
#endif

#include "math/inline.h"

/* Integers wrap. */
STROBE_INLINE int32_t score_I_ADD(int32_t x, int32_t y) { return (int32_t)((uint32_t)x + (uint32_t)y); }
STROBE_INLINE int32_t score_I_SUB(int32_t x, int32_t y) { return (int32_t)((uint32_t)x - (uint32_t)y); }
STROBE_INLINE int32_t score_I_MUL(int32_t x, int32_t y) { return (int32_t)((uint32_t)x * (uint32_t)y); }
STROBE_INLINE int32_t score_I_NEG(int32_t x) { return (int32_t)(0u - (uint32_t)x); }
STROBE_INLINE int32_t score_I_ABS(int32_t x) { return x < 0 ? score_I_NEG(x) : x; }

/* Towards zero; by 0 they give 0, and -2^31 / -1 wraps. */
STROBE_INLINE int32_t score_I_DIV(int32_t x, int32_t y) { return y == 0 ? 0 : y == -1 ? score_I_NEG(x) : x / y; }
STROBE_INLINE int32_t score_I_MOD(int32_t x, int32_t y) { return y == 0 || y == -1 ? 0 : x % y; }

STROBE_INLINE int32_t score_I_MIN(int32_t x, int32_t y) { return x < y ? x : y; }
STROBE_INLINE int32_t score_I_MAX(int32_t x, int32_t y) { return x > y ? x : y; }
STROBE_INLINE int32_t score_I_LESS(int32_t x, int32_t y) { return x < y; }
STROBE_INLINE int32_t score_I_LESS_EQUAL(int32_t x, int32_t y) { return x <= y; }
STROBE_INLINE int32_t score_I_EQUAL(int32_t x, int32_t y) { return x == y; }
STROBE_INLINE int32_t score_I_AND(int32_t x, int32_t y) { return x & y; } /* of 0 and 1 */
STROBE_INLINE int32_t score_I_OR(int32_t x, int32_t y) { return x | y; }
STROBE_INLINE int32_t score_I_NOT(int32_t x) { return x == 0; }
STROBE_INLINE int32_t score_I_SELECT(int32_t c, int32_t x, int32_t y) { return c ? x : y; }

STROBE_INLINE float score_F_ADD(float x, float y) { return x + y; }
STROBE_INLINE float score_F_SUB(float x, float y) { return x - y; }
STROBE_INLINE float score_F_MUL(float x, float y) { return x * y; }
STROBE_INLINE float score_F_DIV(float x, float y) { return x / y; }
STROBE_INLINE float score_F_NEG(float x) { return -x; }
STROBE_INLINE float score_F_ABS(float x) { return fabsf(x); }
STROBE_INLINE float score_F_MIN(float x, float y) { return x < y ? x : y; }
STROBE_INLINE float score_F_MAX(float x, float y) { return x > y ? x : y; }
STROBE_INLINE int32_t score_F_LESS(float x, float y) { return x < y; }
STROBE_INLINE int32_t score_F_LESS_EQUAL(float x, float y) { return x <= y; }
STROBE_INLINE int32_t score_F_EQUAL(float x, float y) { return x == y; }
STROBE_INLINE float score_F_SELECT(int32_t c, float x, float y) { return c ? x : y; }
STROBE_INLINE float score_F_CHAIN(float x, float y) { return x == 0 ? 0 : x * y; }
STROBE_INLINE float score_F_LOG(float x) { return logf(x); }
STROBE_INLINE float score_F_SQRT(float x) { return sqrtf(x); }
STROBE_INLINE float score_F_FLOOR(float x) { return floorf(x); }
STROBE_INLINE float score_F_POW(float x, float y) { return powf(x, y); }

/* A quotient that is made of a score, which is not exact in any case: on a GPU by the reciprocal, an error of 2^-22. One of
 * positions and elements alone is F_DIV, so that what is whole stays whole. */
#if defined(SCORE_FAST_CURVES)
__device__ static inline float score_QUOTIENT(float x, float y) { return __fdividef(x, y); }
#else
STROBE_INLINE float score_QUOTIENT(float x, float y) { return x / y; }
#endif

#if defined(SCORE_FAST_CURVES)
__device__ static inline float score_F_EXP2(float x) { return ex2(x); }
/* The product is rounded to a float of up to 128: what it lost is given back. */
__device__ static inline float score_F_EXP(float x) {
    const float base2 = x * 1.44269504f, lost = fmaf(x, 1.44269504f, -base2) + x * 1.9259630e-8f;
    const float power = ex2(base2);
    return fabsf(x) < 100 ? fmaf(power, lost * 0.693147181f, power) : power;
}
/* (1 - t) / (1 + t) with t = e^-2|x|, whose quotient is corrected once: an error of 1.6e-7 at most, where the reciprocal
 * alone would leave 2.4e-7 and 1 - 2 / (1 + e^2x) 2.8e-7. It would lose the digits of a small x, which has the odd
 * polynomial of degree 5: below 0.11 its error is 1e-7 of the result. */
__device__ static inline float score_F_TANH(float x) {
    const float square = x * x, small = x * fmaf(square, fmaf(square, 2.0f / 15, -1.0f / 3), 1);
    const float t = ex2(fabsf(x) * -2.88539008f), over = 1 + t, inverse = __fdividef(1, over), rough = (1 - t) * inverse;
    const float large = fmaf(fmaf(-rough, over, 1 - t), inverse, rough);
    return fabsf(x) < 0.11f ? small : copysignf(large, x);
}
#else
STROBE_INLINE float score_F_EXP(float x) { return expf(x); }
STROBE_INLINE float score_F_EXP2(float x) { return exp2f(x); }
STROBE_INLINE float score_F_TANH(float x) { return tanhf(x); }
#endif

STROBE_INLINE float score_I_TO_F(int32_t x) { return (float)x; }

/* Towards zero; the nearest where it does not fit, 0 of a NaN. */
STROBE_INLINE int32_t score_F_TO_I(float x) {
    if (!(x >= -2147483648.0f)) return x != x ? 0 : (-2147483647 - 1);
    return x < 2147483648.0f ? (int32_t)x : 2147483647;
}

#endif
