/* SPDX-License-Identifier: BSD-3-Clause
 *
 * step.h: the inner loop of the AMX forward, software-pipelined over blocks of keys. A tile of 32 queries and a block of 64
 * keys go through three stages. One step runs one stage each of three neighbouring blocks, with their instructions
 * interleaved: the vector units compute exponentials while the tile unit multiplies (FlashAttention-3, section 3.2).
 *
 *     block j+1   S^T = K Q^T             tiles    2 groups of 32 keys:     T0..T3 += (T4, T5: K) (T6, T7: Q^T)
 *     block j     P^T = 2^(S^T c - m c)   vectors  64 pairs of vectors, a few after each tile product
 *     block j-1   O^T += V^T P^T          tiles    bf16: 16 rows of V^T:    T0, T1 += (T2, T3: V^T) (T4..T7: P^T)
 *                                                  parts: 32 rows of V^T:   T0..T3 += (T4, T5: V^T) (T6, T7: P^T)
 *
 *     time ->     step j-1            step j              step j+1
 *     tiles       S(j)   O(j-2)       S(j+1)  O(j-1)      S(j+2)  O(j)
 *     vectors     P(j-1)              P(j)                P(j+1)
 *
 * Memory map, where "pair" is two neighbouring bf16 in one word and PARTS is the number of bf16 parts of an element:
 *
 *     S^T   [64 keys][32 queries] fp32                                two buffers
 *     P^T   [PARTS][32 pairs of keys][32 queries] pairs               two buffers
 *     O^T   [dim_v][32 queries] fp32
 *     Q^T   [dim / 32][PARTS][2][16 pairs of columns][16 queries] pairs
 *     K     [PARTS][64 keys][stride]                                  rows as they lie in memory
 *     V^T   [dim_v / 16][PARTS][2][16 columns][32 keys]
 *
 * S, P, O and Q stay in L1; K and V^T are streamed past it (non-temporal tile loads). In bf16 at dim 128 the four take 48
 * KiB, all of L1. In parts they take up to 80 KiB, but a tile that is loaded then takes part in up to three times as many
 * products. */
#ifndef STROBE_CPU_AMX_STEP_H
#define STROBE_CPU_AMX_STEP_H

#include "cpu/amx/operand.h"
#include "cpu/vector/tile.h"

enum {
    HALF_KEYS = BLOCK_KEYS / 2,             /* a block is cut to so many keys where no row sees the other half */
    BLOCK_PAIRS = BLOCK_KEYS / 2 * VECTORS, /* the exponentials of a step, in pairs of vectors: two keys, 16 queries */
    P_WORDS = BLOCK_KEYS / 2 * TILE_ROWS,   /* the words of one part of P^T */
};

/* The state of P = exp(S - m) of one block, which is computed a pair of vectors at a time. */
struct exponentials {
    const float *s;                           /* the next two rows of S^T */
    uint32_t *p;                              /* the next row of P^T */
    vec factor, shift[VECTORS], sum[VECTORS]; /* c; m where fine, else m c; rowsum(P) in fp32, before P is rounded */
    int left;                                 /* pairs of vectors still to come */
    bool fine;                                /* lse is wanted, or m c is too large: exponentials to fp32 accuracy */
};

/* The operands of one step. */
struct step {
    const uint16_t *k; /* block j+1; NULL: there is none */
    int64_t k_keys;    /* the keys of it that are scored, 32 or 64 */
    int64_t k_stride;  /* elements */
    const uint16_t *q;
    int64_t chunks; /* groups of 32 columns of K */
    float *s;
    const uint16_t *v; /* block j-1; NULL: there is none */
    bool v_whole;      /* P of block j-1 has 64 keys; false: 32 */
    const uint32_t *p;
    float *o;
    bool o_empty;  /* O is zero, whatever its memory holds */
    int64_t tiles; /* groups of 16 columns of V */
};

/* Stores two rows of P^T as pairs of bf16, in parts. */
ALWAYS_INLINE void store_pair(uint32_t *p, vec even, vec odd) {
    for (int part = 1; part < PARTS; ++part, p += P_WORDS) {
        const vec_words even_part = part == 1 ? round_part(&even) : cut_part(&even);
        w_store(p, v_pair_cut(even_part, part == 1 ? round_part(&odd) : cut_part(&odd)));
    }
    w_store(p, v_pair(even, odd));
}

