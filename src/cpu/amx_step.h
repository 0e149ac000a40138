/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx_step.h: the inner loop of the AMX forward. A tile of 32 queries meets a block of 64 keys in three stages, of which one
 * step runs one each, of three neighbouring blocks, interleaved: while the tile unit multiplies, the vector units take
 * exponentials.
 *
 *     block j+1   S^T = K Q^T             tiles    2 groups of 32 keys:   T0..T3 += (T4, T5: K) (T6, T7: Q^T)
 *     block j     P^T = 2^(S^T c - m c)   vectors  64 pairs of rows of 16 queries, some after each tile product
 *     block j-1   O^T += V^T P^T          tiles    16 rows of V^T each:   T0, T1 += (T2, T3: V^T) (T4..T7: P^T)
 *
 *     time ->     step j-1            step j              step j+1
 *     tiles       S(j)   O(j-2)       S(j+1)  O(j-1)      S(j+2)  O(j)
 *     vectors     P(j-1)              P(j)                P(j+1)
 *
 * Layouts: S^T [64 keys][32 queries] fp32, twice; P^T [32 pairs of keys][32 queries] pairs of bf16, twice; O^T [dim_v][32]
 * fp32; Q^T [dim / 32][2][16 pairs][16 queries] pairs; K [64][stride] natural; V^T [dim_v / 16][2][16][32 keys]. K and V^T
 * are streamed past L1 (48 KiB), in which S, P, O and Q live: 48 KiB at dim 128. */
#ifndef STROBE_CPU_AMX_STEP_H
#define STROBE_CPU_AMX_STEP_H

#include "cpu/tile.h"

enum {
    BLOCK_HALVES = BLOCK_KEYS / 2 * VECTORS
}; /* pairs of key rows x vectors: what a step's exponentials are counted in */

/* Exponentials on their way through a block. */
struct weighing {
    const float *s;
    uint32_t *p;
    vec factor, shift[VECTORS], sum[VECTORS];
    int left;  /* of BLOCK_HALVES */
    bool fine; /* weights as exact as fp32 has them */
};

struct step {
    const uint16_t *k; /* NULL: no block j+1 */
    int64_t k_stride;  /* elements */
    const uint16_t *q;
    int64_t chunks; /* of 32 columns of K */
    float *s;
    const uint16_t *v; /* NULL: no block j-1 */
    const uint32_t *p;
    float *o;
    int64_t tiles; /* of 16 columns of V */
};

ALWAYS_INLINE void weigh_pair(struct weighing *w, int pair, int n) {
    const float *s = w->s + 2 * pair * TILE_ROWS + n * LANES;
    const vec even_x = _mm512_fmsub_ps(v_load(s), w->factor, w->shift[n]);
    const vec odd_x = _mm512_fmsub_ps(v_load(s + TILE_ROWS), w->factor, w->shift[n]);
    const vec even = w->fine ? v_exp2(even_x) : v_exp2_coarse(even_x);
    const vec odd = w->fine ? v_exp2(odd_x) : v_exp2_coarse(odd_x);
    w->sum[n] = v_add(w->sum[n], v_add(even, odd));
    _mm512_store_si512(w->p + pair * TILE_ROWS + n * LANES, v_pair(even, odd));
}

/* The part-th quarter of `halves` exponentials. */
ALWAYS_INLINE void weigh_quarter(struct weighing *w, int halves, int part) {
    for (int u = part * halves / 4; u < (part + 1) * halves / 4; ++u) weigh_pair(w, u / VECTORS, u % VECTORS);
}

ALWAYS_INLINE void weigh_advance(struct weighing *w, int halves) {
    w->s += halves * TILE_ROWS;
    w->p += halves / 2 * TILE_ROWS;
    w->left -= halves;
}

ALWAYS_INLINE void weigh_rest(struct weighing *w) {
    while (w->left > 0) {
        weigh_quarter(w, 8, 0), weigh_quarter(w, 8, 1), weigh_quarter(w, 8, 2), weigh_quarter(w, 8, 3);
        weigh_advance(w, 8);
    }
}

/* The products of 32 keys with 32 columns of Q. After the last of them each tile of S^T is stored as soon as it is done: at
 * 16 cycles a store, four in a row would keep the next products waiting. */
