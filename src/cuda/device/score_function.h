/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_function.h: the user's function of a score in a kernel. Its text is written by the library from the function's
 * graph (core/score/text.h), given to the compiler as a header, and compiled at run time together with the kernel's; the
 * kernels that the build compiles have none, and HAS_SCORE_FUNCTION is 0. */
#ifndef STROBE_CUDA_DEVICE_SCORE_FUNCTION_H
#define STROBE_CUDA_DEVICE_SCORE_FUNCTION_H

#include "cuda/device/element.h"

/* Where a score stands; i and j are positions. */
struct score_place {
    int b, h, hkv, i, j, seq_q, seq_k;
};

#if defined(STROBE_SCORE_FUNCTION)
#if !defined(ELEMENT_FP32)
#define SCORE_FAST_CURVES
#endif
#include "cuda/device/score_values.h"
#include "math/score_arithmetic.h"

#define SCORE_INLINE                INLINE
#define WANTS_SCORE_GRADIENTS(p)    (SCORE_WANTS_GRADIENTS && (p)->score.wants_gradients)
#define SCORE_FLOAT(bits)           __uint_as_float(bits)
#define SCORE_LOAD(dtype, data, at) score_load_##dtype(data, at)
#define SCORE_OF(p)                 (&(p)->score)
/* An element so many beyond another, which is a part of the instruction where `further` is a constant. */
#define SCORE_LOAD_FURTHER(dtype, data, at, further) score_load_##dtype(score_element_##dtype(data, at), further)
#define SCORE_ADD(sums, at, value)                   atomicAdd((sums) + (at), value)

INLINE const void *score_element_FP32(const void *data, int at) { return (const float *)data + at; }
INLINE const void *score_element_FP16(const void *data, int at) { return (const short *)data + at; }
INLINE const void *score_element_BF16(const void *data, int at) { return (const short *)data + at; }
INLINE const void *score_element_INT32(const void *data, int at) { return (const int *)data + at; }
INLINE const void *score_element_UINT8(const void *data, int at) { return (const char *)data + at; }
INLINE float score_load_FP32(const void *data, int at) { return __ldg((const float *)data + at); }
INLINE float score_load_FP16(const void *data, int at) { return fp16_to_float(__ldg((const unsigned short *)data + at)); }
INLINE float score_load_BF16(const void *data, int at) { return bf16_to_float(__ldg((const unsigned short *)data + at)); }
INLINE int score_load_INT32(const void *data, int at) { return __ldg((const int *)data + at); }
INLINE int score_load_UINT8(const void *data, int at) { return __ldg((const unsigned char *)data + at); }

#include "score_text.h"
#if !SCORE_HAS_RELATIVE
INLINE float score_relative(const struct score_values *, const struct score_place *, int) { return 0; }
INLINE float score_joined(const struct score_values *, const struct score_place *, float score, float) { return score; }
#endif
#else
/* Never called. */
struct score_values;
#define SCORE_OF(p)              ((const struct score_values *)0)
INLINE float score_value(const struct score_values *, const struct score_place *, float score) { return score; }
INLINE float score_relative(const struct score_values *, const struct score_place *, int) { return 0; }
INLINE float score_joined(const struct score_values *, const struct score_place *, float score, float) { return score; }
INLINE float score_slope(const struct score_values *, const struct score_place *, float) { return 1; }
INLINE void score_gradients(const struct score_values *, const struct score_place *, float, float) {}
INLINE float score_F_CHAIN(float x, float y) { return x * y; }
#define WANTS_SCORE_GRADIENTS(p) 0
#define SCORE_SLOPE_IS_ONE       1
#define SCORE_NEEDS_INPUT        0
#define SCORE_READS_ARRAYS       0
#define SCORE_HAS_RELATIVE       0
#endif

#endif
