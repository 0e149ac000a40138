/* SPDX-License-Identifier: BSD-3-Clause
 *
 * neon.h: the vector operations of level.h in the instructions that every 64-bit ARM processor has: fused products,
 * conversions of fp16, 32 registers of 4 lanes. A vector is one register, or, for a level with tiles, four: 16 lanes, of
 * which tiles are made. Selects are comparisons and a bitwise select, so that a NaN and the sign of a zero go the way that
 * they go on x86-64. */
#ifndef STROBE_CPU_ISA_NEON_H
#define STROBE_CPU_ISA_NEON_H

#include <arm_neon.h>

#include "math/exp2.h"

/* The register tile of 4 keys x 4 vectors of 4 queries is 16 vectors of sums, 4 operands, and elements whose products take
 * them from a lane: as many sums as four units with a latency of four cycles keep busy. */
#if defined(STROBE_TILES)
enum { QUADS = 4, LANES = 16, VECTORS = 2, UNROLL = 4, REGISTERS = 8, SMALL_CACHES = 0 };
#else
enum { QUADS = 1, LANES = 4, VECTORS = 4, UNROLL = 4, REGISTERS = 32, SMALL_CACHES = 0 };
#endif

typedef struct {
    float32x4_t q[QUADS];
} vec;
typedef struct {
    uint32x4_t q[QUADS];
} vec_words;
struct vec2 {
    vec a, b;
};

/* A loop over the registers of a vector, which compilers have to unroll: then none of them is in memory. */
#define EACH_QUAD _Pragma("GCC unroll 4") for (int i = 0; i < QUADS; ++i)

/* An operation on each register: of one vector, of two, on all lanes alike. */
#define QUADWISE_1(name, type, of, operation) \
    static inline type name(of a) {           \
        type r;                               \
        EACH_QUAD r.q[i] = operation(a.q[i]); \
        return r;                             \
    }
#define QUADWISE_2(name, type, of, operation)         \
    static inline type name(of a, of b) {             \
        type r;                                       \
        EACH_QUAD r.q[i] = operation(a.q[i], b.q[i]); \
        return r;                                     \
    }

static inline vec v_load(const float *x) {
    vec r;
    EACH_QUAD r.q[i] = vld1q_f32(x + 4 * i);
    return r;
}

static inline void v_store(float *x, vec a) { EACH_QUAD vst1q_f32(x + 4 * i, a.q[i]); }

static inline void v_store_parts(float *x, int64_t apart, vec a) { EACH_QUAD vst1q_f32(x + i * apart, a.q[i]); }

static inline vec v_set(float x) {
    vec r;
    EACH_QUAD r.q[i] = vdupq_n_f32(x);
    return r;
}

QUADWISE_2(v_add, vec, vec, vaddq_f32)
QUADWISE_2(v_sub, vec, vec, vsubq_f32)
QUADWISE_2(v_mul, vec, vec, vmulq_f32)
QUADWISE_2(v_div, vec, vec, vdivq_f32)
QUADWISE_1(v_abs, vec, vec, vabsq_f32)
QUADWISE_1(v_sqrt, vec, vec, vsqrtq_f32)

static inline vec v_fma(vec a, vec b, vec c) {
    EACH_QUAD c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
}

static inline vec v_select_less(vec a, vec b, vec yes, vec no) {
    EACH_QUAD no.q[i] = vbslq_f32(vcltq_f32(a.q[i], b.q[i]), yes.q[i], no.q[i]);
    return no;
}

static inline vec v_select_equal(vec a, vec b, vec yes, vec no) {
    EACH_QUAD no.q[i] = vbslq_f32(vceqq_f32(a.q[i], b.q[i]), yes.q[i], no.q[i]);
    return no;
}

static inline vec v_max(vec a, vec b) { return v_select_less(b, a, a, b); }
static inline vec v_min(vec a, vec b) { return v_select_less(a, b, a, b); }
static inline vec v_reciprocal(vec a) { return v_div(v_set(1), a); }

static inline vec v_with_sign(vec a, vec sign) {
    EACH_QUAD a.q[i] = vbslq_f32(vdupq_n_u32(0x80000000u), sign.q[i], a.q[i]);
    return a;
}

static inline uint32_t v_equal_bits(vec a, vec b) {
    const uint32x4_t place = {1, 2, 4, 8};
    uint32x4_t bits = vdupq_n_u32(0);
    EACH_QUAD bits = vorrq_u32(bits, vandq_u32(vceqq_f32(a.q[i], b.q[i]), vshlq_u32(place, vdupq_n_s32(4 * i))));
    return vaddvq_u32(bits);
}

static inline vec_words w_load(const uint32_t *x) {
    vec_words r;
    EACH_QUAD r.q[i] = vld1q_u32(x + 4 * i);
    return r;
}

