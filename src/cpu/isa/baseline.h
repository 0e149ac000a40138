/* SPDX-License-Identifier: BSD-3-Clause
 *
 * baseline.h: the vector operations of level.h in plain C, with 4 lanes, by the vector extension that gcc and clang share.
 * The compiler makes it SSE2 on x86-64, and what it finds elsewhere. */
#ifndef STROBE_CPU_ISA_BASELINE_H
#define STROBE_CPU_ISA_BASELINE_H

#include <math.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "math/exp2.h"
#include "math/fp8.h"

/* The register tile of 4 keys x 2 vectors is 8 vectors of sums, 2 operands, a broadcast and, without FMA, a product. */
enum { LANES = 4, VECTORS = 2, UNROLL = 4, REGISTERS = 16, SMALL_CACHES = 0 };

typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_bits __attribute__((vector_size(16)));
typedef uint32_t vec_words __attribute__((vector_size(16)));
typedef uint64_t vec_pairs __attribute__((vector_size(16)));
struct vec2 {
    vec a, b;
};

static inline vec v_load(const float *x) {
    vec a;
    memcpy(&a, x, sizeof a);
    return a;
}

static inline void v_store(float *x, vec a) { memcpy(x, &a, sizeof a); }
static inline void v_store_parts(float *x, int64_t apart, vec a) {
    (void)apart;
    v_store(x, a);
}

static inline vec v_set(float x) { return (vec){x, x, x, x}; }
static inline vec v_add(vec a, vec b) { return a + b; }
static inline vec v_sub(vec a, vec b) { return a - b; }
static inline vec v_mul(vec a, vec b) { return a * b; }
static inline vec v_div(vec a, vec b) { return a / b; }
static inline vec v_fma(vec a, vec b, vec c) { return a * b + c; }

static inline vec v_pick(vec_bits where, vec yes, vec no) {
    return (vec)(((vec_bits)yes & where) | ((vec_bits)no & ~where));
}

