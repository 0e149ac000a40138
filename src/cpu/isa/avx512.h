/* SPDX-License-Identifier: BSD-3-Clause
 *
 * avx512.h: the vector operations of level.h in AVX-512 F, DQ, BW and VL: 16 lanes, 32 registers. */
#ifndef STROBE_CPU_ISA_AVX512_H
#define STROBE_CPU_ISA_AVX512_H

#include <immintrin.h>

#include "math/exp2.h"

/* The register tile of 8 keys (or columns of V) x 3 vectors of 16 queries is 24 vectors of sums and 3 operands, with
 * broadcasts from memory. */
#if defined(STROBE_TILES)
enum {
    LANES = 16,
    VECTORS = 2,
    UNROLL = 8,
    REGISTERS = 32,
    SMALL_CACHES = 0
}; /* a tile of queries is two AMX tiles of 16 */
#else
enum { LANES = 16, VECTORS = 3, UNROLL = 8, REGISTERS = 32, SMALL_CACHES = 0 };
#endif

typedef __m512 vec;
typedef __m512i vec_words;
struct vec2 {
    vec a, b;
};

static inline vec v_load(const float *x) { return _mm512_loadu_ps(x); }
static inline void v_store(float *x, vec a) { _mm512_storeu_ps(x, a); }
static inline void v_store_parts(float *x, int64_t apart, vec a) {
    _mm256_storeu_ps(x, _mm512_castps512_ps256(a));
    _mm256_storeu_ps(x + apart, _mm512_extractf32x8_ps(a, 1));
}

static inline vec v_set(float x) { return _mm512_set1_ps(x); }
static inline vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec v_abs(vec a) { return _mm512_abs_ps(a); }

static inline vec v_sqrt(vec a) { return _mm512_sqrt_ps(a); }
static inline vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }

static inline vec v_with_sign(vec a, vec sign) {
    const __m512i bits = _mm512_castps_si512(sign), of_sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(of_sign, bits, _mm512_castps_si512(a), 0xea)); /* (0 & 1) | 2 */
}

/* A step of Newton's makes 28 bits of 14, in a fifth of a division's time. */
static inline vec v_reciprocal(vec a) {
    const vec estimate = _mm512_rcp14_ps(a);
    return _mm512_fmadd_ps(estimate, _mm512_fnmadd_ps(a, estimate, v_set(1)), estimate);
}

static inline vec v_select_less(vec a, vec b, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

static inline vec v_select_equal(vec a, vec b, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), no, yes);
}

static inline uint32_t v_equal_bits(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

static inline vec_words w_load(const uint32_t *x) { return _mm512_loadu_si512(x); }

static inline vec_words w_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline vec_words w_add64(vec_words a, uint64_t b) { return _mm512_add_epi64(a, _mm512_set1_epi64((int64_t)b)); }
static inline vec_words w_multiply(vec_words a, vec_words b) { return _mm512_mul_epu32(a, b); }
static inline vec_words w_high(vec_words a) { return _mm512_srli_epi64(a, 32); }
static inline vec_words w_xor3(vec_words a, vec_words b, vec_words c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
static inline vec_words w_join(vec_words a, vec_words b) { return _mm512_mask_shuffle_epi32(a, 0xaaaa, b, _MM_PERM_CCAA); }

static inline vec v_select_below(vec_words a, vec_words b, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_cmplt_epu32_mask(a, b), no, yes);
}

static inline vec_words w_double(vec_words a) { return _mm512_add_epi32(a, a); }

static inline vec v_select_highest_bit(vec_words words, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(words), no, yes);
}

static inline uint32_t nonzero_bytes(const uint8_t *x) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)x);
    return _mm256_test_epi8_mask(bytes, bytes);
}

static inline vec v_load_bf16(const uint16_t *x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
}

static inline vec v_load_fp16(const uint16_t *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }

