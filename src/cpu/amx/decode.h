/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.h: the tile products of amx/decode.c. K and V are multiplied in the order of memory, 16 keys with all of their
 * columns at a time, and amx/prefetch.h prefetches what comes next. */
#ifndef STROBE_CPU_AMX_DECODE_H
#define STROBE_CPU_AMX_DECODE_H

#include "cpu/amx/prefetch.h"

/* S^T of the 16 keys of tile n, in tile register n. */
#define SCORE_KEYS(n)                                                                      \
    _tile_zero(n);                                                                         \
    for (int64_t c = 0; c < columns; c += TILE_DEPTH) {                                    \
        prefetch_line(prefetch, n, c *(int64_t)sizeof *k);                                 \
        _tile_loadd(6, q + 2 * TILE_SIDE * c, 64);                                         \
        _tile_stream_loadd(4, k + (n)*TILE_SIDE * stride + c, (size_t)stride * sizeof *k); \
        _tile_dpbf16ps(n, 4, 6);                                                           \
    }                                                                                      \
    _tile_stored(n, s + (n)*TILE_SIDE * TILE_SIDE, TILE_SIDE * sizeof *s)

/* S^T of a block of keys, s [64 keys][16 queries]; q as pack_queries() leaves it. */
static void scores(float *s, const uint16_t *k, int64_t stride, const uint16_t *q, int64_t columns,
                   const struct prefetch *prefetch) {
    SCORE_KEYS(0);
    SCORE_KEYS(1);
    SCORE_KEYS(2);
    SCORE_KEYS(3);
}

/* 16 keys and 32 columns of O += P V. V is loaded once and multiplied twice, for its even columns and for its odd ones. */
#define MULTIPLY_COLUMNS(group, v_tile, even, odd)                                    \
    if (groups > (group)) {                                                           \
        prefetch_line(prefetch, slot, (x + (group)*TILE_DEPTH) * (int64_t)sizeof *v); \
        _tile_stream_loadd(v_tile, row + (group)*TILE_DEPTH, v_row);                  \
        _tile_dpbf16ps(even, 4, v_tile);                                              \
        _tile_dpbf16ps(odd, 5, v_tile);                                               \
    }

/* O += P V of a block of keys, 64 columns at a time; o [16 queries][padded], even columns before odd ones in each 32. */
static void values(float *o, int64_t padded, const uint16_t *p, const uint16_t *v, int64_t stride,
                   const struct prefetch *prefetch) {
    const size_t o_row = (size_t)padded * sizeof *o, v_row = (size_t)stride * sizeof *v;
    for (int64_t x = 0; x < padded; x += 2 * TILE_DEPTH, o += 2 * TILE_DEPTH) {
        const int64_t groups = (padded - x) / TILE_DEPTH;
        _tile_loadd(0, o, o_row);
        _tile_loadd(1, o + TILE_SIDE, o_row);
        if (groups > 1) _tile_loadd(2, o + TILE_DEPTH, o_row);
        if (groups > 1) _tile_loadd(3, o + TILE_DEPTH + TILE_SIDE, o_row);
        for (int64_t n = 0, slot = SLOT_VALUES; n < KEY_TILES; ++n, ++slot) {
            const uint16_t *row = v + n * TILE_SIDE * stride + x;
            _tile_loadd(4, p + n * TILE_ELEMENTS, 64);
            _tile_loadd(5, p + (KEY_TILES + n) * TILE_ELEMENTS, 64);
            MULTIPLY_COLUMNS(0, 6, 0, 1)
            MULTIPLY_COLUMNS(1, 7, 2, 3)
        }
        _tile_stored(0, o, o_row);
        _tile_stored(1, o + TILE_SIDE, o_row);
        if (groups > 1) _tile_stored(2, o + TILE_DEPTH, o_row);
        if (groups > 1) _tile_stored(3, o + TILE_DEPTH + TILE_SIDE, o_row);
    }
}

/* The same for up to 8 query rows, with one product: the upper half of a tile gives even columns, the lower odd ones. */
#define MULTIPLY_HALF_TILE(group, v_tile)                                             \
    if (groups > (group)) {                                                           \
        prefetch_line(prefetch, slot, (x + (group)*TILE_DEPTH) * (int64_t)sizeof *v); \
        _tile_stream_loadd(v_tile, row + (group)*TILE_DEPTH, v_row);                  \
        _tile_dpbf16ps(group, 4, v_tile);                                             \
    }

/* O += P V of a block of keys, 128 columns at a time; o [2: even, odd][8 queries][padded / 2]. */
static void values_half_tile(float *o, int64_t padded, const uint16_t *p, const uint16_t *v, int64_t stride,
                             const struct prefetch *prefetch) {
    const size_t o_row = (size_t)padded / 2 * sizeof *o, v_row = (size_t)stride * sizeof *v;
    for (int64_t x = 0; x < padded; x += 4 * TILE_DEPTH, o += 4 * TILE_SIDE) {
        const int64_t groups = (padded - x) / TILE_DEPTH;
        _tile_loadd(0, o, o_row);
        if (groups > 1) _tile_loadd(1, o + TILE_SIDE, o_row);
        if (groups > 2) _tile_loadd(2, o + 2 * TILE_SIDE, o_row);
        if (groups > 3) _tile_loadd(3, o + 3 * TILE_SIDE, o_row);
        for (int64_t n = 0, slot = SLOT_VALUES; n < KEY_TILES; ++n, ++slot) {
            const uint16_t *row = v + n * TILE_SIDE * stride + x;
            _tile_loadd(4, p + n * TILE_ELEMENTS, 64);
            MULTIPLY_HALF_TILE(0, 5)
            MULTIPLY_HALF_TILE(1, 6)
            MULTIPLY_HALF_TILE(2, 7)
            MULTIPLY_HALF_TILE(3, 5)
        }
        _tile_stored(0, o, o_row);
        if (groups > 1) _tile_stored(1, o + TILE_SIDE, o_row);
        if (groups > 2) _tile_stored(2, o + 2 * TILE_SIDE, o_row);
        if (groups > 3) _tile_stored(3, o + 3 * TILE_SIDE, o_row);
    }
}

#endif
