/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.h: the inner loop of the AMX forward. A tile of 32 queries meets a block of 64 keys in three stages, of which one
 * step runs one each, of three neighbouring blocks, interleaved: while the tile unit multiplies, the vector units take
 * exponentials.
 *
 *     block j+1   S^T = K Q^T             tiles    2 groups of 32 keys:   T0..T3 += (T4, T5: K) (T6, T7: Q^T)
 *     block j     P^T = 2^(S^T c - m c)   vectors  64 pairs of rows of 16 queries, some after each tile product
 *     block j-1   O^T += V^T P^T          tiles    16 rows of V^T each:   T0, T1 += (T2, T3: V^T) (T4..T7: P^T)
 *                 in parts                         32 rows of V^T each:   T0..T3 += (T4, T5: V^T) (T6, T7: P^T)
 *
 *     time ->     step j-1            step j              step j+1
 *     tiles       S(j)   O(j-2)       S(j+1)  O(j-1)      S(j+2)  O(j)
 *     vectors     P(j-1)              P(j)                P(j+1)
 *
 * Layouts: S^T [64 keys][32 queries] fp32, twice; P^T [PARTS][32 pairs of keys][32 queries] pairs of bf16, twice; O^T
 * [dim_v][32] fp32; Q^T [dim / 32][PARTS][2][16 pairs][16 queries] pairs; K [PARTS][64][stride], natural; V^T [dim_v / 16]
 * [PARTS][2][16][32 keys]. K and V^T are streamed past L1 (48 KiB), in which S, P, O and Q live: 48 KiB at dim 128 in bf16.
 * In parts they are up to 80 KiB, but then a tile that is loaded takes part in up to three times as many products. */
#ifndef STROBE_CPU_AMX_STEP_H
#define STROBE_CPU_AMX_STEP_H

#include "cpu/amx/operand.h"
#include "cpu/vector/tile.h"

enum {
    HALF_KEYS = BLOCK_KEYS / 2,              /* of a block, where no row sees the others */
    BLOCK_HALVES = BLOCK_KEYS / 2 * VECTORS, /* pairs of key rows x vectors: what a step's exponentials are counted in */
    P_WORDS = BLOCK_KEYS / 2 * TILE_ROWS,    /* of a part of P^T */
};

/* Exponentials on their way through a block. */
struct weighing {
    const float *s;
    uint32_t *p;
    vec factor, shift[VECTORS], sum[VECTORS];
    int left;  /* of BLOCK_HALVES */
    bool fine; /* lse is wanted: sums as exact as fp32 has them */
};

struct step {
    const uint16_t *k; /* NULL: no block j+1 */
    int64_t k_keys;    /* of it that are scored, 32 or 64 */
    int64_t k_stride;  /* elements */
    const uint16_t *q;
    int64_t chunks; /* of 32 columns of K */
    float *s;
    const uint16_t *v; /* NULL: no block j-1 */
    bool v_whole;      /* its weights are of 64 keys, not of 32 */
    const uint32_t *p;
    float *o;
    bool o_empty;  /* zero, whatever its memory holds */
    int64_t tiles; /* of 16 columns of V */
};

/* Two rows of weights in parts. */
ALWAYS_INLINE void store_pair(uint32_t *p, vec even, vec odd) {
    for (int part = 1; part < PARTS; ++part, p += P_WORDS) {
        const __m512i even_part = part == 1 ? round_part(&even) : cut_part(&even);
        _mm512_store_si512(p, v_pair_cut(even_part, part == 1 ? round_part(&odd) : cut_part(&odd)));
    }
    _mm512_store_si512(p, v_pair(even, odd));
}

ALWAYS_INLINE void weigh_pair(struct weighing *w, int pair, int n) {
    const float *s = w->s + 2 * pair * TILE_ROWS + n * LANES;
    const vec even_x = _mm512_fmsub_ps(v_load(s), w->factor, w->shift[n]);
    const vec odd_x = _mm512_fmsub_ps(v_load(s + TILE_ROWS), w->factor, w->shift[n]);
    const bool fine = w->fine || PARTS > 1;
    const vec even = fine ? v_exp2(even_x) : v_exp2_coarse(even_x), odd = fine ? v_exp2(odd_x) : v_exp2_coarse(odd_x);
    w->sum[n] = v_add(w->sum[n], v_add(even, odd));
    store_pair(w->p + pair * TILE_ROWS + n * LANES, even, odd);
}