static inline void v_store_bf16(uint16_t *x, vec a) {
    const __m512i bits = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
    const __m512i to_even = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(_mm512_srli_epi32(bits, 16), one));
    const __m512i rounded = _mm512_add_epi32(bits, to_even), quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i result = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256((__m256i *)x, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

static inline void v_store_fp16(uint16_t *x, vec a) {
    _mm256_storeu_si256((__m256i *)x, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

/* Loads 32 elements, of 16 bits a whole cache line: bf16 as a vector of even and one of odd elements, by a shift and a mask;
 * the other dtypes in order. They are read as volatile, because compilers fold the load into both instructions that use it:
 * the line is then loaded twice, which costs bandwidth. */
static inline struct vec2 v_load2_bf16(const void *x) {
    const __m512i words = *(const volatile __m512i_u *)x;
    return (struct vec2){_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)))};
}

static inline struct vec2 v_load2_fp16(const void *x) {
    const __m512i words = *(const volatile __m512i_u *)x;
    return (struct vec2){_mm512_cvtph_ps(_mm512_castsi512_si256(words)),
                         _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1))};
}

static inline struct vec2 v_load2_int8(const void *x) {
    const __m128i *bytes = x;
    return (struct vec2){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes))),
                         _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)))};
}

/* 16 numbers of e4m3 over 256, which fp16 with its bias of 15 makes of their bits. */
static inline vec v_from_e4m3(__m128i bytes) {
    const __m256i words = _mm256_cvtepi8_epi16(bytes), nan = _mm256_set1_epi16(0x3f80);
    const __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(words, 7), nan);
    const __m256i nans = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, nan), _mm256_set1_epi16(0x7fff));
    const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(-0x8000));
    return _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(magnitude, nans), sign));
}

static inline struct vec2 v_load2_e4m3(const void *x) {
    const __m128i *bytes = x;
    return (struct vec2){v_from_e4m3(_mm_loadu_si128(bytes)), v_from_e4m3(_mm_loadu_si128(bytes + 1))};
}

/* The sums of the lanes of 16 vectors, in order. Each step halves the number of vectors and of lanes to add. */
static inline vec v_sums(const vec x[16]) {
    vec pair[8], quad[4], half[2];
    for (int i = 0; i < 8; ++i)
        pair[i] = v_add(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 4; ++i) {
        const __m512d even = _mm512_castps_pd(pair[2 * i]), odd = _mm512_castps_pd(pair[2 * i + 1]);
        quad[i] = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)), _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    }
    for (int i = 0; i < 2; ++i)
        half[i] = v_add(_mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0x88),
                        _mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0xdd));
    return v_add(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
}

static inline float v_sum(vec a) { return _mm512_reduce_add_ps(a); }
static inline float v_highest(vec a) { return _mm512_reduce_max_ps(a); }

/* 2^x begun: what is left are the polynomial of the fraction and the power of two. */
struct exp2_parts {
    vec x, fraction;
};

/* vreduce gives x - floor(x) and vscalef multiplies by 2^floor(x), so nothing is rounded or clamped. exp2(-inf) = 0, and a
 * NaN stays a NaN. */
static inline struct exp2_parts v_exp2_start(vec x) {
    return (struct exp2_parts){x, _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF)};
}

static inline vec v_exp2_scale(struct exp2_parts e, vec p) { return _mm512_scalef_ps(p, e.x); }

/* Transposes 16 x 16 words of 32 bits. */
static inline void v_transpose(__m512i r[16]) {
    __m512i t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int c = 0; c < 4; ++c) { /* u[4 i + c] holds the columns c, 4 + c, 8 + c, 12 + c of the rows 4 i to 4 i + 3 */
        const __m512i even_low = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
        r[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        r[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        r[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        r[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

static inline void v_transpose_floats(vec x[16]) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(x[i]);
    v_transpose(r);
    for (int i = 0; i < 16; ++i) x[i] = _mm512_castsi512_ps(r[i]);
}

#endif