/* The exponent of scores at s, (S - m) c. Coarsely it is one instruction, S c - m c. What m c loses by rounding is part of
 * every P of a row, so O does not have it, but lse would. */
ALWAYS_INLINE vec exponent(const struct exponentials *e, const float *s, int n, bool fine) {
    if (fine) return v_mul(v_sub(v_load(s), e->shift[n]), e->factor);
    return v_fms(v_load(s), e->factor, e->shift[n]);
}

/* P of keys 2 pair and 2 pair + 1 from e->s on, for the queries of vector n. */
ALWAYS_INLINE void exponential_pair(struct exponentials *e, int pair, int n) {
    const float *s = e->s + 2 * pair * TILE_ROWS + n * LANES;
    const bool fine = e->fine || PARTS > 1;
    const vec even_x = exponent(e, s, n, fine), odd_x = exponent(e, s + TILE_ROWS, n, fine);
    const vec even = fine ? v_exp2(even_x) : v_exp2_coarse(even_x), odd = fine ? v_exp2(odd_x) : v_exp2_coarse(odd_x);
    e->sum[n] = v_add(e->sum[n], v_add(even, odd));
    store_pair(e->p + pair * TILE_ROWS + n * LANES, even, odd);
}

/* The quarter-th quarter of `pairs` pairs: what is done after one of four tile products. */
ALWAYS_INLINE void exponential_quarter(struct exponentials *e, int pairs, int quarter) {
    for (int u = quarter * pairs / 4; u < (quarter + 1) * pairs / 4; ++u) exponential_pair(e, u / VECTORS, u % VECTORS);
}

ALWAYS_INLINE void exponentials_advance(struct exponentials *e, int pairs) {
    if (pairs == 0) return; /* without a block j the pointers may be NULL */
    e->s += pairs * TILE_ROWS;
    e->p += pairs / 2 * TILE_ROWS;
    e->left -= pairs;
}

/* The pairs that no tile product was left to cover. */
ALWAYS_INLINE void exponentials_rest(struct exponentials *e) {
    for (; e->left >= 8; exponentials_advance(e, 8)) { /* written out: a loop would not become constants */
        exponential_quarter(e, 8, 0);
        exponential_quarter(e, 8, 1);
        exponential_quarter(e, 8, 2);
        exponential_quarter(e, 8, 3);
    }
    for (; e->left > 0; exponentials_advance(e, VECTORS))
        for (int n = 0; n < VECTORS; ++n) exponential_pair(e, 0, n);
}

/* Two tiles of an operand, one below or beside the other. */
struct operand {
    const uint16_t *at;
    size_t row, next; /* bytes from one row, from one tile, to the next */
    int64_t part;     /* elements from one part to the next */
};

ALWAYS_INLINE const void *second(struct operand x) { return (const char *)x.at + x.next; }

/* Tile rotation: T0..T3 hold the sums of one chain of products and then those of the next. The old sums go to `store_to`
 * (NULL: nowhere), the new ones start from `load_from` (NULL: from zero); both are [.][TILE_ROWS]. Each tile is stored and
 * loaded just before its first product of the next chain. A store waits for the last product into its tile; directly behind
 * that product it would hold up all instructions that follow. */
struct tile_rotation {
    float *store_to;
    const float *load_from;
};

#define ROTATE_TILE(tile, rotation, at)                                                                 \
    do {                                                                                                \
        if ((rotation)->store_to)                                                                       \
            _tile_stored(tile, (rotation)->store_to + (at), TILE_ROWS * sizeof *(rotation)->store_to);  \
        if ((rotation)->load_from)                                                                      \
            _tile_loadd(tile, (rotation)->load_from + (at), TILE_ROWS * sizeof *(rotation)->load_from); \
        else                                                                                            \
            _tile_zero(tile);                                                                           \
    } while (0)

/* Floats from a tile of S or O to the one below it; the one beside it is LANES away. */
enum { BELOW = TILE_SIDE * TILE_ROWS };

/* T0..T3 += (T4, T5: a) (T6, T7: b), and `pairs` pairs of exponentials, a quarter of them after each tile product. `fresh`:
 * the operand is not in its tiles yet. `rotation` is given for the first product of a chain, NULL within it. */