/* The part-th quarter of `halves` exponentials. */
ALWAYS_INLINE void weigh_quarter(struct weighing *w, int halves, int part) {
    for (int u = part * halves / 4; u < (part + 1) * halves / 4; ++u) weigh_pair(w, u / VECTORS, u % VECTORS);
}

ALWAYS_INLINE void weigh_advance(struct weighing *w, int halves) {
    if (halves == 0) return; /* there may be no scores at all */
    w->s += halves * TILE_ROWS;
    w->p += halves / 2 * TILE_ROWS;
    w->left -= halves;
}

ALWAYS_INLINE void weigh_rest(struct weighing *w) {
    for (; w->left >= 8; weigh_advance(w, 8))
        weigh_quarter(w, 8, 0), weigh_quarter(w, 8, 1), weigh_quarter(w, 8, 2), weigh_quarter(w, 8, 3);
    for (; w->left > 0; weigh_advance(w, VECTORS))
        for (int n = 0; n < VECTORS; ++n) weigh_pair(w, 0, n);
}

/* Two tiles of an operand, one below or beside the other; distances in bytes. */
struct operand {
    const uint16_t *at;
    size_t row, next;
    int64_t part; /* elements from one part to the next */
};

ALWAYS_INLINE const void *second(struct operand x) { return (const char *)x.at + x.next; }

/* What T0..T3 change to before a chain of products: what they hold is stored to `done`, unless it is NULL, and they start
 * from `start`, or from zero where it is NULL; both [.][TILE_ROWS]. A tile is stored only when its turn comes in the next
 * chain: a store right behind the product it waits for would hold up all that follows. */
struct chain {
    float *done;
    const float *start;
};

#define TURN_TILE(tile, chain, at)                                                                      \
    do {                                                                                                \
        if ((chain)->done) _tile_stored(tile, (chain)->done + (at), TILE_ROWS * sizeof *(chain)->done); \
        if ((chain)->start)                                                                             \
            _tile_loadd(tile, (chain)->start + (at), TILE_ROWS * sizeof *(chain)->start);               \
        else                                                                                            \
            _tile_zero(tile);                                                                           \
    } while (0)

enum { BELOW = TILE_SIDE * TILE_ROWS }; /* from a tile of S or O to the one below it; the one beside it is LANES away */

/* T0..T3 += (T4, T5: a) (T6, T7: b); turn: NULL within a chain. */
ALWAYS_INLINE void quad(struct operand a, bool fresh_a, struct operand b, bool fresh_b, const struct chain *turn,
                        struct weighing *w, int halves) {
    if (fresh_a) _tile_stream_loadd(4, a.at, a.row);
    if (fresh_b) _tile_loadd(6, b.at, b.row);
    if (turn) TURN_TILE(0, turn, 0);
    _tile_dpbf16ps(0, 4, 6);
    weigh_quarter(w, halves, 0);
    if (fresh_b) _tile_loadd(7, second(b), b.row);
    if (turn) TURN_TILE(1, turn, LANES);
    _tile_dpbf16ps(1, 4, 7);
    weigh_quarter(w, halves, 1);
    if (fresh_a) _tile_stream_loadd(5, second(a), a.row);
    if (turn) TURN_TILE(2, turn, BELOW);
    _tile_dpbf16ps(2, 5, 6);
    weigh_quarter(w, halves, 2);
    if (turn) TURN_TILE(3, turn, BELOW + LANES);
    _tile_dpbf16ps(3, 5, 7);
    weigh_quarter(w, halves, 3);
    weigh_advance(w, halves);
}

