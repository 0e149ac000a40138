/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_tile.h: the shared memory of quantise_block.cu, and how rows come there. A warp copies its own rows, whole lines
 * at a time, and its lanes then read 32 or 64 bytes at once of each part of a row: units of 16 bytes lie so that eight lanes
 * find theirs in different banks, but for a few. Included by quantise_block.cu alone. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_TILE_H
#define STROBE_CUDA_DEVICE_QUANTISE_TILE_H

#include "cuda/device/quantise.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/shared_address.h"

enum {
    PARTS = COLUMNS % 3 == 0 ? 3 : 2,
    PART = COLUMNS / PARTS,
    WIDTH = PARTS == 3 ? 8 : 16,     /* columns of a lane in a part */
    LANES = QUANTISE_LANES(COLUMNS), /* of a row */
    THREADS = QUANTISE_CHUNK * LANES,
    WARP_ROWS = 32 / LANES,
    ROW_UNITS = COLUMNS / 8, /* of 16 bytes: of a row, and of a row of cosines or sines */
    ROW_PITCH = QUANTISE_ROW_PITCH(COLUMNS),
    TABLE_PITCH = QUANTISE_TABLE_PITCH(COLUMNS),
};
static_assert(PART == LANES * WIDTH, "lanes share a part");

struct quantise_shared {
    uint32_t magnitude[3][QUANTISE_CHUNK]; /* of three heads, one after the other */
    uint4 signs[LANES]
               [PARTS * WIDTH / 4 + 1]; /* of three parts norms with signs; a gap, so that lanes read different banks */
    uint4 rows[QUANTISE_CHUNK][ROW_PITCH];
    uint4 table[2][QUANTISE_CHUNK][TABLE_PITCH]; /* only where rows turn, and where there is room */
};
static_assert(sizeof(struct quantise_shared) == QUANTISE_SHARED(COLUMNS) + QUANTISE_TABLES(COLUMNS), "the host asks for it");

/* The rows of a CTA. */
struct rows {
    int64_t batch, first;
    const uint16_t *from; /* the first row of head 0 */
    uint8_t *to;
    int count; /* that are there */
};

INLINE struct rows rows_of(const struct quantise_params *p, uint32_t chunk) {
    const struct quantise_tensor *t = &p->t;
    struct rows rows;
    rows.batch = chunk / (uint32_t)p->chunks, rows.first = (int64_t)(chunk % (uint32_t)p->chunks) * QUANTISE_CHUNK;
    rows.from = (const uint16_t *)t->from + source_at(t, rows.batch, rows.first, 0);
    rows.to = t->to + rows.batch * t->to_stride[0] + rows.first * t->to_stride[1];
    const int64_t used = t->used ? quantise_entry(t, t->used, rows.batch) : t->rows;
    const int64_t left = (used < t->rows ? used : t->rows) - rows.first;
    rows.count = left < 0 ? 0 : left < QUANTISE_CHUNK ? (int)left : QUANTISE_CHUNK;
    return rows;
}

/* The units that a lane copies: of number i the row, and the unit in it. Three numbers on, or one where a row's units are a
 * power of two, it is the same unit ROWS_BELOW below. */
enum { PERIOD = COLUMNS % 3 == 0 ? 3 : 1, LOADS = WARP_ROWS * ROW_UNITS / 32, ROWS_BELOW = 32 * PERIOD / ROW_UNITS };
INLINE int copied_row(int i) { return threadIdx.x / 32 * WARP_ROWS + (threadIdx.x % 32 + 32 * i) / ROW_UNITS; }
INLINE int copied_unit(int i) { return (threadIdx.x % 32 + 32 * i) % ROW_UNITS; }

/* Where unit n of a table's row lies: eight units, and a gap. A row of Q, K or V has gaps where a lane reads two units of a
 * part; with one unit each, of three parts, the banks differ without. */
INLINE int padded(int n) { return n + n / 8; }
INLINE int place_in_row(int n) { return PARTS == 3 ? n : padded(n); }

/* Begins to copy the warp's rows of a head to the tile; those that are not there become 0. */
INLINE void load_rows(const struct quantise_tensor *t, struct quantise_shared *s, const struct rows *rows, int64_t head) {
#pragma unroll
    for (int n = 0; n < PERIOD; ++n) {
        const int first = copied_row(n), unit = copied_unit(n);
        const uint16_t *from = rows->from + head * t->from_stride[2] + first * t->from_stride[1] + 8 * unit;
        const uint32_t to = shared_address(&s->rows[first][place_in_row(unit)]);
#pragma unroll
        for (int i = 0; i < LOADS / PERIOD; ++i, from += ROWS_BELOW * t->from_stride[1])
            cp_async_16(to + i * ROWS_BELOW * (int)sizeof s->rows[0], from, first + i * ROWS_BELOW < rows->count ? 16 : 0);
    }
    cp_async_commit();
}

/* Waits until the warp's rows, and tables, have come. */
INLINE void wait_for_rows(void) {
    cp_async_wait(0);
    __syncwarp();
}

/* Begins to copy the warp's rows of both tables; load_rows() closes the group. */
INLINE void load_tables(const struct quantise_params *p, struct quantise_shared *s, const struct rows *rows) {
#pragma unroll 1
    for (int i = 0; i < LOADS; ++i) {
        const int row = copied_row(i), unit = copied_unit(i), bytes = row < rows->count ? 16 : 0;
        const int64_t at = (p->t.start + rows->first + row) * (COLUMNS / 2) + 4 * unit;
        cp_async_16(shared_address(&s->table[0][row][padded(unit)]), p->c.cos + at, bytes);
        cp_async_16(shared_address(&s->table[1][row][padded(unit)]), p->c.sin + at, bytes);
    }
}

/* The numbers of the cosines, 0, or sines, 1, of a row from pair `pair` on, a multiple of WIDTH: as many of them lie without
 * a gap in shared memory too. */
INLINE const float4 *table_of(const struct quantise_params *p, const struct quantise_shared *s, const struct rows *rows,
                              int which, int index, int pair) {
    if (p->tables_staged) return (const float4 *)&s->table[which][index][padded(pair / 4)];
    const int row = index < rows->count ? index : 0;
    return (const float4 *)((which ? p->c.sin : p->c.cos) + (p->t.start + rows->first + row) * (COLUMNS / 2) + pair);
}

/* The first column of a lane in a part. */
INLINE int column_of(int part, int lane) { return part * PART + WIDTH * lane; }

/* A word for each column, with the sign's bit, and the norm's where there are two transforms: of each lane's columns, as it
 * holds them. All threads. */
INLINE void spread_signs(const struct quantise_params *p, struct quantise_shared *s) {
#pragma unroll 1
    for (int n = threadIdx.x; n < COLUMNS; n += THREADS) {
        const int column = column_of(n / WIDTH % PARTS, n / (PARTS * WIDTH)) + n % WIDTH;
        const uint32_t sign = p->c.signs[column / 32] << (31 - column % 32) & 0x80000000u;
        ((uint32_t *)s->signs[n / (PARTS * WIDTH)])[n % (PARTS * WIDTH)] = sign |
                                                                           (PARTS == 3 ? __float_as_uint(p->norm) : 0);
    }
}

#endif
