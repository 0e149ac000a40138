/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx.h: the AMX level: the vector operations of AVX-512 (avx512.h) and eight tile registers, T0 to T7, of 16 rows x 64
 * bytes. One instruction multiplies 16 rows of 32 bf16 (A) by 16 rows of 16 pairs (B, Intel's VNNI layout: row r holds the
 * elements 2r and 2r + 1 of 16 columns) and adds to 16 x 16 fp32 (C), in 16 cycles. Intrinsics name tiles by literals, so
 * the register allocation is written by hand; the comment above each product says which tile holds what.
 *
 * Two defects of gcc 12 shape the code. It takes _tile_loadconfig to read 8 of its 64 bytes, so the configuration is a
 * constant and not built on the stack. It takes _tile_loadd to read no memory, so tile_barrier() stands wherever a tile
 * loads what vectors have stored. */
#ifndef STROBE_CPU_ISA_AMX_H
#define STROBE_CPU_ISA_AMX_H

#include <math.h>
#include <stdbool.h>

#include "cpu/isa/avx512.h"
#if defined(STROBE_LEVEL_avx512bf16)
#include "cpu/isa/dot_tiles.h"
#elif defined(STROBE_AMX_EMULATED)
#include "cpu/isa/amx_emulated.h"
#endif

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} tile_config = {.palette = 1, .bytes_a_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Between calls the tile state belongs to the caller: a task configures it when it starts and releases it when it ends. */
static inline void tiles_enter(void) { _tile_loadconfig(&tile_config); }
static inline void tiles_leave(void) { _tile_release(); }

/* A step of Newton's makes 28 bits of 14. */
static inline vec v_quotient(vec a, vec b) {
    const vec inverse = _mm512_rcp14_ps(b), quotient = v_mul(a, inverse);
    return v_fma(inverse, _mm512_fnmadd_ps(b, quotient, a), quotient);
}

static inline vec v_fms(vec a, vec b, vec c) { return _mm512_fmsub_ps(a, b, c); }
static inline vec_words v_words(vec x) { return _mm512_castps_si512(x); }
static inline vec v_of_words(vec_words x) { return _mm512_castsi512_ps(x); }
static inline void w_store(void *x, vec_words a) { _mm512_store_si512(x, a); }
static inline vec_words w_and(vec_words a, vec_words b) { return _mm512_and_si512(a, b); }
static inline vec_words w_xor(vec_words a, vec_words b) { return _mm512_xor_si512(a, b); }
static inline vec_words w_add(vec_words a, vec_words b) { return _mm512_add_epi32(a, b); }
static inline vec_words w_shift(vec_words a) { return _mm512_srli_epi32(a, 16); }

static inline vec_words w_load_lanes(const uint16_t *a, const uint16_t *b, const uint16_t *c, const uint16_t *d) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)a));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)b), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)c), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)d), 3);
}

static inline vec_words w_zip_low_16(vec_words a, vec_words b) { return _mm512_unpacklo_epi16(a, b); }
static inline vec_words w_zip_high_16(vec_words a, vec_words b) { return _mm512_unpackhi_epi16(a, b); }
static inline vec_words w_zip_low_32(vec_words a, vec_words b) { return _mm512_unpacklo_epi32(a, b); }
static inline vec_words w_zip_high_32(vec_words a, vec_words b) { return _mm512_unpackhi_epi32(a, b); }
static inline vec_words w_zip_low_64(vec_words a, vec_words b) { return _mm512_unpacklo_epi64(a, b); }
static inline vec_words w_zip_high_64(vec_words a, vec_words b) { return _mm512_unpackhi_epi64(a, b); }

static inline void w_zip_rows(vec_words pairs[2], vec_words low, vec_words high) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i even = _mm512_unpacklo_epi16(low, high), odd = _mm512_unpackhi_epi16(low, high);
    pairs[0] = _mm512_permutex2var_epi64(even, first, odd);
    pairs[1] = _mm512_permutex2var_epi64(even, second, odd);
}

static inline __mmask32 columns_mask(int64_t columns) {
    return columns >= 2 * LANES ? 0xffffffffu : columns <= 0 ? 0 : (1u << columns) - 1;
}

static inline vec_words w_load_some(const uint16_t *x, int64_t n) { return _mm512_maskz_loadu_epi16(columns_mask(n), x); }

