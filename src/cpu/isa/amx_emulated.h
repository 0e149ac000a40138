/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx_emulated.h: the AMX instructions that the kernels use, as functions over eight tiles in memory, so that the kernels
 * run unchanged on a processor with AVX-512 alone. -DSTROBE_AMX_EMULATED=ON chooses it for builds that test: it is exact and
 * a hundred times as slow. Each function follows the operation of its instruction in Intel's manual (SDM, volume 2, chapter
 * 3 "TDPBF16PS" and its neighbours): the configured rows and bytes are obeyed, what lies beyond them becomes zero, and what
 * raises an exception on a processor ends the program with a sentence here.
 *
 * TDPBF16PS sums the products of even and of odd elements of a row apart, each by fused multiply-adds in the order of k,
 * adds the two sums, and adds that to C. It rounds to nearest, takes denormals for zero and flushes results to zero,
 * whatever MXCSR says. */
#ifndef STROBE_CPU_ISA_AMX_EMULATED_H
#define STROBE_CPU_ISA_AMX_EMULATED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/isa/avx512.h"

enum { TILES = 8, MOST_TILE_ROWS = 16, MOST_TILE_BYTES = 64 };

struct emulated_tiles {
    _Alignas(64) uint8_t data[TILES][MOST_TILE_ROWS][MOST_TILE_BYTES];
    uint8_t rows[TILES], bytes[TILES]; /* 0 rows: the tile is not configured */
};

/* One set a thread, as on a processor. Each file that includes this has its own: no kernel hands tiles to another file. */
static _Thread_local struct emulated_tiles emulated;

static inline void emulated_require(bool holds, const char *instruction, const char *what) {
    if (holds) return;
    fprintf(stderr, "emulated AMX, %s: %s; a processor would raise an exception\n", instruction, what);
    abort();
}

static inline void emulated_release(void) { memset(&emulated, 0, sizeof emulated); }

/* The layout in memory: palette, start row, 14 reserved bytes, 16 words of bytes a row, 16 bytes of rows. */
static inline void emulated_loadconfig(const void *memory) {
    const uint8_t *config = memory;
    emulated_release();
    if (config[0] == 0) return; /* palette 0: no tiles */
    emulated_require(config[0] == 1, "ldtilecfg", "the palette is neither 0 nor 1");
    for (int n = 1; n < 16; ++n) emulated_require(config[n] == 0, "ldtilecfg", "a start row or a reserved byte is not zero");
    for (int n = 0; n < MOST_TILE_ROWS; ++n) {
        const unsigned bytes = config[16 + 2 * n] + 256u * config[17 + 2 * n], rows = config[48 + n];
        emulated_require(n < TILES || bytes + rows == 0, "ldtilecfg", "a tile above 7 has rows or bytes");
        emulated_require(bytes <= MOST_TILE_BYTES && rows <= MOST_TILE_ROWS, "ldtilecfg", "a tile is larger than 16 x 64");
        emulated_require((bytes == 0) == (rows == 0), "ldtilecfg", "a tile has rows or bytes without the other");
        if (n >= TILES) continue;
        emulated.bytes[n] = (uint8_t)bytes;
        emulated.rows[n] = (uint8_t)rows;
    }
}

static inline void emulated_require_tile(int t, const char *instruction) {
    emulated_require(t >= 0 && t < TILES && emulated.rows[t] > 0, instruction, "the tile is not configured");
}

static inline void emulated_zero(int t) {
    emulated_require_tile(t, "tilezero");
    memset(emulated.data[t], 0, sizeof emulated.data[t]);
}

static inline void emulated_loadd(int t, const void *base, size_t stride) {
    emulated_zero(t);
    for (size_t r = 0; r < emulated.rows[t]; ++r)
        memcpy(emulated.data[t][r], (const char *)base + r * stride, emulated.bytes[t]);
}

static inline void emulated_stored(int t, void *base, size_t stride) {
    emulated_require_tile(t, "tilestored");
    for (size_t r = 0; r < emulated.rows[t]; ++r) memcpy((char *)base + r * stride, emulated.data[t][r], emulated.bytes[t]);
}

/* C (rows x columns) += A (rows x depth) B (depth x columns) wants these to agree, and three tiles that differ. */
static inline void emulated_require_product(int c, int a, int b, const char *instruction) {
    emulated_require_tile(c, instruction);
    emulated_require_tile(a, instruction);
    emulated_require_tile(b, instruction);
    emulated_require(c != a && c != b && a != b, instruction, "two of the three tiles are the same");
    emulated_require(emulated.rows[c] == emulated.rows[a], instruction, "C and A have not as many rows");
    emulated_require(emulated.bytes[c] == emulated.bytes[b], instruction, "C and B have not as many columns");
    emulated_require(emulated.bytes[a] == 4 * emulated.rows[b], instruction, "A has not as many words a row as B has rows");
    emulated_require(emulated.bytes[c] % 4 == 0, instruction, "a row of C is not made of words");
}

/* The words of row r of tile t; beyond the configured bytes they are zero already. */
static inline __m512i emulated_row(int t, int r) { return _mm512_load_si512(emulated.data[t][r]); }

static inline __m512i emulated_word(int t, int r, int k) {
    int word;
    memcpy(&word, emulated.data[t][r] + 4 * k, sizeof word);
    return _mm512_set1_epi32(word);
}

static inline vec emulated_even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

static inline vec emulated_odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
}

static inline void emulated_dpbf16ps(int c, int a, int b) {
    emulated_require_product(c, a, b, "tdpbf16ps");
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* to nearest, no exceptions, denormals are zero, results are flushed to zero */
    for (int m = 0; m < emulated.rows[c]; ++m) {
        vec even = v_set(0), odd = v_set(0);
        for (int k = 0; k < emulated.rows[b]; ++k) {
            const __m512i pair = emulated_word(a, m, k), pairs = emulated_row(b, k);
            even = v_fma(emulated_even(pair), emulated_even(pairs), even);
            odd = v_fma(emulated_odd(pair), emulated_odd(pairs), odd);
        }
        v_store((float *)(void *)emulated.data[c][m], v_add(_mm512_castsi512_ps(emulated_row(c, m)), v_add(even, odd)));
    }
    _mm_setcsr(mode);
}

/* The even and the odd ones of signed bytes, as words of 16 bits. */
static inline __m512i emulated_even_bytes(__m512i x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
static inline __m512i emulated_odd_bytes(__m512i x) { return _mm512_srai_epi16(x, 8); }

static inline void emulated_dpbssd(int c, int a, int b) {
    emulated_require_product(c, a, b, "tdpbssd");
    for (int m = 0; m < emulated.rows[c]; ++m) {
        __m512i sum = emulated_row(c, m);
        for (int k = 0; k < emulated.rows[b]; ++k) {
            const __m512i four = emulated_word(a, m, k), fours = emulated_row(b, k);
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(emulated_even_bytes(four), emulated_even_bytes(fours)));
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(emulated_odd_bytes(four), emulated_odd_bytes(fours)));
        }
        _mm512_store_si512(emulated.data[c][m], sum);
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(memory)            emulated_loadconfig(memory)
#define _tile_release()                     emulated_release()
#define _tile_zero(t)                       emulated_zero(t)
#define _tile_loadd(t, base, stride)        emulated_loadd(t, base, stride)
#define _tile_stream_loadd(t, base, stride) emulated_loadd(t, base, stride)
#define _tile_stored(t, base, stride)       emulated_stored(t, base, stride)
#define _tile_dpbf16ps(c, a, b)             emulated_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b)               emulated_dpbssd(c, a, b)

#endif
