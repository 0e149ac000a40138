/* SPDX-License-Identifier: BSD-3-Clause
 *
 * operand.h: the dtype that amx/forward.c and amx/backward.c are compiled for: bf16, or, with STROBE_AMX_fp16 or
 * STROBE_AMX_fp32, a wider dtype whose numbers are split. Tiles multiply bf16, which has 8 significant bits. A number of
 * fp16 has 11 bits and is the exact sum of two bf16 numbers, its parts; a number of fp32 has 24 bits and is the sum of
 * three. Each part is what the parts before it leave, rounded or cut to bf16 (Dekker, 1971; Henry, Tang and Heinecke, 2019,
 * for bf16). A product of two numbers is then a sum of products of parts. Those below the last bit of the dtype are left
 * out:
 *
 *     fp16    a1 b0 + a0 b0 + a0 b1
 *             a1 b1, 2^-18 of a b, is left out, but taken for S where lse is wanted, and in the backward for S and dP
 *     fp32    a2 b0 + a1 b0 + a1 b1 + a0 b1 + a0 b2 + a0 b0
 *             a1 b2, a2 b1 and smaller ones, 2^-26 of a b, are left out
 *
 * bf16 has the range of fp32, so no part overflows. A part below 2^-126 is lost, because tiles take denormals for zero. */
#ifndef STROBE_CPU_AMX_OPERAND_H
#define STROBE_CPU_AMX_OPERAND_H

#include <stdbool.h>

#include "core/element.h"
#include "cpu/level.h"

#if defined(STROBE_AMX_fp32)
typedef float number;
enum { PARTS = 3, PRODUCTS = 6, SCORE_PRODUCTS = 0 };
#define AMX_KERNEL(name) LEVEL_KERNEL(name##_fp32)
#elif defined(STROBE_AMX_fp16)
typedef uint16_t number;
enum { PARTS = 2, PRODUCTS = 4, SCORE_PRODUCTS = 1 };
#define AMX_KERNEL(name) LEVEL_KERNEL(name##_fp16)
#else
typedef uint16_t number;
enum { PARTS = 1, PRODUCTS = 1, SCORE_PRODUCTS = 0 };
#define AMX_KERNEL(name) LEVEL_KERNEL(name)
#endif

/* The parts that are multiplied, in this order. The first SCORE_PRODUCTS are for scores alone, where lse is wanted, and for
 * S and dP of the backward. From one product to the next one side changes, and the other stays in
 * its tiles. */
static const struct {
    int8_t a, b;
    bool fresh_a, fresh_b; /* it differs from the product before */
} products[PRODUCTS] = {
#if defined(STROBE_AMX_fp32)
    {2, 0, true, true},  {1, 0, true, false}, {1, 1, false, true},
    {0, 1, true, false}, {0, 2, false, true}, {0, 0, false, true},
#elif defined(STROBE_AMX_fp16)
    {1, 1, true, true},
    {1, 0, false, true},
    {0, 0, true, false},
    {0, 1, false, true},
#else
    {0, 0, true, true},
#endif
};

/* Takes a part from x: the upper half of each word of `bits`, which is x or x rounded. x becomes what is left, exactly. */
static inline vec_words take_part(vec *x, vec_words bits) {
    const vec_words part = w_and(bits, w_set(0xffff0000u));
    *x = v_sub(*x, v_of_words(part));
    return part;
}

/* The part by truncation. */
static inline vec_words cut_part(vec *x) { return take_part(x, v_words(*x)); }

/* The part to nearest. What is left is then half as large and of either sign, so the products left out have no bias. */
static inline vec_words round_part(vec *x) { return take_part(x, w_add(v_words(*x), w_set(0x8000))); }

#if defined(STROBE_AMX_fp16) || defined(STROBE_AMX_fp32)
/* The part to nearest, but cut where rounding would give an infinity. */
static inline __m512i round_any_part(vec *x) {
    const __m512i bits = _mm512_castps_si512(*x), size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 fits = _mm512_cmp_epi32_mask(size, _mm512_set1_epi32(0x7f7f8000), _MM_CMPINT_LT);
    return take_part(x, _mm512_mask_add_epi32(bits, fits, bits, _mm512_set1_epi32(0x8000)));
}

/* The upper halves of the words of two vectors, in one vector. */
static inline __m512i join_upper(__m512i low, __m512i high) {
    const __m512i odd = _mm512_set_epi32(0x003f003d, 0x003b0039, 0x00370035, 0x00330031, 0x002f002d, 0x002b0029, 0x00270025,
                                         0x00230021, 0x001f001d, 0x001b0019, 0x00170015, 0x00130011, 0x000f000d, 0x000b0009,
                                         0x00070005, 0x00030001);
    return _mm512_permutex2var_epi16(low, odd, high);
}