static inline void w_store_some(uint16_t *x, vec_words a, int64_t n) { _mm512_mask_storeu_epi16(x, columns_mask(n), a); }

static inline void v_store_some(float *x, vec a, int64_t n) { _mm512_mask_storeu_ps(x, (__mmask16)columns_mask(n), a); }
static inline void w_stream(void *x, vec_words a) { _mm512_stream_si512(x, a); }
static inline void v_stream(float *x, vec a) { _mm512_stream_ps(x, a); }
static inline void stream_fence(void) { _mm_sfence(); }

static inline vec_words w_largest(vec_words a, vec_words b) { return _mm512_max_epu16(a, b); }

static inline bool w_all_below(vec_words a, uint16_t bound) {
    return !_mm512_cmp_epu16_mask(a, _mm512_set1_epi16((short)bound), _MM_CMPINT_NLT);
}

static inline bool w_some_have(vec_words a, uint16_t bits) {
    const __m512i all = _mm512_set1_epi16((short)bits);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(a, all), all);
}

typedef __mmask16 lane_mask;
static inline lane_mask lanes_first(int64_t n) { return (__mmask16)columns_mask(n); }
static inline lane_mask lanes_not_at_most(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
static inline lane_mask lanes_below(vec_words a, vec_words b) { return _mm512_cmplt_epu32_mask(a, b); }
static inline bool lanes_any(lane_mask a) { return a; }
static inline vec v_pick(lane_mask where, vec yes, vec no) { return _mm512_mask_blend_ps(where, no, yes); }
static inline vec_words w_and_where(lane_mask where, vec_words a, vec_words b) {
    return _mm512_mask_and_epi32(a, where, a, b);
}

static inline vec v_keep_visible(lane_mask rows, vec score, vec a) {
    return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(rows, score, v_set(-INFINITY), _CMP_NEQ_UQ), a);
}

/* Two vectors of fp32 as one vector of pairs of bf16, truncated: upper halves of `even` go to lower halves of `odd`. */
static inline __m512i v_pair_cut(__m512i even, __m512i odd) {
    const __m512i down = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333u, even, down);
}

/* The same, rounded to nearest by adding half of the last place. Two integer additions and a shuffle run while tile products
 * keep busy the ports that vcvtne2ps2bf16 needs. A NaN stays a NaN, since none here has all bits set. */
static inline __m512i v_pair(vec even, vec odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    return v_pair_cut(_mm512_add_epi32(_mm512_castps_si512(even), half), _mm512_add_epi32(_mm512_castps_si512(odd), half));
}

/* fp32 to bf16, to nearest even, in the upper halves. A NaN stays a NaN unless all its bits are set. No sum is such a NaN:
 * the NaNs of bf16 inputs and those that the processor makes have a lower half of zeros. */
static inline __m512i round_number(vec x) {
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

/* fp32 to bf16 as above, and every NaN stays a NaN. */
static inline __m256i round_bf16(vec x) {
    const __m512i bits = _mm512_castps_si512(x), rounded = round_number(x);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16));
}

static inline vec_words w_round_bf16(vec low, vec high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(round_bf16(low)), round_bf16(high), 1);
}

/* The same of fp16. */
static inline vec_words w_round_fp16(vec low, vec high) {
    enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, nearest)), _mm512_cvtps_ph(high, nearest), 1);
}

/* Ticks of the time-stamp counter until n lines have come, one touched after the other without waiting for it. */
static inline uint64_t ticks_to_touch(const char *const *line, int n) {
    _mm_lfence();
    const uint64_t start = __rdtsc();
    _mm_lfence();
    for (int i = 0; i < n; ++i) (void)*(const volatile char *)line[i];
    _mm_lfence();
    return __rdtsc() - start;
}

/* The second time they come from L1. Four lines then take some 70 ticks of 2.1 GHz, up to
 * 100 from L2, and 250 to 1500 from beyond. */
static inline bool lines_are_far(const char *const *line, int n) {
    enum { TICKS = 100 };
    const uint64_t first = ticks_to_touch(line, n);
    return first > ticks_to_touch(line, n) + TICKS;
}

/* Pairs that are results: to nearest even. */
static inline vec_words v_pair_even(vec even, vec odd) { return v_pair_cut(round_number(even), round_number(odd)); }

#endif
