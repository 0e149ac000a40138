/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.h: products of int8 K and V with fp32 rows, on tiles of bytes. An instruction multiplies 16 rows of 64 bytes (A) by
 * 16 rows of 16 quads (B; a quad is four bytes in one word, and row r holds the elements 4 r to 4 r + 3 of 16 columns) and
 * adds to 16 x 16 int32 (C), exactly. A row of fp32 numbers is scaled and rounded to integers of 31 bits, each of which is
 * the sum of four signed bytes, its digits:
 *
 *     x = scale (d0 + 256 d1 + 65536 d2 + 2^24 d3),  each d in -128..127
 *
 * This is at least as exact as fp32 where the largest products decide a sum, as they do here. A query tile is up to four
 * rows. For S, four digits of four rows fill the 16 columns of B. For O, one digit of four rows, placed once for each byte
 * of V's quads, fills the 16 rows of A:
 *
 *     S    [16 keys][4 digits][4 rows]              += K [16 keys][64 columns]                    Q [16 quads][4 digits][4
 * rows] O_d  [4 columns of a quad][4 rows][16 quads]  += P_d [4 columns of a quad][4 rows][16 keys]   V [16 keys][16 quads]
 *
 * K and V are operands as they lie in memory. A quad of V holds four columns of one key, where the instruction wants four
 * keys of one column. So each word of P_d has one byte that is not zero, and that byte picks the column. */
#ifndef STROBE_CPU_AMX_BYTES_H
#define STROBE_CPU_AMX_BYTES_H

#include "cpu/amx/prefetch.h"

enum {
    QUERY_ROWS = 4, /* of a query tile */
    DIGITS = 4,     /* of an element of q, and of P where results are fp32 */
    FEW_DIGITS = 2, /* of P where results have 16 bits */
    QUAD = 4,
    TILE_BYTES = 1024,
    TILE_WORDS = 256,
    QUERY_SCORES = BLOCK_KEYS * QUERY_ROWS, /* of a query tile and a block of keys */
};

/* Scores and P of a query tile lie in vectors of 4 keys x QUERY_ROWS rows: vector i of 16 keys holds the keys i, 4 + i, 8 +
 * i and 12 + i. */

/* The digits of 16 integers below 2^30 in magnitude, four bytes in each word. */
static inline __m512i digits_of(__m512i x) {
    const __m512i half = _mm512_set1_epi32(0x00808080);
    return _mm512_xor_si512(_mm512_add_epi32(x, half), half);
}

