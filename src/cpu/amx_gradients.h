/* SPDX-License-Identifier: BSD-3-Clause
 *
 * amx_gradients.h: the tile products of the AMX backward, and what stands between them. A block of 64 keys meets up to
 * BLOCK_TILES tiles of 32 query rows:
 *
 *     product                  C, fp32             A, 16 rows x 32 bf16        B, 16 pairs x 16 columns
 *     S^T    = K Q^T           [64 keys][32 rows]  K: 32 columns               Q^T: pairs of columns
 *     dP^T   = V dO^T          the same            V                           dO^T
 *     dV    += P^T dO          [64 keys][dim_v]    P^T of a tile: 32 rows      dO: pairs of rows
 *     dK    += dS^T Q          [64 keys][dim]      dS^T                        Q
 *     dQ^T  += K^T dS^T        [dim][32 rows]      K^T: 32 keys                dS^T: pairs of keys
 *
 * So P^T and dS^T leave the vector units as rows of a key, and dS^T once more as pairs of keys. Which rows make a pair is
 * free as long as A and B agree: here rows r and r + 16, so that a row of A is made of a key's two vectors by v_pair. All
 * operands lie tile by tile, 1 KiB each, except S^T, dP^T and dQ^T, whose rows are TILE_ROWS floats. */
#ifndef STROBE_CPU_AMX_GRADIENTS_H
#define STROBE_CPU_AMX_GRADIENTS_H

#include <math.h>

#include "cpu/tile.h"

enum {
    BLOCK_TILES = 4,                        /* tiles of query rows that meet a block of keys together */
    FORM_WORDS = BLOCK_KEYS * TILE_ROWS / 2 /* P^T or dS^T of a tile: 32-bit words */
};

/* P^T and dS^T of a tile in the forms of operands. */
struct weights {
    uint32_t *p, *ds; /* [64 keys][16 pairs of rows] */
    uint32_t *pairs;  /* dS^T: [32 pairs of keys][32 rows] */
};

/* S^T or dP^T: k [4][chunks] tiles, q [chunks][2] tiles. Each tile of C is stored as soon as it is done. */
static void tile_product_scores(float *s, const uint16_t *k, const uint16_t *q, int64_t chunks) {
    const size_t s_row = TILE_ROWS * sizeof *s;
    for (int64_t half = 0; half < 2; ++half, s += 2 * TILE_SIDE * TILE_ROWS, k += 2 * chunks * TILE_ELEMENTS) {
        const uint16_t *above = k, *below = k + chunks * TILE_ELEMENTS, *columns = q;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t c = 0; c < chunks; ++c, above += TILE_ELEMENTS, below += TILE_ELEMENTS, columns += 2 * TILE_ELEMENTS) {
            _tile_loadd(4, above, 64);
            _tile_loadd(6, columns, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, columns + TILE_ELEMENTS, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, below, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, s, s_row);
        _tile_stored(1, s + LANES, s_row);
        _tile_stored(2, s + TILE_SIDE * TILE_ROWS, s_row);
        _tile_stored(3, s + TILE_SIDE * TILE_ROWS + LANES, s_row);
    }
}

/* dV += P^T dO or dK += dS^T Q over `depth` tiles of rows: g [4][columns] tiles, p [depth][4] tiles, y [depth][columns]
 * tiles, columns even. */
static void tile_product_outer(float *g, const uint32_t *p, const uint16_t *y, int64_t columns, int64_t depth) {
    const int64_t g_tile = TILE_SIDE * TILE_SIDE, p_tile = TILE_SIDE * TILE_SIDE;
    for (int64_t c = 0; c < columns; c += 2)
        for (int64_t i = 0; i < BLOCK_KEYS / TILE_SIDE; i += 2) {
            float *above = g + (i * columns + c) * g_tile, *below = above + columns * g_tile;
            const uint32_t *a = p + i * p_tile;
            const uint16_t *b = y + c * TILE_ELEMENTS;
            _tile_loadd(0, above, 64);
            _tile_loadd(1, above + g_tile, 64);
            _tile_loadd(2, below, 64);
            _tile_loadd(3, below + g_tile, 64);
            for (int64_t t = 0; t < depth; ++t, a += FORM_WORDS, b += columns * TILE_ELEMENTS) {
                _tile_loadd(4, a, 64);
                _tile_loadd(6, b, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, b + TILE_ELEMENTS, 64);
                _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, a + p_tile, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, above, 64);
            _tile_stored(1, above + g_tile, 64);
            _tile_stored(2, below, 64);
            _tile_stored(3, below + g_tile, 64);
        }
}

