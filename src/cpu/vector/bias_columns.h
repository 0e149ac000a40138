/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bias_columns.h: scores += bias in AVX-512, for rows of a bias of 16 or 32 bits that differ from each other. Scores have
 * query rows across the lanes, the bias has keys side by side, so it is transposed on the way, without being widened first:
 *
 *     copies            of whole cache lines, one of each row
 *     four loads        y[i]: 16 bytes of each of the rows i, 4 + i, 8 + i and 12 + i, a lane of 128 bits each
 *     eight shuffles    4 x 4 words in each lane of 128 bits: word n of all 16 rows
 *
 * A word is a key in fp32 and a pair of keys in 16 bits, which a shift and a mask make two vectors. */
#ifndef STROBE_CPU_BIAS_COLUMNS_H
#define STROBE_CPU_BIAS_COLUMNS_H

#include <math.h>

#include "cpu/vector/tile.h"
#include "strobe/strobe.h"

enum { COLUMN_WORDS = 4, COLUMN_BYTES = 64 }; /* of a row: words transposed, bytes copied at once */

/* Copies whole cache lines of the rows, which often lie a multiple of 4 KiB apart: 16 such lines fall into one set of the
 * cache and would push each other out before all of their words are transposed. */
ALWAYS_INLINE void copy_lines(char to[LANES][COLUMN_BYTES], const char *data, const int64_t at[LANES], int64_t bytes) {
    for (int r = 0; r < LANES; ++r) _mm512_store_si512(to[r], _mm512_loadu_si512(data + at[r] * bytes));
}

/* Words 0 to 3 of 16 rows, which begin COLUMN_BYTES apart: x[n] has word n of row r in lane r. */
ALWAYS_INLINE void load_columns(__m512i x[COLUMN_WORDS], const char *rows) {
    __m512i y[4];
    for (int i = 0; i < 4; ++i) {
        y[i] = _mm512_castsi128_si512(_mm_load_si128((const __m128i *)(const void *)(rows + i * COLUMN_BYTES)));
        for (int lane = 1; lane < 4; ++lane) {
            const void *row = rows + (4 * lane + i) * COLUMN_BYTES;
            y[i] = _mm512_mask_broadcast_i32x4(y[i], (__mmask16)(0xf << 4 * lane), _mm_load_si128((const __m128i *)row));
        }
    }
    const __m512i low = _mm512_unpacklo_epi32(y[0], y[1]), high = _mm512_unpackhi_epi32(y[0], y[1]);
    const __m512i low2 = _mm512_unpacklo_epi32(y[2], y[3]), high2 = _mm512_unpackhi_epi32(y[2], y[3]);
    x[0] = _mm512_unpacklo_epi64(low, low2);
    x[1] = _mm512_unpackhi_epi64(low, low2);
    x[2] = _mm512_unpacklo_epi64(high, high2);
    x[3] = _mm512_unpackhi_epi64(high, high2);
}

/* Whether one of the words holds a -inf. */
ALWAYS_INLINE bool columns_hide(const __m512i x[COLUMN_WORDS], strobe_dtype dtype) {
    uint32_t equal = 0;
    for (int n = 0; n < COLUMN_WORDS; ++n)
        equal |= dtype == STROBE_FP32
                     ? (uint32_t)_mm512_cmpeq_epi32_mask(x[n], _mm512_set1_epi32((int)0xff800000u))
                     : _mm512_cmpeq_epi16_mask(x[n], _mm512_set1_epi16((short)(dtype == STROBE_BF16 ? 0xff80 : 0xfc00)));
    return equal != 0;
}

/* The first or the second key of a word. */
ALWAYS_INLINE vec column_of(__m512i word, bool second, strobe_dtype dtype) {
    if (dtype == STROBE_FP32) return _mm512_castsi512_ps(word);
    if (dtype == STROBE_FP16) return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(second ? _mm512_srli_epi32(word, 16) : word));
    return _mm512_castsi512_ps(second ? _mm512_and_si512(word, _mm512_set1_epi32(-0x10000)) : _mm512_slli_epi32(word, 16));
}

/* s = scale s + bias in LANES rows that lie across the lanes at s; a key is TILE_ROWS behind the one before. It takes as
 * many of the keys as are whole groups of words, and returns how many. Where the bias is -inf the score becomes that,
 * whatever it was, and `hidden` is set. */
ALWAYS_INLINE int64_t bias_columns_of(float *s, const char *data, const int64_t at[LANES], strobe_dtype dtype, int64_t keys,
                                      float scale, bool *hidden) {
    const int64_t bytes = dtype == STROBE_FP32 ? 4 : 2, keys_a_word = 4 / bytes, group = keys_a_word * COLUMN_WORDS;
    const vec factor = v_set(scale), none = v_set(-INFINITY);
    _Alignas(64) char lines[LANES][COLUMN_BYTES];
    int64_t j = 0;
    for (; j + COLUMN_BYTES / bytes <= keys; data += COLUMN_BYTES) {
        copy_lines(lines, data, at, bytes);
        for (int64_t byte = 0; byte < COLUMN_BYTES; byte += group * bytes, j += group, s += group * TILE_ROWS) {
            __m512i x[COLUMN_WORDS];
            load_columns(x, lines[0] + byte);
            const bool some = columns_hide(x, dtype);
            *hidden = *hidden || some;
            for (int64_t n = 0; n < group; ++n) {
                const vec bias = column_of(x[n / keys_a_word], n % keys_a_word != 0, dtype);
                vec score = v_fma(v_load(s + n * TILE_ROWS), factor, bias);
                if (some) score = v_select_equal(bias, none, none, score);
                v_store(s + n * TILE_ROWS, score);
            }
        }
    }
    return j;
}

/* The same for each dtype, of none of the keys in float64. */
ALWAYS_INLINE int64_t bias_columns(float *s, const strobe_bias *bias, const int64_t at[LANES], int64_t j0, int64_t keys,
                                   float scale, bool *hidden) {
    const char *data = bias->data;
    if (bias->dtype == STROBE_BF16) return bias_columns_of(s, data + 2 * j0, at, STROBE_BF16, keys, scale, hidden);
    if (bias->dtype == STROBE_FP16) return bias_columns_of(s, data + 2 * j0, at, STROBE_FP16, keys, scale, hidden);
    if (bias->dtype == STROBE_FP32) return bias_columns_of(s, data + 4 * j0, at, STROBE_FP32, keys, scale, hidden);
    return 0;
}

#endif
