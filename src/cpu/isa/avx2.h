/* SPDX-License-Identifier: BSD-3-Clause
 *
 * avx2.h: the vector operations of level.h in AVX2, FMA and F16C: 8 lanes, 16 registers. */
#ifndef STROBE_CPU_ISA_AVX2_H
#define STROBE_CPU_ISA_AVX2_H

#include <immintrin.h>

#include "math/exp2.h"

/* The register tile of 4 keys (or columns of V) x 3 vectors of 8 queries is 12 vectors of sums, 3 operands and one
 * broadcast. */
enum { LANES = 8, VECTORS = 3, UNROLL = 4, REGISTERS = 16, SMALL_CACHES = 1 };

typedef __m256 vec;
typedef __m256i vec_words;
struct vec2 {
    vec a, b;
};

static inline vec v_load(const float *x) { return _mm256_loadu_ps(x); }
static inline void v_store(float *x, vec a) { _mm256_storeu_ps(x, a); }
static inline void v_store_parts(float *x, int64_t apart, vec a) {
    _mm_storeu_ps(x, _mm256_castps256_ps128(a));
    _mm_storeu_ps(x + apart, _mm256_extractf128_ps(a, 1));
}

static inline vec v_set(float x) { return _mm256_set1_ps(x); }
static inline vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec v_abs(vec a) { return _mm256_andnot_ps(v_set(-0.0f), a); }

static inline vec v_sqrt(vec a) { return _mm256_sqrt_ps(a); }
static inline vec v_min(vec a, vec b) { return _mm256_min_ps(a, b); }
static inline vec v_with_sign(vec a, vec sign) { return _mm256_or_ps(a, _mm256_and_ps(v_set(-0.0f), sign)); }
static inline vec v_reciprocal(vec a) { return _mm256_div_ps(v_set(1), a); }

static inline vec v_select_less(vec a, vec b, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline vec v_select_equal(vec a, vec b, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

static inline uint32_t v_equal_bits(vec a, vec b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }

static inline vec_words w_load(const uint32_t *x) { return _mm256_loadu_si256((const __m256i *)x); }

static inline vec_words w_set(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline vec_words w_add64(vec_words a, uint64_t b) { return _mm256_add_epi64(a, _mm256_set1_epi64x((int64_t)b)); }
static inline vec_words w_multiply(vec_words a, vec_words b) { return _mm256_mul_epu32(a, b); }
static inline vec_words w_high(vec_words a) { return _mm256_srli_epi64(a, 32); }
static inline vec_words w_xor3(vec_words a, vec_words b, vec_words c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
static inline vec_words w_join(vec_words a, vec_words b) { return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa); }

/* a < b as unsigned numbers: the maximum of both is not a. */
static inline vec v_select_below(vec_words a, vec_words b, vec yes, vec no) {
    return _mm256_blendv_ps(yes, no, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a)));
}

static inline vec_words w_double(vec_words a) { return _mm256_add_epi32(a, a); }

static inline vec v_select_highest_bit(vec_words words, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(words));
}

static inline uint32_t nonzero_bytes(const uint8_t *x) {
    const __m256i zero = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)x), _mm256_setzero_si256());
    return ~(uint32_t)_mm256_movemask_epi8(zero);
}

static inline vec v_load_bf16(const uint16_t *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

static inline vec v_load_fp16(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }

static inline void v_store_bf16(uint16_t *x, vec a) {
    const __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    const __m256i to_even = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(_mm256_srli_epi32(bits, 16), one));
    const vec rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, to_even));
    const vec quiet = _mm256_or_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    const vec result = _mm256_blendv_ps(rounded, quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_castps_si256(result), 16);
    _mm_storeu_si128((__m128i *)x, _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline void v_store_fp16(uint16_t *x, vec a) {
    _mm_storeu_si128((__m128i *)x, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

/* Loads 16 elements: bf16 as a vector of even and one of odd elements, by a shift and a mask; the other dtypes in order.
 * avx512.h says why they are read as volatile. */
static inline struct vec2 v_load2_bf16(const void *x) {
    const __m256i words = *(const volatile __m256i_u *)x;
    return (struct vec2){_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
                         _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-0x10000)))};
}

static inline struct vec2 v_load2_fp16(const void *x) {
    const __m256i words = *(const volatile __m256i_u *)x;
    return (struct vec2){_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                         _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}

static inline struct vec2 v_load2_int8(const void *x) {
    const __m128i bytes = *(const volatile __m128i_u *)x;
    return (struct vec2){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                         _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

/* avx512.h says how. */
static inline struct vec2 v_load2_e4m3(const void *x) {
    const __m128i bytes = *(const volatile __m128i_u *)x;
    const __m256i words = _mm256_cvtepi8_epi16(bytes), nan = _mm256_set1_epi16(0x3f80);
    const __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(words, 7), nan);
    const __m256i nans = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, nan), _mm256_set1_epi16(0x7fff));
    const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(-0x8000));
    const __m256i halves = _mm256_or_si256(_mm256_or_si256(magnitude, nans), sign);
    return (struct vec2){_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                         _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

/* The sums of the lanes of 8 vectors, in order. Each step halves the number of vectors and of lanes to add. */
static inline vec v_sums(const vec x[8]) {
    vec pair[4], quad[2];
    for (int i = 0; i < 4; ++i)
        pair[i] = v_add(_mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 2; ++i) {
        const __m256d even = _mm256_castps_pd(pair[2 * i]), odd = _mm256_castps_pd(pair[2 * i + 1]);
        quad[i] = v_add(_mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)), _mm256_castpd_ps(_mm256_unpackhi_pd(even, odd)));
    }
    return v_add(_mm256_permute2f128_ps(quad[0], quad[1], 0x20), _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
}

static inline float v_sum(vec a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

static inline float v_highest(vec a) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

/* 2^x begun: what is left are the polynomial of the fraction and the power of two. */
struct exp2_parts {
    vec whole, fraction;
};

static inline struct exp2_parts v_exp2_start(vec x) {
    const vec whole = _mm256_floor_ps(x);
    return (struct exp2_parts){whole, _mm256_sub_ps(x, whole)};
}

/* The integer part of x is added to the exponent bits of the polynomial. Below -125 the result is 0, whatever the bits are,
 * since a denormal would cost 60 times as much. The polynomial makes a NaN of a NaN, to which the conversion of no number
 * adds 0, and no comparison with it is true. Arguments are at most 127; those of a softmax are at most 0. */
static inline vec v_exp2_scale(struct exp2_parts e, vec p) {
    const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(e.whole), 23);
    const vec power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
    return _mm256_and_ps(power, _mm256_cmp_ps(e.whole, v_set(-125.0f), _CMP_NLT_UQ));
}

/* Transposes 8 x 8. */
static inline void v_transpose_floats(vec x[8]) {
    vec pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int n = 0; n < 2; ++n) {
            const __m256d a = _mm256_castps_pd(pair[i + n]), b = _mm256_castps_pd(pair[i + 2 + n]);
            quad[i + 2 * n] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            quad[i + 2 * n + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x20);
        x[4 + i] = _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x31);
    }
}

#endif