static inline vec v_max(vec a, vec b) { return v_pick(a > b, a, b); }
static inline vec v_abs(vec a) { return (vec)((vec_bits)a & 0x7fffffff); }
static inline vec v_sqrt(vec a) { return (vec){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
static inline vec v_min(vec a, vec b) { return v_pick(a < b, a, b); }
static inline vec v_with_sign(vec a, vec sign) { return (vec)((vec_bits)a | ((vec_bits)sign & INT32_MIN)); }
static inline vec v_reciprocal(vec a) { return v_set(1) / a; }

static inline vec v_select_less(vec a, vec b, vec yes, vec no) { return v_pick(a < b, yes, no); }
static inline vec v_select_equal(vec a, vec b, vec yes, vec no) { return v_pick(a == b, yes, no); }

static inline uint32_t v_equal_bits(vec a, vec b) {
    const vec_bits where = a == b;
    return (uint32_t)((where[0] & 1) | (where[1] & 2) | (where[2] & 4) | (where[3] & 8));
}

static inline vec_words w_load(const uint32_t *x) {
    vec_words a;
    memcpy(&a, x, sizeof a);
    return a;
}

static inline vec_words w_set(uint32_t x) { return (vec_words){x, x, x, x}; }
static inline vec_words w_add64(vec_words a, uint64_t b) { return (vec_words)((vec_pairs)a + (vec_pairs){b, b}); }
static inline vec_words w_high(vec_words a) { return (vec_words)((vec_pairs)a >> 32); }
static inline vec_words w_xor3(vec_words a, vec_words b, vec_words c) { return a ^ b ^ c; }
static inline vec_words w_join(vec_words a, vec_words b) { return (vec_words){a[0], b[0], a[2], b[2]}; }

static inline vec_words w_multiply(vec_words a, vec_words b) {
#if defined(__SSE2__) /* which gcc 12 does not find by itself */
    return (vec_words)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (vec_words)(vec_pairs){(uint64_t)a[0] * b[0], (uint64_t)a[2] * b[2]};
#endif
}

static inline vec v_select_below(vec_words a, vec_words b, vec yes, vec no) { return v_pick((vec_bits)(a < b), yes, no); }

static inline vec_words w_double(vec_words a) { return a + a; }

static inline vec v_select_highest_bit(vec_words words, vec yes, vec no) { return v_pick((vec_bits)words < 0, yes, no); }

/* Eight bytes at a time: the top bit of each says whether it is not 0, and a product gathers the eight. */
static inline uint32_t nonzero_bytes(const uint8_t *x) {
    const uint64_t low = 0x7f7f7f7f7f7f7f7fu;
    uint32_t bits = 0;
    for (int n = 0; n < 4; ++n) {
        uint64_t bytes;
        memcpy(&bytes, x + 8 * n, sizeof bytes);
        const uint64_t nonzero = (((bytes & low) + low) | bytes) >> 7 & 0x0101010101010101u;
        bits |= (uint32_t)(nonzero * 0x0102040810204080u >> 56) << 8 * n;
    }
    return bits;
}

static inline vec v_load_bf16(const uint16_t *x) {
    return (vec){bf16_to_float(x[0]), bf16_to_float(x[1]), bf16_to_float(x[2]), bf16_to_float(x[3])};
}

static inline vec v_load_fp16(const uint16_t *x) {
    return (vec){fp16_to_float(x[0]), fp16_to_float(x[1]), fp16_to_float(x[2]), fp16_to_float(x[3])};
}

static inline void v_store_bf16(uint16_t *x, vec a) {
    for (int n = 0; n < LANES; ++n) x[n] = float_to_bf16(a[n]);
}

static inline void v_store_fp16(uint16_t *x, vec a) {
    for (int n = 0; n < LANES; ++n) x[n] = float_to_fp16(a[n]);
}

/* Loads 8 elements: bf16 as a vector of even and one of odd elements, by a shift and a mask, which is right on little-endian
 * machines, the only ones supported; the other dtypes in order. */
static inline struct vec2 v_load2_bf16(const void *x) {
    vec_words words;
    memcpy(&words, x, sizeof words);
    return (struct vec2){(vec)(words << 16), (vec)(words & 0xffff0000u)};
}

static inline struct vec2 v_load2_fp16(const void *x) {
    uint16_t words[2 * LANES]; /* x may be memory of another type */
    memcpy(words, x, sizeof words);
    return (struct vec2){v_load_fp16(words), v_load_fp16(words + LANES)};
}

static inline struct vec2 v_load2_int8(const void *x) {
    const int8_t *i = x;
    return (struct vec2){{i[0], i[1], i[2], i[3]}, {i[4], i[5], i[6], i[7]}};
}

static inline struct vec2 v_load2_e4m3(const void *x) {
    const uint8_t *bytes = x;
    float wide[2 * LANES];
    for (int i = 0; i < 2 * LANES; ++i) wide[i] = e4m3_to_float(bytes[i]) * 0x1p-8f;
    return (struct vec2){v_load(wide), v_load(wide + LANES)};
}

static inline float v_sum(vec a) { return a[0] + a[2] + (a[1] + a[3]); }

static inline float v_highest(vec a) {
    const float even = a[0] > a[2] ? a[0] : a[2], odd = a[1] > a[3] ? a[1] : a[3];
    return even > odd ? even : odd;
}

/* The sums of the lanes of 4 vectors, in order. */
static inline vec v_sums(const vec x[4]) { return (vec){v_sum(x[0]), v_sum(x[1]), v_sum(x[2]), v_sum(x[3])}; }

/* 2^x begun: what is left are the polynomial of the fraction and the power of two. */
struct exp2_parts {
    vec x, whole, fraction;
};

/* Adding and subtracting 1.5 * 2^23 rounds x to an integer, which is corrected to the floor. */
static inline struct exp2_parts v_exp2_start(vec x) {
    const vec clamped = v_pick(x < v_set(-126.0f), v_set(-126.0f), x);
    const vec rounded = (clamped + v_set(12582912.0f)) - v_set(12582912.0f);
    const vec whole = rounded - v_pick(rounded > clamped, v_set(1.0f), v_set(0.0f));
    return (struct exp2_parts){x, whole, clamped - whole};
}

/* The integer part of x is added to the exponent bits of the polynomial. Below -125 the result is 0, since a denormal would
 * be slow. Arguments are at most 127; those of a softmax are at most 0. */
static inline vec v_exp2_scale(struct exp2_parts e, vec p) {
    const vec_words shift = ((vec_words)(e.whole + v_set(12582912.0f)) - 0x4b400000u)
                            << 23; /* a NaN gives any bits, which are not kept */
    const vec kept = v_pick(e.x < v_set(-125.0f), v_set(0.0f), (vec)((vec_words)p + shift));
    return v_pick(e.x == e.x, kept, e.x);
}

/* Transposes 4 x 4. */
static inline void v_transpose_floats(vec x[4]) {
    const vec a = x[0], b = x[1], c = x[2], d = x[3];
    for (int i = 0; i < 4; ++i) x[i] = (vec){a[i], b[i], c[i], d[i]};
}

#endif