ALWAYS_INLINE void multiply_2x2(struct operand a, bool fresh_a, struct operand b, bool fresh_b,
                                const struct tile_rotation *rotation, struct exponentials *e, int pairs) {
    if (fresh_a) _tile_stream_loadd(4, a.at, a.row);
    if (fresh_b) _tile_loadd(6, b.at, b.row);
    if (rotation) ROTATE_TILE(0, rotation, 0);
    _tile_dpbf16ps(0, 4, 6);
    exponential_quarter(e, pairs, 0);
    if (fresh_b) _tile_loadd(7, second(b), b.row);
    if (rotation) ROTATE_TILE(1, rotation, LANES);
    _tile_dpbf16ps(1, 4, 7);
    exponential_quarter(e, pairs, 1);
    if (fresh_a) _tile_stream_loadd(5, second(a), a.row);
    if (rotation) ROTATE_TILE(2, rotation, BELOW);
    _tile_dpbf16ps(2, 5, 6);
    exponential_quarter(e, pairs, 2);
    if (rotation) ROTATE_TILE(3, rotation, BELOW + LANES);
    _tile_dpbf16ps(3, 5, 7);
    exponential_quarter(e, pairs, 3);
    exponentials_advance(e, pairs);
}

/* The products of the parts of a and b, from products[first] on; a and b are their parts 0. */
ALWAYS_INLINE void multiply_parts(struct operand a, struct operand b, int first, const struct tile_rotation *rotation,
                                  struct exponentials *e, int pairs) {
    for (int n = first; n < PRODUCTS; ++n) {
        const struct operand a_part = {a.at + products[n].a * a.part, .row = a.row, .next = a.next};
        const struct operand b_part = {b.at + products[n].b * b.part, .row = b.row, .next = b.next};
        const bool fresh_a = n == first || products[n].fresh_a, fresh_b = n == first || products[n].fresh_b;
        const struct tile_rotation *now = n == first ? rotation : NULL;
        if (e->left > 0)
            multiply_2x2(a_part, fresh_a, b_part, fresh_b, now, e, pairs);
        else
            multiply_2x2(a_part, fresh_a, b_part, fresh_b, now, e, 0);
    }
}

/* Stores T0..T3 after the last chain. */
ALWAYS_INLINE void store_tiles(float *to) {
    const size_t row = TILE_ROWS * sizeof *to;
    _tile_stored(0, to, row);
    _tile_stored(1, to + LANES, row);
    _tile_stored(2, to + BELOW, row);
    _tile_stored(3, to + BELOW + LANES, row);
}

/* S^T of block j+1. Its last four tiles stay in T0..T3; returns where they are to be stored. */
ALWAYS_INLINE float *step_scores(const struct step *t, struct exponentials *e, int pairs) {
    const size_t k_row = (size_t)t->k_stride * sizeof *t->k;
    const int first = e->fine ? 0 : SCORE_PRODUCTS;
    struct tile_rotation rotation = {.store_to = NULL};
    for (int64_t j = 0; j < t->k_keys; j += HALF_KEYS) {
        struct operand k = {t->k + j * t->k_stride, .row = k_row, .next = TILE_SIDE * k_row,
                            .part = BLOCK_KEYS * t->k_stride};
        struct operand q = {t->q, .row = 64, .next = TILE_ELEMENTS * sizeof *t->q, .part = 2 * TILE_ELEMENTS};
        multiply_parts(k, q, first, &rotation, e, pairs);
        for (int64_t c = 1; c < t->chunks; ++c) {
            k.at += TILE_DEPTH;
            q.at += PARTS * q.part;
            multiply_parts(k, q, first, NULL, e, pairs);
        }
        rotation.store_to = t->s + j * TILE_ROWS;
    }
    return rotation.store_to;
}

/* O^T += V^T P^T of block j-1 in parts, 32 columns of V at a time. */
ALWAYS_INLINE void step_values_in_parts(const struct step *t, struct exponentials *e, int pairs) {
    struct tile_rotation rotation = {.store_to = NULL};
    for (int64_t x = 0; x < t->tiles; x += 2) {
        struct operand v = {t->v + x * PARTS * 2 * TILE_ELEMENTS, .row = 64, .part = 2 * TILE_ELEMENTS};
        struct operand p = {(const uint16_t *)t->p, .row = TILE_ROWS * sizeof *t->p, .next = LANES * sizeof *t->p,
                            .part = 2 * P_WORDS};
        v.next = (size_t)(PARTS * v.part) * sizeof *v.at;
        rotation.load_from = t->o_empty ? NULL : t->o + x * BELOW;
        multiply_parts(v, p, SCORE_PRODUCTS, &rotation, e, pairs);
        v.at += TILE_ELEMENTS;
        p.at += P_WORDS; /* the other 32 keys: half of P's words, two bf16 each */
        if (t->v_whole) multiply_parts(v, p, SCORE_PRODUCTS, NULL, e, pairs);
        rotation.store_to = t->o + x * BELOW;
    }
    store_tiles(rotation.store_to);
}

