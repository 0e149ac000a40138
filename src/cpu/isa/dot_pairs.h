/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dot_pairs.h: tile products of AVX512_BF16. vdpbf16ps multiplies 16 pairs by 16 pairs and adds both products of each to a
 * lane: a tile product is 256 of them, one for each row of A and of B.
 *
 * A product of pairs rounds to nearest after the odd and after the even elements, takes denormals for zero and flushes
 * results to zero (Intel's manual, SDM, volume 2, "VDPBF16PS"). */
#ifndef STROBE_CPU_ISA_DOT_PAIRS_H
#define STROBE_CPU_ISA_DOT_PAIRS_H

#include "cpu/isa/avx512.h"

/* A pair, in all lanes. */
static inline __m512i dot_pair(const char *at) {
    int pair;
    memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static inline vec dot_add(vec sum, __m512i a, __m512i b) {
#if defined(STROBE_AMX_EMULATED) /* for builds that test, on a processor without the instruction */
    const __m512i upper = _mm512_set1_epi32(-0x10000);
    const vec odd = v_fma(_mm512_castsi512_ps(_mm512_and_si512(a, upper)), _mm512_castsi512_ps(_mm512_and_si512(b, upper)),
                          sum);
    return v_fma(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), odd);
#else
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
}

/* Half of the rows of one or two tiles of sums: += the products of a chain, a[n] b[n] (and a[n] more[n]), from row `first`
 * on. Eight rows of A meet one or two vectors of B. */
static inline __attribute__((always_inline)) void dot_half(float (*sums)[LANES], float (*others)[LANES], struct dot_rows c,
                                                           struct dot_rows other, const struct dot_rows *a,
                                                           const struct dot_rows *b, const struct dot_rows *more, int count,
                                                           size_t first, bool two) {
    vec sum[DOT_HALF], next[DOT_HALF];
#pragma GCC unroll 8
    for (size_t m = 0; m < DOT_HALF; ++m) {
        sum[m] = _mm512_loadu_ps(c.at + (first + m) * c.row);
        if (two) next[m] = _mm512_loadu_ps(other.at + (first + m) * other.row);
    }
    for (int n = 0; n < count; ++n) {
        const size_t row = a[n].row, third = 3 * row;
        const char *low = a[n].at + first * row, *high = low + 4 * row, *b_at = b[n].at, *more_at = two ? more[n].at : b_at;
        for (size_t k = 0; k < DOT_ROWS; ++k, low += 4, high += 4, b_at += b[n].row) {
            const __m512i pairs = _mm512_loadu_si512(b_at), others_pairs = _mm512_loadu_si512(more_at);
            const char *const at[DOT_HALF] = {low,  low + row,  low + 2 * row,  low + third,
                                              high, high + row, high + 2 * row, high + third};
#pragma GCC unroll 8
            for (size_t m = 0; m < DOT_HALF; ++m) {
                const __m512i pair = dot_pair(at[m]);
                sum[m] = dot_add(sum[m], pair, pairs);
                if (two) next[m] = dot_add(next[m], pair, others_pairs);
            }
            if (two) more_at += more[n].row;
        }
    }
#pragma GCC unroll 8
    for (size_t m = 0; m < DOT_HALF; ++m) {
        _mm512_store_ps(sums[first + m], sum[m]);
        if (two) _mm512_store_ps(others[first + m], next[m]);
    }
}

#endif