static inline vec_words w_set(uint32_t x) {
    vec_words r;
    EACH_QUAD r.q[i] = vdupq_n_u32(x);
    return r;
}

QUADWISE_2(w_xor, vec_words, vec_words, veorq_u32)
static inline vec_words w_xor3(vec_words a, vec_words b, vec_words c) { return w_xor(w_xor(a, b), c); }
QUADWISE_2(w_join, vec_words, vec_words, vtrn1q_u32)
static inline vec_words w_double(vec_words a) {
    EACH_QUAD a.q[i] = vaddq_u32(a.q[i], a.q[i]);
    return a;
}

static inline vec_words w_add64(vec_words a, uint64_t b) {
    EACH_QUAD a.q[i] = vreinterpretq_u32_u64(vaddq_u64(vreinterpretq_u64_u32(a.q[i]), vdupq_n_u64(b)));
    return a;
}

static inline vec_words w_high(vec_words a) {
    EACH_QUAD a.q[i] = vreinterpretq_u32_u64(vshrq_n_u64(vreinterpretq_u64_u32(a.q[i]), 32));
    return a;
}

static inline vec_words w_multiply(vec_words a, vec_words b) {
    EACH_QUAD {
        const uint32x2_t low_a = vmovn_u64(vreinterpretq_u64_u32(a.q[i])), low_b = vmovn_u64(vreinterpretq_u64_u32(b.q[i]));
        a.q[i] = vreinterpretq_u32_u64(vmull_u32(low_a, low_b));
    }
    return a;
}

static inline vec v_select_below(vec_words a, vec_words b, vec yes, vec no) {
    EACH_QUAD no.q[i] = vbslq_f32(vcltq_u32(a.q[i], b.q[i]), yes.q[i], no.q[i]);
    return no;
}

static inline vec v_select_highest_bit(vec_words words, vec yes, vec no) {
    EACH_QUAD no.q[i] = vbslq_f32(vcltzq_s32(vreinterpretq_s32_u32(words.q[i])), yes.q[i], no.q[i]);
    return no;
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

static inline vec v_load_bf16(const uint16_t *x) {
    vec r;
    EACH_QUAD r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x + 4 * i), 16));
    return r;
}

static inline vec v_load_fp16(const uint16_t *x) {
    vec r;
    EACH_QUAD r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + 4 * i)));
    return r;
}

static inline void v_store_bf16(uint16_t *x, vec a) {
    float row[LANES];
    v_store(row, a);
    for (int n = 0; n < LANES; ++n) x[n] = float_to_bf16(row[n]);
}

static inline void v_store_fp16(uint16_t *x, vec a) {
    float row[LANES];
    v_store(row, a);
    for (int n = 0; n < LANES; ++n) x[n] = float_to_fp16(row[n]);
}

/* Loads 2 LANES elements: bf16 as a vector of even and one of odd elements, by a shift and a mask; the other dtypes in
 * order. They come as bytes, since x may be memory of another type. */
static inline struct vec2 v_load2_bf16(const void *x) {
    const uint8_t *bytes = x;
    struct vec2 r;
    EACH_QUAD {
        const uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8(bytes + 16 * i));
        r.a.q[i] = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
        r.b.q[i] = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
    }
    return r;
}

/* Eight numbers become registers 2 i and 2 i + 1 of two vectors, one behind the other. */
static inline void put_halves(struct vec2 *r, int i, float32x4_t low, float32x4_t high) {
    if (QUADS == 1) {
        r->a.q[0] = low, r->b.q[0] = high;
        return;
    }
    vec *of = 2 * i < QUADS ? &r->a : &r->b;
    of->q[2 * i % QUADS] = low, of->q[(2 * i + 1) % QUADS] = high;
}

static inline struct vec2 v_load2_fp16(const void *x) {
    const uint8_t *bytes = x;
    struct vec2 r;
    EACH_QUAD {
        const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(bytes + 16 * i));
        put_halves(&r, i, vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves));
    }
    return r;
}

static inline struct vec2 v_load2_int8(const void *x) {
    const int8_t *bytes = x;
    struct vec2 r;
    EACH_QUAD {
        const int16x8_t words = vmovl_s8(vld1_s8(bytes + 8 * i));
        put_halves(&r, i, vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words)));
    }
    return r;
}

/* avx512.h says how. */
static inline struct vec2 v_load2_e4m3(const void *x) {
    const int8_t *bytes = x;
    struct vec2 r;
    EACH_QUAD {
        const uint16x8_t words = vreinterpretq_u16_s16(vmovl_s8(vld1_s8(bytes + 8 * i))), nan = vdupq_n_u16(0x3f80);
        const uint16x8_t magnitude = vandq_u16(vshlq_n_u16(words, 7), nan);
        const uint16x8_t nans = vandq_u16(vceqq_u16(magnitude, nan), vdupq_n_u16(0x7fff));
        const uint16x8_t sign = vandq_u16(words, vdupq_n_u16(0x8000));
        const float16x8_t halves = vreinterpretq_f16_u16(vorrq_u16(vorrq_u16(magnitude, nans), sign));
        put_halves(&r, i, vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves));
    }
    return r;
}

