/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.h: the tile products of the AMX backward and the vector work between them, for a block pair, which is a strip of
 * 32 keys and a tile of 32 query rows:
 *
 *     product                  C, fp32             A, 16 rows x 32 bf16        B, 16 pairs x 16 columns
 *     S^T    = K Q^T           [32 keys][32 rows]  K: 32 columns               Q^T: pairs of columns
 *     dP^T   = V dO^T          the same            V                           dO^T
 *     dV    += P^T dO          [32 keys][dim_v]    P^T of a tile: 32 rows      dO: pairs of rows
 *     dK    += dS^T Q          [32 keys][dim]      dS^T                        Q
 *     dQ^T  += K^T dS^T        [dim][32 rows]      K^T: 32 keys                dS^T: pairs of keys
 *
 * The vector work is P = exp(S - lse) and dS = P (dP - delta). The chain of dP^T starts from -delta, so delta takes no
 * vector instruction. P^T and dS^T are stored as operands A, a row for each key, and dS^T a second time as operand B, in
 * pairs of keys. Which two rows make a pair is free as long as A and B agree: here rows r and r + 16, so that v_pair makes a
 * row of A from the two vectors of a key.
 *
 * All operands are stored tile by tile, 1 KiB each. S^T, dP^T and dQ^T are stored in rows of TILE_ROWS floats.
 *
 * Every product is made of one step, 2 x 2 tiles: C in T0 to T3, A in T4 and T5, B in T6 and T7. A tile product takes 16
 * cycles; between the four of a step the vector units work on keys of another block pair. */
#ifndef STROBE_CPU_AMX_GRADIENTS_H
#define STROBE_CPU_AMX_GRADIENTS_H

#include <math.h>

#include "cpu/amx/sizes.h"
#include "cpu/vector/tile.h"

enum {
    PAIR_FLOATS = STRIP_KEYS * TILE_ROWS,       /* S^T or dP^T of a block pair */
    OPERAND_WORDS = STRIP_KEYS * TILE_ROWS / 2, /* P^T or dS^T of a block pair, in pairs of bf16 */
};

/* P^T and dS^T of a block pair, in the layouts of operands. */
struct gradient_operands {
    uint32_t *p, *ds; /* A: [32 keys][16 pairs of rows] */
    uint32_t *pairs;  /* B, dS^T: [16 pairs of keys][32 rows] */
};

/* The vector work of a block pair: P and dS from S^T and dP^T, two keys at a time, rounded into the three operands. */
struct softmax_gradients {
    const float *s, *dp; /* of the next two keys */
    struct gradient_operands to;
    const float *slope, *z;          /* of the next two keys: softcap's slope, dropout's factors; NULL: there are none */
    const float *minus_delta;        /* with dropout: -delta of the rows, from which the chain of dP has not started then */
    vec factor, minus_lse2[VECTORS]; /* P = 2^(S factor - lse2) */
    lane_mask rows[VECTORS];         /* the rows that exist */
    int left;                        /* pairs of keys still to come */
    bool hidden;                     /* a score may be -inf, or there is softcap or dropout; the functions' `hidden` */
};

/* dP becomes Z dP - delta. */
ALWAYS_INLINE void drop_gradients(const struct softmax_gradients *work, vec dp[2][VECTORS]) {
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n)
            dp[j][n] = v_fma(dp[j][n], v_load(work->z + j * TILE_ROWS + n * LANES), v_load(work->minus_delta + n * LANES));
}

/* x is multiplied by two keys of `by`. */
ALWAYS_INLINE void multiply_two_keys(vec x[2][VECTORS], const float *by) {
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) x[j][n] = v_mul(x[j][n], v_load(by + j * TILE_ROWS + n * LANES));
}

/* The vector work of the next two keys. `hidden`: as in the structure. P and dS are 0 where a score is -inf, whatever dP and
 * delta are, and in rows that do not exist, where a key's NaN is not masked. `ready`: s and dp hold P and dS already. */
