/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.h: the tile products of the AMX backward, and the vector work between them. A strip of 32 keys meets a tile
 * of 32 query rows (a unit):
 *
 *     product                  C, fp32             A, 16 rows x 32 bf16        B, 16 pairs x 16 columns
 *     S^T    = K Q^T           [32 keys][32 rows]  K: 32 columns               Q^T: pairs of columns
 *     dP^T   = V dO^T          the same            V                           dO^T
 *     dV    += P^T dO          [32 keys][dim_v]    P^T of a tile: 32 rows      dO: pairs of rows
 *     dK    += dS^T Q          [32 keys][dim]      dS^T                        Q
 *     dQ^T  += K^T dS^T        [dim][32 rows]      K^T: 32 keys                dS^T: pairs of keys
 *
 * So P^T and dS^T leave the vector units as rows of a key, and dS^T once more as pairs of keys. Which rows make a pair is
 * free as long as A and B agree: here rows r and r + 16, so that a row of A is made of a key's two vectors by v_pair. All
 * operands lie tile by tile, 1 KiB each, except S^T, dP^T and dQ^T, whose rows are TILE_ROWS floats.
 *
 * Every product is made of one step, 2 x 2 tiles: C in T0 to T3, A in T4 and T5, B in T6 and T7. Between its four tile
 * products, 16 cycles each, the vector units take a pair of keys of another unit's weights. */
#ifndef STROBE_CPU_AMX_GRADIENTS_H
#define STROBE_CPU_AMX_GRADIENTS_H

#include <math.h>

#include "cpu/amx/sizes.h"
#include "cpu/vector/tile.h"

enum {
    UNIT_FLOATS = STRIP_KEYS * TILE_ROWS,    /* S^T or dP^T of a unit */
    FORM_WORDS = STRIP_KEYS * TILE_ROWS / 2, /* P^T or dS^T: pairs of bf16 */
};

/* P^T and dS^T of a unit in the forms of operands. */
struct weights {
    uint32_t *p, *ds; /* A: [32 keys][16 pairs of rows] */
    uint32_t *pairs;  /* B, dS^T: [16 pairs of keys][32 rows] */
};

/* What the vector units do to a unit: weights and dS from S^T and dP^T, rounded into the three forms; `left` pairs of keys
 * are still to come. */
struct weighing_gradients {
    const float *s, *dp;
    struct weights to;
    vec factor, lse2[VECTORS];
    __mmask16 rows[VECTORS]; /* those that exist */
    int left;
};

/* The next two keys. `hidden`: a score may be -inf; P and dS are 0 there whatever dP and D are, and in rows that do not
 * exist, for which nobody hid the NaN of a key. `ready`: s and dp hold weights and dS already. */
ALWAYS_INLINE void weigh_gradients_pair(struct weighing_gradients *w, bool hidden, bool ready) {
    vec p[2][VECTORS], ds[2][VECTORS];
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            const vec score = v_load(w->s + j * TILE_ROWS + n * LANES);
            p[j][n] = score, ds[j][n] = v_load(w->dp + j * TILE_ROWS + n * LANES);
            if (!ready) {
                p[j][n] = v_exp2_coarse(_mm512_fmsub_ps(score, w->factor, w->lse2[n]));
                ds[j][n] = v_mul(p[j][n], ds[j][n]);
            }
            if (!hidden) continue;
            const __mmask16 seen = _mm512_mask_cmp_ps_mask(w->rows[n], score, v_set(-INFINITY), _CMP_NEQ_UQ);
            p[j][n] = _mm512_maskz_mov_ps(seen, p[j][n]);
            ds[j][n] = _mm512_maskz_mov_ps(seen, ds[j][n]);
        }
    for (int j = 0; j < 2; ++j) {
        _mm512_store_si512(w->to.p + j * LANES, v_pair(p[j][0], p[j][1]));
        _mm512_store_si512(w->to.ds + j * LANES, v_pair(ds[j][0], ds[j][1]));
    }
    for (int n = 0; n < VECTORS; ++n) _mm512_store_si512(w->to.pairs + n * LANES, v_pair(ds[0][n], ds[1][n]));
    w->s += 2 * TILE_ROWS, w->dp += 2 * TILE_ROWS;
    w->to.p += 2 * LANES, w->to.ds += 2 * LANES, w->to.pairs += TILE_ROWS;
    --w->left;
}

ALWAYS_INLINE void weigh_gradients(struct weighing_gradients *w, int pairs, bool hidden, bool ready) {
    for (; pairs > 0 && w->left > 0; --pairs) weigh_gradients_pair(w, hidden, ready);
}

/* The weight, or dS, of key j and row r out of a form of A. */
static inline float weight_of(const uint32_t *form, int64_t j, int64_t r) {
    const uint32_t word = form[j * LANES + r % LANES];
    return bf16_to_float((uint16_t)(r < LANES ? word : word >> 16));
}

/* Where four tiles of C lie, floats apart; row: bytes. */
struct quad {
    float *at;
    int64_t right, below;
    size_t row;
};

ALWAYS_INLINE float *quad_at(const struct quad *c, int64_t x, int64_t y) { return c->at + x * c->right + y * c->below; }

/* T0 to T3 are stored to `open`, where they hold something that is not. */
ALWAYS_INLINE void quad_store(struct quad *open) {
    if (!open->at) return;
    _tile_stored(0, quad_at(open, 0, 0), open->row);
    _tile_stored(1, quad_at(open, 1, 0), open->row);
    _tile_stored(2, quad_at(open, 0, 1), open->row);
    _tile_stored(3, quad_at(open, 1, 1), open->row);
    open->at = NULL;
}