/* Splits 32 columns of a row: 16 in `low` and 16 in `high`, the parts in the upper halves of words. Columns that do not
 * exist are 0 and not read. */
static inline void split_words(vec_words low[PARTS], vec_words high[PARTS], const number *x, int64_t columns) {
    const __mmask32 mask = columns_mask(columns);
#if defined(STROBE_AMX_fp32)
    vec first = _mm512_maskz_loadu_ps((__mmask16)mask, x),
        second = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + LANES);
#else
    const __m512i raw = _mm512_maskz_loadu_epi16(mask, x);
    vec first = _mm512_cvtph_ps(_mm512_castsi512_si256(raw)), second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(raw, 1));
#endif
    low[0] = round_any_part(&first);
    high[0] = round_any_part(&second);
    for (int n = 1; n < PARTS; ++n) {
        low[n] = cut_part(&first);
        high[n] = cut_part(&second);
    }
}

/* The same in the order of columns. */
static inline void split_columns(__m512i parts[PARTS], const number *x, int64_t columns) {
    vec_words low[PARTS], high[PARTS];
    split_words(low, high, x, columns);
    for (int n = 0; n < PARTS; ++n) parts[n] = join_upper(low[n], high[n]);
}
#endif

/* Loads 32 columns of a row in parts. Columns from `columns` on are 0 and not read. */
static inline void load_parts(vec_words parts[PARTS], const number *x, int64_t columns) {
    if (columns <= 0) {
        for (int n = 0; n < PARTS; ++n) parts[n] = w_set(0);
        return;
    }
#if defined(STROBE_AMX_fp16) || defined(STROBE_AMX_fp32)
    split_columns(parts, x, columns);
#else
    parts[0] = w_load_some(x, columns);
#endif
}

/* Whether 32 columns of a row are finite. */
static inline bool columns_are_finite(const number *x, int64_t columns) {
#if defined(STROBE_AMX_fp32)
    const __mmask32 mask = columns_mask(columns);
    const __m512i size = _mm512_set1_epi32(0x7fffffff), infinity = _mm512_set1_epi32(0x7f800000);
    const __m512i low = _mm512_and_si512(size, _mm512_maskz_loadu_epi32((__mmask16)mask, x));
    const __m512i high = _mm512_and_si512(size, _mm512_maskz_loadu_epi32((__mmask16)(mask >> 16), x + LANES));
    return !_mm512_cmp_epi32_mask(_mm512_max_epi32(low, high), infinity, _MM_CMPINT_NLT);
#else
    return !w_some_have(w_load_some(x, columns), PARTS == 1 ? 0x7f80 : 0x7c00);
#endif
}

static inline float to_float(number x) {
#if defined(STROBE_AMX_fp32)
    return x;
#elif defined(STROBE_AMX_fp16)
    return fp16_to_float(x);
#else
    return bf16_to_float(x);
#endif
}

/* Two vectors of fp32 as 2 LANES columns of the 16-bit dtype. */
static inline vec_words round_columns(vec low, vec high) {
#if defined(STROBE_AMX_fp16)
    return w_round_fp16(low, high);
#else
    return w_round_bf16(low, high);
#endif
}

/* Results are written in words of 32 bits: one column of fp32, or two of 16 bits. */
enum { COLUMNS_A_WORD = (int)(sizeof(uint32_t) / sizeof(number)) };

/* One word in each lane: a column of fp32, or two columns rounded to the 16-bit dtype. */
static inline vec_words round_word(vec first, vec second) {
#if defined(STROBE_AMX_fp32)
    (void)second;
    return _mm512_castps_si512(first);
#elif defined(STROBE_AMX_fp16)
    enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(first, nearest));
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_cvtps_ph(second, nearest)), 16));
#else
    return v_pair_even(first, second);
#endif
}

/* Stores 16 words of a row, of which `columns` columns exist. stream: a store of a whole line bypasses the caches. */
static inline void store_words(number *to, vec_words words, int64_t columns, bool stream) {
    if (stream && columns >= LANES * COLUMNS_A_WORD && (uintptr_t)to % 64 == 0)
        w_stream(to, words);
    else
#if defined(STROBE_AMX_fp32)
        v_store_some(to, v_of_words(words), columns);
#else
        w_store_some(to, words, columns);
#endif
}

/* The same of fp32 results, whatever the kernel's dtype. */
static inline void store_floats(float *to, vec x, int64_t columns, bool stream) {
    if (stream && columns >= LANES && (uintptr_t)to % 64 == 0)
        v_stream(to, x);
    else
        v_store_some(to, x, columns);
}

#endif