ALWAYS_INLINE void softmax_gradients_variant(struct softmax_gradients *work, bool hidden, bool ready) {
    vec score[2][VECTORS], p[2][VECTORS], ds[2][VECTORS];
    const bool drops = hidden && !ready && work->z;
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            score[j][n] = v_load(work->s + j * TILE_ROWS + n * LANES);
            ds[j][n] = v_load(work->dp + j * TILE_ROWS + n * LANES);
            p[j][n] = ready ? score[j][n] : v_exp2_coarse(v_fma(score[j][n], work->factor, work->minus_lse2[n]));
            if (!ready && !hidden) ds[j][n] = v_mul(p[j][n], ds[j][n]);
        }
    if (drops) drop_gradients(work, ds);
    for (int j = 0; j < 2 && !ready && hidden; ++j)
        for (int n = 0; n < VECTORS; ++n) ds[j][n] = v_mul(p[j][n], ds[j][n]);
    if (drops) multiply_two_keys(p, work->z);
    if (hidden && !ready && work->slope) multiply_two_keys(ds, work->slope);
    for (int j = 0; j < 2 && hidden; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            p[j][n] = v_keep_visible(work->rows[n], score[j][n], p[j][n]);
            ds[j][n] = v_keep_visible(work->rows[n], score[j][n], ds[j][n]);
        }
    for (int j = 0; j < 2; ++j) {
        w_store(work->to.p + j * LANES, v_pair(p[j][0], p[j][1]));
        w_store(work->to.ds + j * LANES, v_pair(ds[j][0], ds[j][1]));
    }
    for (int n = 0; n < VECTORS; ++n) w_store(work->to.pairs + n * LANES, v_pair(ds[0][n], ds[1][n]));
    work->s += 2 * TILE_ROWS;
    work->dp += 2 * TILE_ROWS;
    if (drops) work->z += 2 * TILE_ROWS;
    if (hidden && work->slope) work->slope += 2 * TILE_ROWS;
    work->to.p += 2 * LANES;
    work->to.ds += 2 * LANES;
    work->to.pairs += TILE_ROWS;
    --work->left;
}

/* The same for up to `pairs` pairs of keys. */
ALWAYS_INLINE void softmax_gradients_step(struct softmax_gradients *work, int pairs, bool hidden) {
    for (; pairs > 0 && work->left > 0; --pairs) softmax_gradients_variant(work, hidden, false);
}

/* P or dS of key j and row r, from an operand A. */
static inline float operand_element(const uint32_t *operand, int64_t j, int64_t r) {
    const uint32_t word = operand[j * LANES + r % LANES];
    return bf16_to_float((uint16_t)(r < LANES ? word : word >> 16));
}

/* Four tiles of C in memory. */
struct tiles_2x2 {
    float *at;            /* NULL: none */
    int64_t right, below; /* floats to the next tile */
    size_t row;           /* bytes to the next row of a tile */
};

ALWAYS_INLINE float *tile_at(const struct tiles_2x2 *c, int64_t x, int64_t y) { return c->at + x * c->right + y * c->below; }

/* Stores T0 to T3 to `pending`, where their sums are not stored yet. */
ALWAYS_INLINE void store_pending(struct tiles_2x2 *pending) {
    if (!pending->at) return;
    _tile_stored(0, tile_at(pending, 0, 0), pending->row);
    _tile_stored(1, tile_at(pending, 1, 0), pending->row);
    _tile_stored(2, tile_at(pending, 0, 1), pending->row);
    _tile_stored(3, tile_at(pending, 1, 1), pending->row);
    pending->at = NULL;
}

/* Tile rotation between two chains of steps: the sums of the old chain are stored to `pending`, those of the new one start
 * from `from`, or from zero where it is NULL. Each tile is stored and loaded just before its first product of the new chain.
 * A store waits for the last product into its tile; directly behind that product it would hold up all instructions that
 * follow. */
struct tile_rotation {
    const struct tiles_2x2 *pending, *from;
};

#define ROTATE_TILE(tile, rotation, x, y)                                                                              \
    do {                                                                                                               \
        if ((rotation)->pending->at) _tile_stored(tile, tile_at((rotation)->pending, x, y), (rotation)->pending->row); \
        if ((rotation)->from)                                                                                          \
            _tile_loadd(tile, tile_at((rotation)->from, x, y), (rotation)->from->row);                                 \
        else                                                                                                           \
            _tile_zero(tile);                                                                                          \
    } while (0)

/* C += A B over 32 of the inner dimension; with_work: two keys of vector work after every second tile product. rotation:
 * NULL within a chain. B is streamed past L1, since it is not read again soon; stream: A too. */
