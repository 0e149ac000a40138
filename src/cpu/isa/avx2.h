/* SPDX-License-Identifier: BSD-3-Clause
 *
 * avx2.h: the vocabulary of vector operations (see level.h) in AVX2, FMA and F16C: 8 lanes, 16 registers. */
#ifndef STROBE_CPU_ISA_AVX2_H
#define STROBE_CPU_ISA_AVX2_H

#include <immintrin.h>

#include "math/exp2.h"

/* Register tile: 4 keys (or columns of V) x 3 vectors of 8 queries is 12 accumulators, 3 operands and one broadcast. */
enum { LANES = 8, VECTORS = 3, UNROLL = 4 };

typedef __m256 vec;

static inline vec v_load(const float *x) { return _mm256_loadu_ps(x); }
static inline void v_store(float *x, vec a) { _mm256_storeu_ps(x, a); }
static inline vec v_set(float x) { return _mm256_set1_ps(x); }
static inline vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec v_abs(vec a) { return _mm256_andnot_ps(v_set(-0.0f), a); }

static inline vec v_select_less(vec a, vec b, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline vec v_select_equal(vec a, vec b, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

static inline vec v_load_bf16(const uint16_t *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

static inline vec v_load_fp16(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }

/* The exponent is added to the bits of the polynomial. Below -125 the result is 0 (a denormal would cost 60 times as much);
 * the order of max's operands lets a NaN through. Arguments are at most 127: the softmax's are at most 0. */
static inline vec v_exp2(vec x) {
    const vec clamped = _mm256_max_ps(v_set(-126.0f), x);
    const vec whole = _mm256_floor_ps(clamped), f = _mm256_sub_ps(clamped, whole);
    vec p = v_fma(v_set(EXP2_C5), f, v_set(EXP2_C4));
    p = v_fma(p, f, v_set(EXP2_C3));
    p = v_fma(p, f, v_set(EXP2_C2));
    p = v_fma(p, f, v_set(EXP2_C1));
    p = v_fma(p, f, v_set(EXP2_C0));
    const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
    const vec power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
    const vec kept = v_select_less(x, v_set(-125.0f), v_set(0.0f), power);
    return _mm256_blendv_ps(kept, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#endif