/* The greatest, and the sum, of the four lanes of each row in a vector of 4 keys x QUERY_ROWS rows, in all four lanes. */
static inline vec rows_highest(vec x) {
    x = v_max(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return v_max(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

static inline vec rows_sum(vec x) {
    x = v_add(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return v_add(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

/* ------------------------------------------------------------------------------------------------------------ scores -- */

/* Packs row r of a query tile, `row` [padded to 64 columns], as digits into the operands B at q. Returns its greatest
 * magnitude, which becomes the integer 2^30. */
static inline float pack_digits(uint8_t *q, int64_t r, const float *row, int64_t padded) {
    const __m512i quads = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    vec greatest = v_set(0);
    for (int64_t c = 0; c < padded; c += LANES) greatest = v_max(greatest, v_abs(v_load(row + c)));
    const float high = v_highest(greatest), factor = high > 0 ? 0x1p30f / high : 0;
    for (int64_t c = 0; c < padded; c += LANES) {
        uint32_t words[LANES]; /* [quad][digit] */
        const __m512i x = digits_of(_mm512_cvtps_epi32(v_mul(v_load(row + c), v_set(factor))));
        _mm512_storeu_si512(words, _mm512_shuffle_epi8(x, quads));
        for (int64_t i = 0; i < LANES; ++i)
            memcpy(q + (c / QUAD + i / DIGITS) * LINE + (i % DIGITS * QUERY_ROWS + r) * QUAD, words + i, sizeof *words);
    }
    return high;
}

/* S of the 16 keys of tile n, in tile register n. */
#define SCORE_BYTES(n)                                                  \
    _tile_zero(n);                                                      \
    for (int64_t c = 0; c < padded; c += LINE) {                        \
        prefetch_line(prefetch, n, c);                                  \
        _tile_loadd(6, q + c / LINE * TILE_BYTES, LINE);                \
        _tile_loadd(4, k + (n)*TILE_SIDE * stride + c, (size_t)stride); \
        _tile_dpbssd(n, 4, 6);                                          \
    }                                                                   \
    _tile_stored(n, s + (n)*TILE_WORDS, LINE)

/* S of a block of keys, s [64 keys][4 digits][QUERY_ROWS]. */
static void score_bytes(int32_t *s, const int8_t *k, int64_t stride, const uint8_t *q, int64_t padded,
                        const struct prefetch *prefetch) {
    SCORE_BYTES(0);
    SCORE_BYTES(1);
    SCORE_BYTES(2);
    SCORE_BYTES(3);
}

/* The scores of four keys, in one vector, from their digits, of which the first key's are at s. digit_scale [4 digits]
 * [QUERY_ROWS]: what a 1 in a digit is worth. */
static inline vec join_digits(const int32_t *s, vec digit_scale) {
    vec x[4];
    for (int n = 0; n < 4; ++n) x[n] = v_mul(_mm512_cvtepi32_ps(_mm512_load_si512(s + n * 4 * LANES)), digit_scale);
    const vec low = v_add(_mm512_shuffle_f32x4(x[0], x[1], 0x88), _mm512_shuffle_f32x4(x[0], x[1], 0xdd));
    const vec high = v_add(_mm512_shuffle_f32x4(x[2], x[3], 0x88), _mm512_shuffle_f32x4(x[2], x[3], 0xdd));
    return v_add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

/* The scales of the keys in vector i of 16 keys. */
static inline vec scales_at(const float *scale, int32_t i) {
    return _mm512_permutevar_ps(v_load(scale), _mm512_set1_epi32(i));
}

/* ------------------------------------------------------------------------------------------------------------ values -- */

/* Places the digits x of P of 16 keys, four vectors, as operands A: p [4 digits][KEY_TILES] tiles, of which `p` is the tile
 * of the first digit. */
ALWAYS_INLINE void place_digits(uint8_t *p, const __m512i x[4], int64_t rows, int digits) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    const __m512i row[QUERY_ROWS] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                                     _mm512_unpackhi_epi64(b, d)}; /* [16 keys] each */
    for (int g = 0; g < digits; ++g)
        for (int f = 0; f < QUAD; ++f) {
            const __m512i source = _mm512_broadcast_i32x4(_mm_setr_epi32(g, 4 + g, 8 + g, 12 + g));
            const __m512i to_place = _mm512_slli_epi32(source, 8 * (unsigned)f);
            for (int64_t r = 0; r < rows; ++r)
                _mm512_store_si512(p + (g * KEY_TILES * TILE_SIDE + f * QUERY_ROWS + r) * LINE,
                                   _mm512_maskz_shuffle_epi8(0x1111111111111111u << f, row[r], to_place));
        }
}

/* P V is summed in four tile registers: four digits of 64 columns, or two digits of up to 128. */
static inline int64_t columns_at_once(int digits) { return digits == FEW_DIGITS ? 2 * LINE : LINE; }

static inline void values_start(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* P V of 16 keys. p: the tile of the first digit; v: the first of 16 rows, at the first column; columns: those left. */
ALWAYS_INLINE void values_step(const uint8_t *p, const int8_t *v, int64_t stride, int64_t columns, int digits) {
    const size_t row = (size_t)stride;
    _tile_loadd(5, p, LINE);
    _tile_loadd(6, p + KEY_TILES * TILE_BYTES, LINE);
    _tile_loadd(4, v, row);
    _tile_dpbssd(0, 5, 4);
    _tile_dpbssd(1, 6, 4);
    if (digits == FEW_DIGITS) {
        if (columns <= LINE) return;
        _tile_loadd(7, v + LINE, row);
        _tile_dpbssd(2, 5, 7);
        _tile_dpbssd(3, 6, 7);
    } else {
        _tile_loadd(7, p + 2 * KEY_TILES * TILE_BYTES, LINE);
        _tile_dpbssd(2, 7, 4);
        _tile_loadd(5, p + 3 * KEY_TILES * TILE_BYTES, LINE);
        _tile_dpbssd(3, 5, 4);
    }
}

/* Stores the four tiles, o [digits][4 columns of a quad][QUERY_ROWS][16 quads] for each 64 columns. */
static inline void values_end(int32_t *o) {
    _tile_stored(0, o, LINE);
    _tile_stored(1, o + TILE_WORDS, LINE);
    _tile_stored(2, o + 2 * TILE_WORDS, LINE);
    _tile_stored(3, o + 3 * TILE_WORDS, LINE);
}

/* sum [4 columns of a quad][QUERY_ROWS][16 quads] = rescale[row] sum + p_scale[row] (the sums of digits in o). */
ALWAYS_INLINE void add_digits(float *sum, const int32_t *o, const float *rescale, const float *p_scale, int64_t rows,
                              int digits) {
    for (int64_t f = 0; f < QUAD; ++f)
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = (f * QUERY_ROWS + r) * LANES;
            vec x = _mm512_cvtepi32_ps(_mm512_load_si512(o + (digits - 1) * TILE_WORDS + at));
            for (int64_t g = digits - 2; g >= 0; --g)
                x = v_fma(x, v_set(256), _mm512_cvtepi32_ps(_mm512_load_si512(o + g * TILE_WORDS + at)));
            v_store(sum + at, v_fma(x, v_set(p_scale[r]), v_mul(v_load(sum + at), v_set(rescale[r]))));
        }
}

#endif