/* Between two chains of steps a tile of T0 to T3 is stored to `open` and starts from `from`, zeros where that is NULL, only
 * when its turn comes: a store waits for the product before it, and so would all that follows. */
struct turn {
    const struct quad *open, *from;
};

#define TURN_TILE(tile, turn, x, y)                                                               \
    do {                                                                                          \
        if ((turn)->open->at) _tile_stored(tile, quad_at((turn)->open, x, y), (turn)->open->row); \
        if ((turn)->from)                                                                         \
            _tile_loadd(tile, quad_at((turn)->from, x, y), (turn)->from->row);                    \
        else                                                                                      \
            _tile_zero(tile);                                                                     \
    } while (0)

/* C += A B over 32 of the inner dimension, a pair of keys of vector work after every second tile product where `weighs`;
 * turn: NULL within a chain. B is streamed: it is not read again soon, and leaves L1 to the rest; so is A with `stream`. */
ALWAYS_INLINE void quad_step(const uint16_t *a, int64_t a_below, const uint16_t *b, const struct turn *turn,
                             struct weighing_gradients *w, bool weighs, bool stream) {
    if (stream)
        _tile_stream_loadd(4, a, 64);
    else
        _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64);
    if (turn) TURN_TILE(0, turn, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + TILE_ELEMENTS, 64);
    if (turn) TURN_TILE(1, turn, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    if (weighs) weigh_gradients_pair(w, false, false);
    if (stream)
        _tile_stream_loadd(5, a + a_below, 64);
    else
        _tile_loadd(5, a + a_below, 64);
    if (turn) TURN_TILE(2, turn, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    if (turn) TURN_TILE(3, turn, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
    if (weighs) weigh_gradients_pair(w, false, false);
}

/* A step of S^T with up to `pairs` of vector work after each product; in a turn not before two tiles of what is weighed, its
 * first 16 keys, are stored. */
ALWAYS_INLINE void weighing_step(const uint16_t *k, int64_t k_below, const uint16_t *q, const struct turn *turn,
                                 struct weighing_gradients *w, int pairs) {
    _tile_loadd(4, k, 64);
    _tile_stream_loadd(6, q, 64);
    if (turn) TURN_TILE(0, turn, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    if (!turn) weigh_gradients(w, pairs, false, false);
    _tile_stream_loadd(7, q + TILE_ELEMENTS, 64);
    if (turn) TURN_TILE(1, turn, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    weigh_gradients(w, pairs, false, false);
    _tile_loadd(5, k + k_below, 64);
    if (turn) TURN_TILE(2, turn, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    weigh_gradients(w, pairs, false, false);
    if (turn) TURN_TILE(3, turn, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
    weigh_gradients(w, pairs, false, false);
}

/* S^T, or dP^T from a row of -D: k [2][chunks] tiles, q [chunks][2] tiles. All vector work that is left is done, before
 * S^T is stored where it reads; w: NULL for dP^T. */
static void product_scores(struct quad *open, float *s, float *start, const uint16_t *k, const uint16_t *q, int64_t chunks,
                           struct weighing_gradients *w) {
    const struct quad rows = {start, LANES, 0, 0};
    const struct turn turn = {open, start ? &rows : NULL};
    const int64_t below = chunks * TILE_ELEMENTS;
    if (w && w->left > 0) {
        const int slots = (int)(4 * chunks - 1), pairs = (w->left + slots - 1) / slots;
        if (chunks == 1) quad_store(open); /* in a turn there is time for 8 pairs at most */
        weighing_step(k, below, q, &turn, w, pairs);
        for (int64_t n = 1; n < chunks; ++n) {
            k += TILE_ELEMENTS, q += 2 * TILE_ELEMENTS;
            weighing_step(k, below, q, NULL, w, pairs);
        }
    } else {
        quad_step(k, below, q, &turn, NULL, false, false);
        for (int64_t n = 1; n < chunks; ++n) {
            k += TILE_ELEMENTS, q += 2 * TILE_ELEMENTS;
            quad_step(k, below, q, NULL, NULL, false, false);
        }
    }
    *open = (struct quad){s, LANES, TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *s};
}

/* The same as quad_step(), with vector work as long as there is some. */
ALWAYS_INLINE void quad_step_or_rest(const uint16_t *a, int64_t a_below, const uint16_t *b, const struct turn *turn,
                                     struct weighing_gradients *w) {
    if (w->left > 0)
        quad_step(a, a_below, b, turn, w, true, true);
    else
        quad_step(a, a_below, b, turn, w, false, true);
}

/* Columns [32 n, 32 n + 32) of dV += P^T dO or dK += dS^T Q over `depth` tiles of rows: g [2][columns] tiles, p [depth][2]
 * tiles, y [depth][columns] tiles; summed: there is something to add to. */
ALWAYS_INLINE void product_outer(struct quad *open, float *g, const uint32_t *p, const uint16_t *y, int64_t n,
                                 int64_t columns, int64_t depth, bool summed, struct weighing_gradients *w) {
    const int64_t tile = TILE_SIDE * TILE_SIDE;
    const struct quad c = {g + 2 * n * tile, tile, columns * tile, TILE_SIDE * sizeof *g};
    const struct turn turn = {open, summed ? &c : NULL};
    const uint16_t *a = (const uint16_t *)p;
    y += 2 * n * TILE_ELEMENTS;
    quad_step_or_rest(a, TILE_ELEMENTS, y, &turn, w);
    for (int64_t t = 1; t < depth; ++t) {
        a += 2 * TILE_ELEMENTS, y += columns * TILE_ELEMENTS;
        quad_step_or_rest(a, TILE_ELEMENTS, y, NULL, w);
    }
    *open = c;
}

#endif