ALWAYS_INLINE void scores_quad(const struct step *t, const uint16_t *k, const uint16_t *q, float *last, struct weighing *w,
                               int halves) {
    const size_t k_row = (size_t)t->k_stride * sizeof *k, s_row = TILE_ROWS * sizeof *last;
    _tile_stream_loadd(4, k, k_row);
    _tile_loadd(6, q, 64);
    _tile_loadd(7, q + TILE_ELEMENTS, 64);
    _tile_dpbf16ps(0, 4, 6);
    weigh_quarter(w, halves, 0);
    _tile_stream_loadd(5, k + TILE_SIDE * t->k_stride, k_row);
    _tile_dpbf16ps(1, 4, 7);
    weigh_quarter(w, halves, 1);
    _tile_dpbf16ps(2, 5, 6);
    if (last) _tile_stored(0, last, s_row);
    weigh_quarter(w, halves, 2);
    _tile_dpbf16ps(3, 5, 7);
    if (last) _tile_stored(1, last + LANES, s_row);
    weigh_quarter(w, halves, 3);
    if (last) _tile_stored(2, last + TILE_SIDE * TILE_ROWS, s_row);
    if (last) _tile_stored(3, last + TILE_SIDE * TILE_ROWS + LANES, s_row);
    weigh_advance(w, halves);
}

ALWAYS_INLINE void scores_quad_or_rest(const struct step *t, const uint16_t *k, const uint16_t *q, float *last,
                                       struct weighing *w, int halves) {
    if (w->left > 0)
        scores_quad(t, k, q, last, w, halves);
    else
        scores_quad(t, k, q, last, w, 0);
}

/* S^T of the next block. */
ALWAYS_INLINE void step_scores(const struct step *t, struct weighing *w, int halves) {
    for (int64_t j = 0; j < BLOCK_KEYS; j += 2 * TILE_SIDE) {
        const uint16_t *k = t->k + j * t->k_stride, *q = t->q;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t c = 1; c < t->chunks; ++c, k += TILE_DEPTH, q += 2 * TILE_ELEMENTS)
            scores_quad_or_rest(t, k, q, NULL, w, halves);
        scores_quad_or_rest(t, k, q, t->s + j * TILE_ROWS, w, halves);
    }
}

ALWAYS_INLINE void values_quad(const struct step *t, int64_t x, struct weighing *w, int halves) {
    const uint16_t *v = t->v + x * 2 * TILE_ELEMENTS;
    const size_t o_row = TILE_ROWS * sizeof *t->o;
    float *o = t->o + x * TILE_SIDE * TILE_ROWS;
    _tile_loadd(0, o, o_row);
    _tile_stream_loadd(2, v, 64);
    _tile_dpbf16ps(0, 2, 4);
    weigh_quarter(w, halves, 0);
    _tile_loadd(1, o + LANES, o_row);
    _tile_dpbf16ps(1, 2, 5);
    weigh_quarter(w, halves, 1);
    _tile_stream_loadd(3, v + TILE_ELEMENTS, 64);
    _tile_dpbf16ps(0, 3, 6);
    weigh_quarter(w, halves, 2);
    _tile_stored(0, o, o_row);
    _tile_dpbf16ps(1, 3, 7);
    weigh_quarter(w, halves, 3);
    _tile_stored(1, o + LANES, o_row);
    weigh_advance(w, halves);
}

/* O^T += V^T P^T: P^T rests in T4..T7. */
ALWAYS_INLINE void step_values(const struct step *t, struct weighing *w, int halves) {
    _tile_loadd(4, t->p, TILE_ROWS * sizeof *t->p);
    _tile_loadd(5, t->p + LANES, TILE_ROWS * sizeof *t->p);
    _tile_loadd(6, t->p + TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *t->p);
    _tile_loadd(7, t->p + TILE_SIDE * TILE_ROWS + LANES, TILE_ROWS * sizeof *t->p);
    for (int64_t x = 0; x < t->tiles; ++x) {
        if (w->left > 0)
            values_quad(t, x, w, halves);
        else
            values_quad(t, x, w, 0);
    }
}

/* One step, with `halves` exponentials to a group of up to four products. */
ALWAYS_INLINE void step_at_rate(const struct step *t, struct weighing *weighing, int halves, bool fine) {
    struct weighing w = *weighing;
    w.fine = fine; /* as it is already; a constant from here on */
    tile_barrier();
    if (t->k) step_scores(t, &w, halves);
    if (t->v) step_values(t, &w, halves);
    weigh_rest(&w);
    *weighing = w;
    tile_barrier();
}

/* The exponentials are spread evenly over the step's groups. */
ALWAYS_INLINE void step_spread(const struct step *t, struct weighing *w, bool fine) {
    const int64_t groups = 2 * t->chunks + t->tiles;
    if (groups * 2 >= BLOCK_HALVES)
        step_at_rate(t, w, 2, fine);
    else if (groups * 4 >= BLOCK_HALVES)
        step_at_rate(t, w, 4, fine);
    else
        step_at_rate(t, w, 8, fine);
}

static void step_run(const struct step *t, struct weighing *w) {
    if (w->fine)
        step_spread(t, w, true);
    else
        step_spread(t, w, false);
}

#endif
