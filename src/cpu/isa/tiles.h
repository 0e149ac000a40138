/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tiles.h: what the levels with tiles share: the size of a tile, and functions whose results are rounded to 16 bits. Their
 * kernels, in cpu/amx, are one text over the operations of level.h and these:
 *
 *   v_pair                    two vectors of fp32 as pairs of bf16, rounded to nearest;
 *                             a word has the first in its lower half
 *   v_pair_even               the same, to nearest even; v_pair may differ where two are as near
 *   v_pair_cut                the same of words, cut off
 *   v_fms v_quotient          a b - c; a / b, relative error 1e-7
 *   v_words v_of_words        the bits of floats, and back
 *   w_store                   stores LANES words to an address of whole vectors
 *   w_and w_xor w_add w_shift of words; w_shift: by 16 to the right
 *   w_load_lanes              16 bytes from each of four places
 *   w_zip_<low, high>_<n>     of each 16 bytes of two vectors the lower or the upper half, interleaved in units of n bits
 *   w_zip_rows                two vectors of 2 LANES elements of 16 bits as 2 LANES pairs, in order
 *   w_load_some w_store_some  the first n of 2 LANES elements of 16 bits (n may be 0 or less, or more than 2 LANES);
 *                             those not loaded are 0, and what is behind them is not touched
 *   v_store_some              as w_store_some, of LANES floats
 *   w_largest w_all_below     elements of 16 bits without a sign: the larger ones; all are below a number
 *   w_some_have               some element of 16 bits has all of these bits
 *   w_round_bf16              two vectors of fp32 as 2 LANES bf16, to nearest even; every NaN stays one
 *   w_stream v_stream         stores of whole cache lines that bypass the caches where the processor can
 *   stream_fence              puts them in order with the stores after it
 *   lane_mask                 one truth for each lane: lanes_first (the first n), lanes_not_at_most (of floats, true for a
 *                             NaN), lanes_below (of words), lanes_any; v_pick chooses, w_and_where clears bits
 *   v_keep_visible            a where the lane is in `rows` and the score is not -inf, else 0
 *   lines_are_far             some of n lines of memory are probably not in the core's own caches; true where it
 *                             cannot be told */
#ifndef STROBE_CPU_ISA_TILES_H
#define STROBE_CPU_ISA_TILES_H

#include <stdatomic.h>

enum {
    TILE_SIDE = 16,      /* rows of a tile; columns of fp32; pairs of bf16 */
    TILE_DEPTH = 32,     /* bf16 elements of a row */
    TILE_ELEMENTS = 512, /* bf16 elements of a tile */
};

static inline void tile_barrier(void) { atomic_signal_fence(memory_order_seq_cst); }

/* 2^x for a P that is rounded to bf16: degree 3, relative error 7.5e-5, a 26th of what the rounding may add. Where lse,
 * which is fp32, is wanted, v_exp2 of degree 5 takes its place. */
static inline vec v_exp2_coarse(vec x) {
    const struct exp2_parts e = v_exp2_start(x);
    vec p = v_fma(v_set(0.07802452264047964f), e.fraction, v_set(0.226067155427483f));
    p = v_fma(p, e.fraction, v_set(0.6958335404947528f));
    p = v_fma(p, e.fraction, v_set(0.9999252185627154f));
    return v_exp2_scale(e, p);
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
    return v_quotient(p, q);
}
#endif

#endif
