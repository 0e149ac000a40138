/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx.h: the vocabulary of the AMX level: AVX-512's vectors (avx512.h) and, beside them, tiles: eight registers T0 to T7 of
 * 16 rows x 64 bytes. One instruction multiplies 16 rows of 32 bf16 (A) by 16 rows of 16 pairs (B, "VNNI": row r holds the
 * elements 2r and 2r + 1 of 16 columns) and adds to 16 x 16 fp32 (C), in 16 cycles. Tiles are named by literals: there is
 * no register allocation but the one written down above each product.
 *
 * Two traps of gcc 12. _tile_loadconfig declares 8 of its 64 bytes as read, so the configuration is a constant, not built on
 * the stack. _tile_loadd declares no memory as read: tile_barrier() stands wherever vectors wrote what a tile loads. */
#ifndef STROBE_CPU_ISA_AMX_H
#define STROBE_CPU_ISA_AMX_H

#include <stdatomic.h>

#include "cpu/isa/avx512.h"

enum {
    TILE_SIDE = 16,      /* rows of a tile; columns of fp32; pairs of bf16 */
    TILE_DEPTH = 32,     /* bf16 elements of a row */
    TILE_ELEMENTS = 512, /* bf16 elements of a tile */
};

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} tile_config = {.palette = 1, .bytes_a_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Tile state belongs to the caller between calls: it is set when a task starts and released when it ends. */
static inline void tiles_enter(void) { _tile_loadconfig(&tile_config); }
static inline void tiles_leave(void) { _tile_release(); }

static inline void tile_barrier(void) { atomic_signal_fence(memory_order_seq_cst); }

/* 2^x for 16-bit weights: degree 3, relative error 7.5e-5, a twenty-sixth of what rounding to bf16 may add. Where lse is
 * wanted it takes v_exp2, degree 5, since lse is fp32. */
static inline vec v_exp2_coarse(vec x) {
    const vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    vec p = v_fma(v_set(0.07802452264047964f), f, v_set(0.226067155427483f));
    p = v_fma(p, f, v_set(0.6958335404947528f));
    p = v_fma(p, f, v_set(0.9999252185627154f));
    return _mm512_scalef_ps(p, x);
}

/* Two rows as one row of pairs of bf16, cut off: the upper half of `even` goes to the lower half of `odd`. */
static inline __m512i v_pair_cut(__m512i even, __m512i odd) {
    const __m512i down = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333u, even, down);
}

/* The same to nearest: half a unit is added. Two integer additions and a shuffle, which run while tiles keep
 * vcvtne2ps2bf16's ports busy; a NaN stays one, since it is not all ones. */
static inline __m512i v_pair(vec even, vec odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    return v_pair_cut(_mm512_add_epi32(_mm512_castps_si512(even), half), _mm512_add_epi32(_mm512_castps_si512(odd), half));
}

#endif