/* A tile register is loaded with the sums of O^T at `at`, or with zeros where O is empty. */
#define START_O(tile, t, at)                                 \
    do {                                                     \
        if ((t)->o_empty)                                    \
            _tile_zero(tile);                                \
        else                                                 \
            _tile_loadd(tile, at, TILE_ROWS * sizeof *(at)); \
    } while (0)

/* The x-th group of 16 columns of V: O^T, 16 queries in T0 and 16 in T1, += V^T (T2, T3) P^T (T4..T7). On entry T2 and T3
 * hold V^T and T0 its sums, while T1 still holds sums of the group before, which belong at `before`. V^T and the sums of the
 * next group are loaded as soon as a tile is free; a store comes two products after the one that it waits for. */
ALWAYS_INLINE void values_pair(const struct step *t, int64_t x, float *before, struct exponentials *e, int pairs) {
    const bool more = x + 1 < t->tiles;
    const uint16_t *next = t->v + (x + 1) * 2 * TILE_ELEMENTS;
    const size_t o_row = TILE_ROWS * sizeof *t->o;
    float *o = t->o + x * BELOW;
    _tile_dpbf16ps(0, 2, 4);
    exponential_quarter(e, pairs, 0);
    if (t->v_whole) _tile_dpbf16ps(0, 3, 6);
    exponential_quarter(e, pairs, 1);
    if (before) _tile_stored(1, before, o_row);
    START_O(1, t, o + LANES);
    _tile_dpbf16ps(1, 2, 5);
    if (more) _tile_stream_loadd(2, next, 64);
    exponential_quarter(e, pairs, 2);
    if (t->v_whole) _tile_dpbf16ps(1, 3, 7);
    if (more) _tile_stream_loadd(3, next + TILE_ELEMENTS, 64);
    exponential_quarter(e, pairs, 3);
    _tile_stored(0, o, o_row);
    if (more)
        START_O(0, t, o + BELOW);
    else
        _tile_stored(1, o + LANES, o_row);
    exponentials_advance(e, pairs);
}

/* O^T += V^T P^T of block j-1 in bf16, with P^T in T4..T7 throughout. scores: where the tiles of S^T in T0..T3 belong, each
 * of which is stored just before its register is needed; NULL: there are none. */
ALWAYS_INLINE void step_values(const struct step *t, float *scores, struct exponentials *e, int pairs) {
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
        if (e->left > 0)
            values_pair(t, x, before, e, pairs);
        else
            values_pair(t, x, before, e, 0);
        before = t->o + x * BELOW + LANES;
    }
}

/* One step, with `pairs` pairs of exponentials to a group of up to four tile products. */
ALWAYS_INLINE void step_at_rate(const struct step *t, struct exponentials *exponentials, int pairs, bool fine) {
    struct exponentials e = *exponentials;
    e.fine = fine; /* the value that it has, as a constant, so that the compiler drops the other branch */
    tile_barrier();
    float *scores = t->k ? step_scores(t, &e, pairs) : NULL;
    if (scores && (!t->v || PARTS > 1)) store_tiles(scores);
    if (t->v && PARTS == 1) step_values(t, t->k ? scores : NULL, &e, pairs);
    if (t->v && PARTS > 1) step_values_in_parts(t, &e, pairs);
    exponentials_rest(&e);
    *exponentials = e;
    tile_barrier();
}

/* One step, with its exponentials spread evenly over its groups of tile products. */
ALWAYS_INLINE void step_spread(const struct step *t, struct exponentials *e, bool fine) {
    const int64_t groups = (PRODUCTS - SCORE_PRODUCTS) * (2 * t->chunks + t->tiles);
    if (groups * 2 >= BLOCK_PAIRS)
        step_at_rate(t, e, 2, fine);
    else if (groups * 4 >= BLOCK_PAIRS)
        step_at_rate(t, e, 4, fine);
    else
        step_at_rate(t, e, 8, fine);
}

/* One step. */
static void step_run(const struct step *t, struct exponentials *e) {
    if (e->fine || PARTS == 3) /* in fp32 exponentials are always fine */
        step_spread(t, e, true);
    else
        step_spread(t, e, false);
}

#endif