/* dQ^T += K^T dS^T: dq [16 columns][32 rows] `tiles` times, k [tiles][2 halves of the keys]. dS^T rests in T4 to T7. */
static void tile_product_queries(float *dq, const uint16_t *k, const uint32_t *ds, int64_t tiles) {
    const size_t row = TILE_ROWS * sizeof *dq;
    _tile_loadd(4, ds, row);
    _tile_loadd(5, ds + LANES, row);
    _tile_loadd(6, ds + TILE_SIDE * TILE_ROWS, row);
    _tile_loadd(7, ds + TILE_SIDE * TILE_ROWS + LANES, row);
    for (int64_t x = 0; x < tiles; ++x, dq += TILE_SIDE * TILE_ROWS, k += 2 * TILE_ELEMENTS) {
        _tile_loadd(0, dq, row);
        _tile_loadd(2, k, 64);
        _tile_dpbf16ps(0, 2, 4);
        _tile_loadd(1, dq + LANES, row);
        _tile_dpbf16ps(1, 2, 5);
        _tile_loadd(3, k + TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 3, 6);
        _tile_dpbf16ps(1, 3, 7);
        _tile_stored(0, dq, row);
        _tile_stored(1, dq + LANES, row);
    }
}

/* What the vector units do to a block: weights and dS from S^T and dP^T, rounded into the three forms. */
struct weighing_gradients {
    const float *s, *dp; /* [64][32] */
    struct weights to;
    vec factor, lse2[VECTORS], D[VECTORS];
    __mmask16 rows[VECTORS]; /* those that exist */
};

/* Keys 2 pair and 2 pair + 1. `hidden`: a score may be -inf; P and dS are 0 there whatever dP and D are, and in rows that do
 * not exist, for which nobody hid the NaN of a key. `ready`: s and dp hold weights and dS already. */
ALWAYS_INLINE void weigh_gradients_pair(const struct weighing_gradients *w, int64_t pair, bool hidden, bool ready) {
    vec p[2][VECTORS], ds[2][VECTORS];
    for (int j = 0; j < 2; ++j)
        for (int n = 0; n < VECTORS; ++n) {
            const int64_t at = (2 * pair + j) * TILE_ROWS + n * LANES;
            p[j][n] = v_load(w->s + at), ds[j][n] = v_load(w->dp + at);
            const vec score = p[j][n];
            if (!ready) {
                p[j][n] = v_exp2_coarse(_mm512_fmsub_ps(score, w->factor, w->lse2[n]));
                ds[j][n] = v_mul(p[j][n], v_sub(ds[j][n], w->D[n]));
            }
            if (!hidden) continue;
            const __mmask16 seen = _mm512_mask_cmp_ps_mask(w->rows[n], score, v_set(-INFINITY), _CMP_NEQ_UQ);
            p[j][n] = _mm512_maskz_mov_ps(seen, p[j][n]);
            ds[j][n] = _mm512_maskz_mov_ps(seen, ds[j][n]);
        }
    for (int j = 0; j < 2; ++j) {
        _mm512_store_si512(w->to.p + (2 * pair + j) * LANES, v_pair(p[j][0], p[j][1]));
        _mm512_store_si512(w->to.ds + (2 * pair + j) * LANES, v_pair(ds[j][0], ds[j][1]));
    }
    for (int n = 0; n < VECTORS; ++n)
        _mm512_store_si512(w->to.pairs + pair * TILE_ROWS + n * LANES, v_pair(ds[0][n], ds[1][n]));
}

ALWAYS_INLINE void weigh_gradients(const struct weighing_gradients *w, bool hidden, bool ready) {
    const struct weighing_gradients copy = *w; /* in registers */
    for (int64_t pair = 0; pair < BLOCK_KEYS / 2; ++pair) weigh_gradients_pair(&copy, pair, hidden, ready);
}

/* The weight, or dS, of key j and row r out of a form of A. */
static inline float weight_of(const uint32_t *form, int64_t j, int64_t r) {
    const uint32_t word = form[j * LANES + r % LANES];
    return bf16_to_float((uint16_t)(r < LANES ? word : word >> 16));
}

#endif