ALWAYS_INLINE void multiply_2x2(const uint16_t *a, int64_t a_below, const uint16_t *b, const struct tile_rotation *rotation,
                                struct softmax_gradients *work, bool with_work, bool hidden, bool stream) {
    if (stream)
        _tile_stream_loadd(4, a, 64);
    else
        _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64);
    if (rotation) ROTATE_TILE(0, rotation, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + TILE_ELEMENTS, 64);
    if (rotation) ROTATE_TILE(1, rotation, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    if (with_work) softmax_gradients_variant(work, hidden, false);
    if (stream)
        _tile_stream_loadd(5, a + a_below, 64);
    else
        _tile_loadd(5, a + a_below, 64);
    if (rotation) ROTATE_TILE(2, rotation, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    if (rotation) ROTATE_TILE(3, rotation, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
    if (with_work) softmax_gradients_variant(work, hidden, false);
}

/* A step of S^T, with up to `pairs` pairs of keys of vector work after each tile product. The first step of a chain still
 * has to store the dP^T that this work reads, so its vector work begins when two tiles, the first 16 keys, are stored. */
ALWAYS_INLINE void scores_step(const uint16_t *k, int64_t k_below, const uint16_t *q, const struct tile_rotation *rotation,
                               struct softmax_gradients *work, int pairs, bool hidden) {
    _tile_loadd(4, k, 64);
    _tile_stream_loadd(6, q, 64);
    if (rotation) ROTATE_TILE(0, rotation, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    if (!rotation) softmax_gradients_step(work, pairs, hidden);
    _tile_stream_loadd(7, q + TILE_ELEMENTS, 64);
    if (rotation) ROTATE_TILE(1, rotation, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    softmax_gradients_step(work, pairs, hidden);
    _tile_loadd(5, k + k_below, 64);
    if (rotation) ROTATE_TILE(2, rotation, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    softmax_gradients_step(work, pairs, hidden);
    if (rotation) ROTATE_TILE(3, rotation, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
    softmax_gradients_step(work, pairs, hidden);
}

/* S^T of a block pair, or dP^T, which starts from a row of -delta: k [2][chunks] tiles, q [chunks][2] tiles. With S^T all
 * vector work that is left is done, before S^T is stored over what it reads; work: NULL for dP^T. */
ALWAYS_INLINE void product_scores(struct tiles_2x2 *pending, float *s, float *start, const uint16_t *k, const uint16_t *q,
                                  int64_t chunks, struct softmax_gradients *work, bool hidden) {
    const struct tiles_2x2 rows = {start, LANES, 0, 0};
    const struct tile_rotation rotation = {pending, start ? &rows : NULL};
    const int64_t below = chunks * TILE_ELEMENTS;
    if (work && work->left > 0) {
        const int slots = (int)(4 * chunks - 1), pairs = (work->left + slots - 1) / slots;
        if (chunks == 1) store_pending(pending); /* else the one step would have time for 8 pairs at most */
        scores_step(k, below, q, &rotation, work, pairs, hidden);
        for (int64_t n = 1; n < chunks; ++n) {
            k += TILE_ELEMENTS;
            q += 2 * TILE_ELEMENTS;
            scores_step(k, below, q, NULL, work, pairs, hidden);
        }
    } else {
        multiply_2x2(k, below, q, &rotation, NULL, false, false, false);
        for (int64_t n = 1; n < chunks; ++n) {
            k += TILE_ELEMENTS;
            q += 2 * TILE_ELEMENTS;
            multiply_2x2(k, below, q, NULL, NULL, false, false, false);
        }
    }
    *pending = (struct tiles_2x2){s, LANES, TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *s};
}

/* multiply_2x2() with A streamed, and with vector work as long as any is left. */
ALWAYS_INLINE void multiply_2x2_with_work(const uint16_t *a, int64_t a_below, const uint16_t *b,
                                          const struct tile_rotation *rotation, struct softmax_gradients *work,
                                          bool hidden) {
    if (work->left > 0)
        multiply_2x2(a, a_below, b, rotation, work, true, hidden, true);
    else
        multiply_2x2(a, a_below, b, rotation, work, false, false, true);
}

/* Columns [32 n, 32 n + 32) of dV += P^T dO or dK += dS^T Q over those of `depth` tiles of rows that see the strip, one bit
 * each in `seen`, the first among them: g [2][columns] tiles, p [depth][2] tiles, y [depth][columns] tiles. summed: g holds
 * sums; false: it holds anything and counts as zero. */
ALWAYS_INLINE void product_dkdv(struct tiles_2x2 *pending, float *g, const uint32_t *p, const uint16_t *y, int64_t n,
                                int64_t columns, int64_t depth, uint32_t seen, bool summed, struct softmax_gradients *work,
                                bool hidden) {
    const int64_t tile = TILE_SIDE * TILE_SIDE;
    const struct tiles_2x2 c = {g + 2 * n * tile, tile, columns * tile, TILE_SIDE * sizeof *g};
    const struct tile_rotation rotation = {pending, summed ? &c : NULL};
    const uint16_t *a = (const uint16_t *)p;
    y += 2 * n * TILE_ELEMENTS;
    multiply_2x2_with_work(a, TILE_ELEMENTS, y, &rotation, work, hidden);
    for (int64_t t = 1; t < depth; ++t) {
        a += 2 * TILE_ELEMENTS;
        y += columns * TILE_ELEMENTS;
        if (seen >> t & 1) multiply_2x2_with_work(a, TILE_ELEMENTS, y, NULL, work, hidden);
    }
    *pending = c;
}

#endif
