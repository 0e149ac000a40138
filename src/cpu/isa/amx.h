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

#include <stdatomic.h>

#include "cpu/isa/avx512.h"
#if defined(STROBE_LEVEL_avx512bf16)
#include "cpu/isa/dot_tiles.h"
#elif defined(STROBE_AMX_EMULATED)
#include "cpu/isa/amx_emulated.h"
#endif

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

/* Between calls the tile state belongs to the caller: a task configures it when it starts and releases it when it ends. */
static inline void tiles_enter(void) { _tile_loadconfig(&tile_config); }
static inline void tiles_leave(void) { _tile_release(); }

static inline void tile_barrier(void) { atomic_signal_fence(memory_order_seq_cst); }

/* 2^x for a P that is rounded to bf16: degree 3, relative error 7.5e-5, a 26th of what the rounding may add. Where lse,
 * which is fp32, is wanted, v_exp2 of degree 5 takes its place. */
static inline vec v_exp2_coarse(vec x) {
    const vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    vec p = v_fma(v_set(0.07802452264047964f), f, v_set(0.226067155427483f));
    p = v_fma(p, f, v_set(0.6958335404947528f));
    p = v_fma(p, f, v_set(0.9999252185627154f));
    return _mm512_scalef_ps(p, x);
}

#if !defined(STROBE_AMX_fp32) /* which is to be as accurate as the other levels */
/* tanh x = x p(x^2) / q(x^2), minimax on [0, 9], beyond which it is 1: half of the instructions of the other levels' tanh,
 * which the products of tiles would hide less of. The relative error is 3e-7, 6e-8 on average. */
static inline vec v_tanh(vec x) {
    const vec bounded = v_max(v_set(-9.0f), v_min(v_set(9.0f), x)), square = v_mul(bounded, bounded);
    vec p = v_fma(v_set(1.335464732e-08f), square, v_set(2.060907133e-05f));
    p = v_fma(p, square, v_set(3.495587469e-03f));
    p = v_fma(p, square, v_set(1.338102530e-01f));
    p = v_fma(v_mul(bounded, square), p, bounded);
    vec q = v_fma(v_set(7.776552251e-07f), square, v_set(3.285633715e-04f));
    q = v_fma(q, square, v_set(2.587697993e-02f));
    q = v_fma(q, square, v_set(4.671434158e-01f));
    q = v_fma(q, square, v_set(1));
    const vec inverse = _mm512_rcp14_ps(q), quotient = v_mul(p, inverse);
    return v_fma(inverse, _mm512_fnmadd_ps(q, quotient, p), quotient); /* a step of Newton's, for 28 bits of 14 */
}
#endif

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

#endif