/* All products of the parts of a and b, from products[first] on. at: of parts 0; part: distance of parts in elements. */
ALWAYS_INLINE void quads(struct operand a, struct operand b, int first, const struct chain *turn, struct weighing *w,
                         int halves) {
    for (int n = first; n < PRODUCTS; ++n) {
        const struct operand a_part = {a.at + products[n].a * a.part, .row = a.row, .next = a.next};
        const struct operand b_part = {b.at + products[n].b * b.part, .row = b.row, .next = b.next};
        const bool fresh_a = n == first || products[n].fresh_a, fresh_b = n == first || products[n].fresh_b;
        const struct chain *now = n == first ? turn : NULL;
        if (w->left > 0)
            quad(a_part, fresh_a, b_part, fresh_b, now, w, halves);
        else
            quad(a_part, fresh_a, b_part, fresh_b, now, w, 0);
    }
}

/* T0..T3 are stored, at the end of all chains. */
ALWAYS_INLINE void store_tiles(float *to) {
    const size_t row = TILE_ROWS * sizeof *to;
    _tile_stored(0, to, row);
    _tile_stored(1, to + LANES, row);
    _tile_stored(2, to + BELOW, row);
    _tile_stored(3, to + BELOW + LANES, row);
}

/* S^T of the next block, but for its last four tiles, which are in T0..T3: returns where they belong. */
ALWAYS_INLINE float *step_scores(const struct step *t, struct weighing *w, int halves) {
    const size_t k_row = (size_t)t->k_stride * sizeof *t->k;
    const int first = w->fine ? 0 : LSE_PRODUCTS;
    struct chain turn = {.done = NULL};
    for (int64_t j = 0; j < t->k_keys; j += HALF_KEYS) {
        struct operand k = {t->k + j * t->k_stride, .row = k_row, .next = TILE_SIDE * k_row,
                            .part = BLOCK_KEYS * t->k_stride};
        struct operand q = {t->q, .row = 64, .next = TILE_ELEMENTS * sizeof *t->q, .part = 2 * TILE_ELEMENTS};
        quads(k, q, first, &turn, w, halves);
        for (int64_t c = 1; c < t->chunks; ++c) {
            k.at += TILE_DEPTH, q.at += PARTS * q.part;
            quads(k, q, first, NULL, w, halves);
        }
        turn.done = t->s + j * TILE_ROWS;
    }
    return turn.done;
}

/* O^T += V^T P^T in parts, 32 columns of V at a time. */
ALWAYS_INLINE void step_values_in_parts(const struct step *t, struct weighing *w, int halves) {
    struct chain turn = {.done = NULL};
    for (int64_t x = 0; x < t->tiles; x += 2) {
        struct operand v = {t->v + x * PARTS * 2 * TILE_ELEMENTS, .row = 64, .part = 2 * TILE_ELEMENTS};
        struct operand p = {(const uint16_t *)t->p, .row = TILE_ROWS * sizeof *t->p, .next = LANES * sizeof *t->p,
                            .part = 2 * P_WORDS};
        v.next = (size_t)(PARTS * v.part) * sizeof *v.at;
        turn.start = t->o_empty ? NULL : t->o + x * BELOW;
        quads(v, p, LSE_PRODUCTS, &turn, w, halves);
        v.at += TILE_ELEMENTS, p.at += P_WORDS; /* the other 32 keys: half of P's words, two bf16 each */
        if (t->v_whole) quads(v, p, LSE_PRODUCTS, NULL, w, halves);
        turn.done = t->o + x * BELOW;
    }
    store_tiles(turn.done);
}

/* A tile becomes what O^T has at `at`. */
#define START_O(tile, t, at)                                 \
    do {                                                     \
        if ((t)->o_empty)                                    \
            _tile_zero(tile);                                \
        else                                                 \
            _tile_loadd(tile, at, TILE_ROWS * sizeof *(at)); \
    } while (0)

/* The x-th 16 columns of V, in T2 and T3, with O^T's left half in T0 and the right half of those before in T1. What the next
 * ones need is loaded as soon as its tile is free; stores come two products behind the one they wait for. */
