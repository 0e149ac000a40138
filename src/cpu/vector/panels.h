/* SPDX-License-Identifier: BSD-3-Clause
 *
 * panels.h: K and V of a block copied into panels, as a matrix product of BLAS has them: what a register tile of tile.h
 * takes next lies next in memory. Rows of K or V lie as far apart as they are long or farther: of rows of 1 KiB, four sets
 * of L1 hold all, and a register tile reads a quarter of a line of each.
 *
 *     keys:     [keys / UNROLL][columns][UNROLL], and the rows that are left, as they are
 *     columns:  [columns / UNROLL][keys][UNROLL], and [keys] for each column that is left */
#ifndef STROBE_CPU_PANELS_H
#define STROBE_CPU_PANELS_H

#include "cpu/vector/tile.h"

/* LANES keys: LANES / UNROLL panels. */
static inline void pack_lanes_of_keys(float *to, const float *from, int64_t stride, int64_t columns) {
    int64_t x = 0;
    for (; x + LANES <= columns; x += LANES) {
        vec key[LANES];
        for (int n = 0; n < LANES; ++n) key[n] = v_load(from + n * stride + x);
        v_transpose_floats(key);
        for (int n = 0; n < LANES; ++n) v_store_parts(to + (x + n) * UNROLL, UNROLL * columns, key[n]);
    }
    for (; x < columns; ++x)
        for (int64_t n = 0; n < LANES; ++n)
            to[n / UNROLL * UNROLL * columns + x * UNROLL + n % UNROLL] = from[n * stride + x];
}

/* Panels of keys, for tile_scores(). to: [keys][columns] */
static struct rows32 pack_keys(float *to, struct rows32 a, int64_t keys, int64_t columns) {
    int64_t j = 0;
    for (; j + LANES <= keys; j += LANES) pack_lanes_of_keys(to + j * columns, a.data + j * a.stride, a.stride, columns);
    for (; j + UNROLL <= keys; j += UNROLL)
        for (int64_t x = 0; x < columns; ++x)
            for (int64_t n = 0; n < UNROLL; ++n) to[j * columns + x * UNROLL + n] = a.data[(j + n) * a.stride + x];
    for (; j < keys; ++j) memcpy(to + j * columns, a.data + j * a.stride, (size_t)columns * sizeof *to);
    return (struct rows32){to, 0, true};
}

/* Panels of columns, for tile_accumulate(): of all rows one line, then the next, so that few lines are written at a time.
 * to: [keys][columns] */
static struct rows32 pack_columns(float *to, struct rows32 a, int64_t keys, int64_t columns) {
    int64_t x = 0;
    for (; x + LINE_FLOATS <= columns; x += LINE_FLOATS)
        for (int64_t j = 0; j < keys; ++j)
            for (int64_t n = 0; n < LINE_FLOATS; n += LANES)
                v_store_parts(to + (x + n) * keys + j * UNROLL, UNROLL * keys, v_load(a.data + j * a.stride + x + n));
    for (; x + UNROLL <= columns; x += UNROLL)
        for (int64_t j = 0; j < keys; ++j)
            memcpy(to + x * keys + j * UNROLL, a.data + j * a.stride + x, UNROLL * sizeof *to);
    for (; x < columns; ++x)
        for (int64_t j = 0; j < keys; ++j) to[x * keys + j] = a.data[j * a.stride + x];
    return (struct rows32){to, 0, true};
}

#endif
