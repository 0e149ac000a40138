/* SPDX-License-Identifier: BSD-3-Clause
 *
 * neon.h: the vector operations of level.h in the instructions that every 64-bit ARM processor has: 4 lanes, 32 registers,
 * fused products, conversions of fp16. Selects are comparisons and a bitwise select, so that a NaN and the sign of a zero go
 * the way that they go on x86-64. */
#ifndef STROBE_CPU_ISA_NEON_H
#define STROBE_CPU_ISA_NEON_H

#include <arm_neon.h>

#include "math/exp2.h"

/* The register tile of 4 keys x 4 vectors of 4 queries is 16 vectors of sums, 4 operands, and elements whose products take
 * them from a lane: as many sums as four units with a latency of four cycles keep busy. */
enum { LANES = 4, VECTORS = 4, UNROLL = 4, REGISTERS = 32 };

typedef float32x4_t vec;
typedef uint32x4_t vec_words;
struct vec2 {
    vec a, b;
};

static inline vec v_load(const float *x) { return vld1q_f32(x); }
static inline void v_store(float *x, vec a) { vst1q_f32(x, a); }
static inline vec v_set(float x) { return vdupq_n_f32(x); }
static inline vec v_add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec v_sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec v_mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec v_div(vec a, vec b) { return vdivq_f32(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec v_max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vec v_min(vec a, vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vec v_abs(vec a) { return vabsq_f32(a); }
static inline vec v_sqrt(vec a) { return vsqrtq_f32(a); }
static inline vec v_with_sign(vec a, vec sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a); }
static inline vec v_reciprocal(vec a) { return vdivq_f32(v_set(1), a); }

static inline vec v_select_less(vec a, vec b, vec yes, vec no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
static inline vec v_select_equal(vec a, vec b, vec yes, vec no) { return vbslq_f32(vceqq_f32(a, b), yes, no); }

static inline uint32_t v_equal_bits(vec a, vec b) { return vaddvq_u32(vandq_u32(vceqq_f32(a, b), (vec_words){1, 2, 4, 8})); }

static inline vec_words w_load(const uint32_t *x) { return vld1q_u32(x); }
static inline vec_words w_set(uint32_t x) { return vdupq_n_u32(x); }
static inline vec_words w_xor3(vec_words a, vec_words b, vec_words c) { return veorq_u32(veorq_u32(a, b), c); }
static inline vec_words w_join(vec_words a, vec_words b) { return vtrn1q_u32(a, b); }
static inline vec_words w_double(vec_words a) { return vaddq_u32(a, a); }

static inline vec_words w_add64(vec_words a, uint64_t b) {
    return vreinterpretq_u32_u64(vaddq_u64(vreinterpretq_u64_u32(a), vdupq_n_u64(b)));
}

static inline vec_words w_high(vec_words a) { return vreinterpretq_u32_u64(vshrq_n_u64(vreinterpretq_u64_u32(a), 32)); }

static inline vec_words w_multiply(vec_words a, vec_words b) {
    const uint32x2_t low_a = vmovn_u64(vreinterpretq_u64_u32(a)), low_b = vmovn_u64(vreinterpretq_u64_u32(b));
    return vreinterpretq_u32_u64(vmull_u32(low_a, low_b));
}

static inline vec v_select_below(vec_words a, vec_words b, vec yes, vec no) { return vbslq_f32(vcltq_u32(a, b), yes, no); }

static inline vec v_select_highest_bit(vec_words words, vec yes, vec no) {
    return vbslq_f32(vcltzq_s32(vreinterpretq_s32_u32(words)), yes, no);
}

/* A byte that is not 0 becomes the bit of its place in eight; three sums of neighbours gather the eight. */
static inline uint32_t nonzero_bytes(const uint8_t *x) {
    const uint8x16_t place = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t low = vld1q_u8(x), high = vld1q_u8(x + 16);
    uint8x16_t bits = vpaddq_u8(vandq_u8(vtstq_u8(low, low), place), vandq_u8(vtstq_u8(high, high), place));
    bits = vpaddq_u8(bits, bits);
    bits = vpaddq_u8(bits, bits);
    return vgetq_lane_u32(vreinterpretq_u32_u8(bits), 0);
}

static inline vec v_load_bf16(const uint16_t *x) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x), 16)); }
static inline vec v_load_fp16(const uint16_t *x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }

/* Loads 8 elements: bf16 as a vector of even and one of odd elements, by a shift and a mask; the other dtypes in order. They
 * come as bytes, since x may be memory of another type. */
static inline struct vec2 v_load2_bf16(const void *x) {
    const vec_words words = vreinterpretq_u32_u8(vld1q_u8(x));
    return (struct vec2){vreinterpretq_f32_u32(vshlq_n_u32(words, 16)),
                         vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)))};
}

static inline struct vec2 v_load2_fp16(const void *x) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(x));
    return (struct vec2){vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}

static inline struct vec2 v_load2_int8(const void *x) {
    const int16x8_t words = vmovl_s8(vld1_s8(x));
    return (struct vec2){vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}

/* avx512.h says how. */
static inline struct vec2 v_load2_e4m3(const void *x) {
    const uint16x8_t words = vreinterpretq_u16_s16(vmovl_s8(vld1_s8(x))), nan = vdupq_n_u16(0x3f80);
    const uint16x8_t magnitude = vandq_u16(vshlq_n_u16(words, 7), nan);
    const uint16x8_t nans = vandq_u16(vceqq_u16(magnitude, nan), vdupq_n_u16(0x7fff));
    const uint16x8_t sign = vandq_u16(words, vdupq_n_u16(0x8000));
    const float16x8_t halves = vreinterpretq_f16_u16(vorrq_u16(vorrq_u16(magnitude, nans), sign));
    return (struct vec2){vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}

/* The sums of the lanes of 4 vectors, in order. */
static inline vec v_sums(const vec x[4]) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }
static inline float v_sum(vec a) { return vaddvq_f32(a); }
static inline float v_highest(vec a) { return vmaxnmvq_f32(a); }

/* 2^x begun: what is left are the polynomial of the fraction and the power of two. */
struct exp2_parts {
    vec whole, fraction;
};

static inline struct exp2_parts v_exp2_start(vec x) {
    const vec whole = vrndmq_f32(x);
    return (struct exp2_parts){whole, vsubq_f32(x, whole)};
}

/* The integer part of x is added to the exponent bits of the polynomial. Below -125 the result is 0, whatever the bits are,
 * since a denormal may be slow. A NaN stays one: its conversion is 0. Arguments are at most 127; those of a softmax are at
 * most 0. */
static inline vec v_exp2_scale(struct exp2_parts e, vec p) {
    const int32x4_t shift = vshlq_n_s32(vcvtq_s32_f32(e.whole), 23);
    const vec power = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), shift));
    return v_select_less(e.whole, v_set(-125.0f), v_set(0), power);
}

/* Transposes 4 x 4. */
static inline void v_transpose_floats(vec x[4]) {
    const float64x2_t even[2] = {vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1])),
                                 vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3]))};
    const float64x2_t odd[2] = {vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1])),
                                vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]))};
    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1]));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1]));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1]));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1]));
}

#endif