ALWAYS_INLINE void values_pair(const struct step *t, int64_t x, float *before, struct weighing *w, int halves) {
    const bool more = x + 1 < t->tiles;
    const uint16_t *next = t->v + (x + 1) * 2 * TILE_ELEMENTS;
    const size_t o_row = TILE_ROWS * sizeof *t->o;
    float *o = t->o + x * BELOW;
    _tile_dpbf16ps(0, 2, 4);
    weigh_quarter(w, halves, 0);
    if (t->v_whole) _tile_dpbf16ps(0, 3, 6);
    weigh_quarter(w, halves, 1);
    if (before) _tile_stored(1, before, o_row);
    START_O(1, t, o + LANES);
    _tile_dpbf16ps(1, 2, 5);
    if (more) _tile_stream_loadd(2, next, 64);
    weigh_quarter(w, halves, 2);
    if (t->v_whole) _tile_dpbf16ps(1, 3, 7);
    if (more) _tile_stream_loadd(3, next + TILE_ELEMENTS, 64);
    weigh_quarter(w, halves, 3);
    _tile_stored(0, o, o_row);
    if (more)
        START_O(0, t, o + BELOW);
    else
        _tile_stored(1, o + LANES, o_row);
    weigh_advance(w, halves);
}

/* O^T += V^T P^T in bf16: P^T rests in T4..T7. scores: NULL, or where T0..T3 are to be stored as their turn comes. */
ALWAYS_INLINE void step_values(const struct step *t, float *scores, struct weighing *w, int halves) {
    const size_t p_row = TILE_ROWS * sizeof *t->p, row = TILE_ROWS * sizeof *t->o;
    _tile_loadd(4, t->p, p_row);
    _tile_loadd(6, t->p + BELOW, p_row);
    if (scores) _tile_stored(0, scores, row);
    START_O(0, t, t->o);
    if (scores) _tile_stored(2, scores + BELOW, row);
    _tile_stream_loadd(2, t->v, 64);
    if (scores) _tile_stored(3, scores + BELOW + LANES, row);
    _tile_stream_loadd(3, t->v + TILE_ELEMENTS, 64);
    _tile_loadd(5, t->p + LANES, p_row);
    _tile_loadd(7, t->p + BELOW + LANES, p_row);
    float *before = scores ? scores + LANES : NULL;
    for (int64_t x = 0; x < t->tiles; ++x) {
        if (w->left > 0)
            values_pair(t, x, before, w, halves);
        else
            values_pair(t, x, before, w, 0);
        before = t->o + x * BELOW + LANES;
    }
}

/* One step, with `halves` exponentials to a group of up to four products. */
ALWAYS_INLINE void step_at_rate(const struct step *t, struct weighing *weighing, int halves, bool fine) {
    struct weighing w = *weighing;
    w.fine = fine; /* as it is already; a constant from here on */
    tile_barrier();
    float *scores = t->k ? step_scores(t, &w, halves) : NULL;
    if (scores && (!t->v || PARTS > 1)) store_tiles(scores);
    if (t->v && PARTS == 1) step_values(t, t->k ? scores : NULL, &w, halves);
    if (t->v && PARTS > 1) step_values_in_parts(t, &w, halves);
    weigh_rest(&w);
    *weighing = w;
    tile_barrier();
}

/* The exponentials are spread evenly over the step's groups. */
ALWAYS_INLINE void step_spread(const struct step *t, struct weighing *w, bool fine) {
    const int64_t groups = (PRODUCTS - LSE_PRODUCTS) * (2 * t->chunks + t->tiles);
    if (groups * 2 >= BLOCK_HALVES)
        step_at_rate(t, w, 2, fine);
    else if (groups * 4 >= BLOCK_HALVES)
        step_at_rate(t, w, 4, fine);
    else
        step_at_rate(t, w, 8, fine);
}

static void step_run(const struct step *t, struct weighing *w) {
    if (w->fine || PARTS == 3) /* in fp32 both are the same */
        step_spread(t, w, true);
    else
        step_spread(t, w, false);
}

#endif
