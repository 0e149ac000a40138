/* SPDX-License-Identifier: BSD-3-Clause
 *
 * convert.h: for src/cuda/ptx/convert.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_CONVERT_H
#define STROBE_CUDA_EMULATED_PTX_CONVERT_H

#include <math.h>
#include <stdint.h>

#include "math/float16.h"
#include "math/fp8.h"

static inline uint32_t cvt_bf16x2(float low, float high) { return (uint32_t)float_to_bf16(high) << 16 | float_to_bf16(low); }
static inline uint32_t cvt_f16x2(float low, float high) { return (uint32_t)float_to_fp16(high) << 16 | float_to_fp16(low); }
static inline float f16_to_float(uint16_t bits) { return fp16_to_float(bits); }

static inline uint16_t cvt_e4m3x2(float low, float high) {
    return (uint16_t)(float_to_e4m3(high) << 8 | float_to_e4m3(low));
}
static inline uint32_t cvt_e4m3x4(float a, float b, float c, float d) {
    return (uint32_t)cvt_e4m3x2(c, d) << 16 | cvt_e4m3x2(a, b);
}
static inline uint32_t cvt_f16x2_of_e4m3x2(uint16_t pair) {
    return cvt_f16x2(e4m3_to_float((uint8_t)pair), e4m3_to_float((uint8_t)(pair >> 8)));
}

/* A result that is denormal becomes 0; so does an operand. */
static inline float emulated_flush(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
static inline float ex2(float x) { return emulated_flush(exp2f(emulated_flush(x))); }
static inline float reciprocal(float x) { return emulated_flush(1 / emulated_flush(x)); }

#endif