/* The registers of a vector become one, by their sums or their maxima. */
static inline float32x4_t quad_sum(vec a) {
    for (int i = 1; i < QUADS; ++i) a.q[0] = vaddq_f32(a.q[0], a.q[i]);
    return a.q[0];
}

static inline float32x4_t quad_highest(vec a) {
    for (int i = 1; i < QUADS; ++i) a.q[0] = vmaxnmq_f32(a.q[0], a.q[i]);
    return a.q[0];
}

/* The sums of the lanes of LANES vectors, in order. */
static inline vec v_sums(const vec x[LANES]) {
    vec r;
    EACH_QUAD {
        const vec *four = x + 4 * i;
        r.q[i] = vpaddq_f32(vpaddq_f32(quad_sum(four[0]), quad_sum(four[1])),
                            vpaddq_f32(quad_sum(four[2]), quad_sum(four[3])));
    }
    return r;
}

static inline float v_sum(vec a) { return vaddvq_f32(quad_sum(a)); }
static inline float v_highest(vec a) { return vmaxnmvq_f32(quad_highest(a)); }

/* 2^x begun: what is left are the polynomial of the fraction and the power of two. Of 16 lanes that is too much to be handed
 * to a function in registers. */
struct exp2_parts {
    vec whole, fraction;
};

QUADWISE_1(v_floor, vec, vec, vrndmq_f32)

/* On tiles the reference of a row lags behind its maximum, and x may be anything: 2^128 is infinite, or the next below. */
ALWAYS_INLINE struct exp2_parts v_exp2_start(vec x) {
    if (QUADS > 1) {
        EACH_QUAD x.q[i] = vminq_f32(x.q[i], vdupq_n_f32(128));
    }
    const vec whole = v_floor(x);
    return (struct exp2_parts){whole, v_sub(x, whole)};
}

/* The integer part of x is added to the exponent bits of the polynomial. Below -125 the result is 0, whatever the bits are,
 * since a denormal may be slow. A NaN stays one: its conversion is 0. Arguments are at most 127, or 128 exactly; those of a
 * softmax are at most 0 but where its reference lags. */
ALWAYS_INLINE vec v_exp2_scale(struct exp2_parts e, vec p) {
    EACH_QUAD {
        const int32x4_t shift = vshlq_n_s32(vcvtq_s32_f32(e.whole.q[i]), 23);
        p.q[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.q[i]), shift));
    }
    return v_select_less(e.whole, v_set(-125.0f), v_set(0), p);
}

/* Transposes 4 x 4 words. */
static inline void transpose_quads(uint32x4_t x[4]) {
    const uint64x2_t even[2] = {vreinterpretq_u64_u32(vtrn1q_u32(x[0], x[1])),
                                vreinterpretq_u64_u32(vtrn1q_u32(x[2], x[3]))};
    const uint64x2_t odd[2] = {vreinterpretq_u64_u32(vtrn2q_u32(x[0], x[1])), vreinterpretq_u64_u32(vtrn2q_u32(x[2], x[3]))};
    x[0] = vreinterpretq_u32_u64(vtrn1q_u64(even[0], even[1]));
    x[1] = vreinterpretq_u32_u64(vtrn1q_u64(odd[0], odd[1]));
    x[2] = vreinterpretq_u32_u64(vtrn2q_u64(even[0], even[1]));
    x[3] = vreinterpretq_u32_u64(vtrn2q_u64(odd[0], odd[1]));
}

/* Transposes LANES x LANES words, a square of 4 x 4 of them at a time. */
static inline void v_transpose(vec_words x[LANES]) {
    vec_words r[LANES];
    for (int from = 0; from < QUADS; ++from) EACH_QUAD {
            uint32x4_t square[4];
            for (int n = 0; n < 4; ++n) square[n] = x[4 * from + n].q[i];
            transpose_quads(square);
            for (int n = 0; n < 4; ++n) r[4 * i + n].q[from] = square[n];
        }
    for (int n = 0; n < LANES; ++n) x[n] = r[n];
}

QUADWISE_1(v_words, vec_words, vec, vreinterpretq_u32_f32)
QUADWISE_1(v_of_words, vec, vec_words, vreinterpretq_f32_u32)

static inline void v_transpose_floats(vec x[LANES]) {
    vec_words r[LANES];
    for (int n = 0; n < LANES; ++n) r[n] = v_words(x[n]);
    v_transpose(r);
    for (int n = 0; n < LANES; ++n) x[n] = v_of_words(r[n]);
}

#endif
