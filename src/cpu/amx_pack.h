/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx_pack.h: operands into the layouts of amx_step.h, and O^T out of its own. All of it goes through one 16 x 16 transpose
 * of 32-bit words in registers: 64 shuffles for 512 bf16. Columns and rows beyond a tensor's are zero. */
#ifndef STROBE_CPU_AMX_PACK_H
#define STROBE_CPU_AMX_PACK_H

#include "cpu/rows.h"

static inline int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static inline __mmask32 columns_mask(int64_t columns) {
    return columns >= TILE_DEPTH ? 0xffffffffu : columns <= 0 ? 0 : (1u << columns) - 1;
}

/* Q^T of a tile, [dim / 32][2][16 pairs][16 queries]; flip: all signs change. */
static inline void pack_queries(uint16_t *to, const struct tile_rows *t, const strobe_tensor *x, int64_t dim, bool flip) {
    const __m512i sign = _mm512_set1_epi16(flip ? -0x8000 : 0);
    for (int64_t half = 0; half < VECTORS; ++half) {
        const uint16_t *row[TILE_SIDE];
        for (int64_t i = 0; i < TILE_SIDE; ++i) {
            const int64_t r = half * TILE_SIDE + i;
            row[i] = r < t->n ? (const uint16_t *)x->data + tile_offset(t, x, r) : NULL;
        }
        for (int64_t c = 0; c * TILE_DEPTH < dim; ++c) {
            const __mmask32 mask = columns_mask(dim - c * TILE_DEPTH);
            __m512i words[TILE_SIDE];
            for (int i = 0; i < TILE_SIDE; ++i)
                words[i] = _mm512_xor_si512(sign, row[i] ? _mm512_maskz_loadu_epi16(mask, row[i] + c * TILE_DEPTH)
                                                         : _mm512_setzero_si512());
            v_transpose(words);
            uint16_t *tile = to + (c * VECTORS + half) * TILE_ELEMENTS;
            for (int i = 0; i < TILE_SIDE; ++i) _mm512_store_si512(tile + i * TILE_DEPTH, words[i]);
        }
    }
}

/* n rows of K, [64][padded]. */
static inline void pack_keys(uint16_t *to, const uint16_t *k, int64_t stride, int64_t n, int64_t dim, int64_t padded) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH)
            _mm512_store_si512(to + j * padded + c, j < n
                                                        ? _mm512_maskz_loadu_epi16(columns_mask(dim - c), k + j * stride + c)
                                                        : _mm512_setzero_si512());
}

/* The keys of n rows of V that are not finite, as bits. */
static inline uint64_t keys_not_finite(const uint16_t *v, int64_t stride, int64_t n, int64_t dim) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    uint64_t found = 0;
    for (int64_t j = 0; j < n; ++j)
        for (int64_t c = 0; c < dim; c += TILE_DEPTH) {
            const __m512i x = _mm512_maskz_loadu_epi16(columns_mask(dim - c), v + j * stride + c);
            if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent)) found |= (uint64_t)1 << j;
        }
    return found;
}

/* 32 keys x 32 columns of V into the two tiles of V^T, `apart` elements apart, that hold the columns; the second one only
 * where `both`. Neighbouring keys are paired first, then columns of pairs become rows. */
static inline void pack_values_square(uint16_t *to, const uint16_t *v, int64_t stride, __mmask32 columns, uint32_t keys,
                                      int64_t apart, bool both) {
    __m512i low[TILE_SIDE], high[TILE_SIDE];
    for (int i = 0; i < TILE_SIDE; ++i) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i even = keys >> 2 * i & 1 ? _mm512_maskz_loadu_epi16(columns, v + 2 * i * stride) : zero;
        const __m512i odd = keys >> (2 * i + 1) & 1 ? _mm512_maskz_loadu_epi16(columns, v + (2 * i + 1) * stride) : zero;
        low[i] = _mm512_unpacklo_epi16(even, odd); /* of each lane of 8 columns, the first 4 */
        high[i] = _mm512_unpackhi_epi16(even, odd);
    }
    v_transpose(low);
    v_transpose(high);
    for (int i = 0; i < TILE_SIDE; ++i) {
        const int x = i / 4 * 8 + i % 4; /* the column of low[i]; high[i] is 4 further */
        if (x >= TILE_SIDE && !both) continue;
        uint16_t *row = to + x / TILE_SIDE * apart + x % TILE_SIDE * TILE_DEPTH;
        _mm512_store_si512(row, low[i]);
        _mm512_store_si512(row + 4 * TILE_DEPTH, high[i]);
    }
}

/* V^T of n keys, [dim / 16][2][16][32]; the keys of `left_out` are zero. */
static inline void pack_values(uint16_t *to, const uint16_t *v, int64_t stride, int64_t n, int64_t dim, uint64_t left_out) {
    const uint64_t keys = (n >= BLOCK_KEYS ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) & ~left_out;
    for (int64_t c = 0; c < dim; c += TILE_DEPTH)
        for (int64_t half = 0; half < 2; ++half)
            pack_values_square(to + c / TILE_SIDE * 2 * TILE_ELEMENTS + half * TILE_ELEMENTS,
                               v + half * TILE_DEPTH * stride + c, stride, columns_mask(dim - c),
                               (uint32_t)(keys >> half * TILE_DEPTH), 2 * TILE_ELEMENTS, dim - c > TILE_SIDE);
}

/* fp32 to bf16, to nearest even; a NaN stays one. */
static inline __m256i round_bf16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

/* O^T [dim][TILE_ROWS] times factor [TILE_ROWS] to the tile's rows of x, bf16. */
static inline void unpack_rows(const struct tile_rows *t, const strobe_tensor *x, const float *o, int64_t dim,
                               const float *factor) {
    for (int64_t half = 0; half * TILE_SIDE < t->n; ++half)
        for (int64_t c = 0; c < dim; c += TILE_SIDE) {
            __m512i words[TILE_SIDE];
            const __mmask16 mask = (__mmask16)columns_mask(dim - c);
            for (int64_t i = 0; i < TILE_SIDE; ++i)
                words[i] = c + i < dim ? _mm512_loadu_si512(o + (c + i) * TILE_ROWS + half * TILE_SIDE)
                                       : _mm512_setzero_si512();
            v_transpose(words);
            for (int64_t i = 0; i < TILE_SIDE && half * TILE_SIDE + i < t->n; ++i) {
                const int64_t r = half * TILE_SIDE + i;
                uint16_t *row = (uint16_t *)x->data + tile_offset(t, x, r) + c;
                _mm256_mask_storeu_epi16(row, mask, round_bf16(v_mul(_mm512_castsi512_ps(words[i]), v_set(factor[r]))));
            }
        }
}

#endif
