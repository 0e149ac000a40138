/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_tile.h: the shared memory of quantise_block.cu, and how rows come there and go. A warp copies its own rows, whole
 * lines at a time, and its lanes then read 64 bytes at once of each half of a row: units of 16 bytes lie so that eight lanes
 * find theirs in different banks. Included by quantise_block.cu alone. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_TILE_H
#define STROBE_CUDA_DEVICE_QUANTISE_TILE_H

#include "cuda/device/quantise.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/shared_address.h"

enum {
    LANES = COLUMNS / QUANTISE_LANE_COLUMNS, /* of a row */
    THREADS = QUANTISE_CHUNK * LANES,
    WARP_ROWS = 32 / LANES,
    ROW_UNITS = COLUMNS / 8, /* of 16 bytes: of a row, and of a row of cosines or sines */
    BYTE_UNITS = COLUMNS / 16,
    ROW_PITCH = COLUMNS == 64 ? 9 : COLUMNS == 128 ? 17 : 38,
    TABLE_PITCH = 9 * LANES,
};

struct quantise_shared {
    uint32_t magnitude[3][QUANTISE_CHUNK]; /* of three heads, one after the other */
    uint4 signs[LANES][16];
    uint4 rows[QUANTISE_CHUNK][ROW_PITCH]; /* of 16 bits, then of bytes */
    uint4 table[2][QUANTISE_CHUNK][TABLE_PITCH]; /* only where rows turn, and where there is room */
};
static_assert(sizeof(struct quantise_shared) == QUANTISE_SHARED(COLUMNS) + QUANTISE_TABLES(COLUMNS), "the host asks for it");

/* The rows of a CTA, and where this thread finds and puts what it copies of head 0: its first row of each and its unit. */
struct rows {
    int64_t batch, first;
    const uint16_t *from;
    uint8_t *to;
    int64_t from_head, from_row, to_head, to_row; /* strides, of a head and of one row copied to the next */
    int count;                                    /* rows that are there */
};

enum { LOADS = 8, LOAD_STEP = 32 / ROW_UNITS, STORES = 4, STORE_STEP = 32 / BYTE_UNITS };
INLINE int first_loaded(void) { return threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / ROW_UNITS; }
INLINE int first_stored(void) { return threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / BYTE_UNITS; }

INLINE struct rows rows_of(const struct quantise_params *p, uint32_t chunk) {
    const struct quantise_tensor *t = &p->t;
    struct rows rows;
    rows.batch = chunk / (uint32_t)p->chunks, rows.first = (int64_t)(chunk % (uint32_t)p->chunks) * QUANTISE_CHUNK;
    const int64_t used = t->used ? quantise_entry(t, t->used, rows.batch) : t->rows;
    const int64_t left = (used < t->rows ? used : t->rows) - rows.first;
    rows.count = left < 0 ? 0 : left < QUANTISE_CHUNK ? (int)left : QUANTISE_CHUNK;
    rows.from = (const uint16_t *)t->from + source_at(t, rows.batch, rows.first + first_loaded(), 0) +
                8 * (threadIdx.x % ROW_UNITS);
    rows.to = t->to + rows.batch * t->to_stride[0] + (rows.first + first_stored()) * t->to_stride[1] +
              16 * (threadIdx.x % BYTE_UNITS);
    rows.from_head = t->from_stride[2], rows.from_row = LOAD_STEP * t->from_stride[1];
    rows.to_head = t->to_stride[2], rows.to_row = STORE_STEP * t->to_stride[1];
    return rows;
}

/* Where unit n of a row lies: eight units, and a gap. */
INLINE int padded(int n) { return n + n / 8; }

/* Copies the warp's rows of a head to the tile; those that are not there become 0. */
INLINE void load_rows(struct quantise_shared *s, const struct rows *rows, int64_t head) {
    const int first = first_loaded();
    const uint16_t *from = rows->from + head * rows->from_head;
    const uint32_t to = shared_address(&s->rows[first][padded(threadIdx.x % ROW_UNITS)]);
    __syncwarp(); /* the bytes of the head before have been read */
#pragma unroll
    for (int i = 0; i < LOADS; ++i, from += rows->from_row)
        cp_async_16(to + i * LOAD_STEP * (int)sizeof s->rows[0], from, first + i * LOAD_STEP < rows->count ? 16 : 0);
    cp_async_commit();
    cp_async_wait(0);
    __syncwarp();
}

/* Copies the warp's rows of both tables. load_rows() waits for them. */
INLINE void load_tables(const struct quantise_params *p, struct quantise_shared *s, const struct rows *rows) {
    const int first = first_loaded(), unit = threadIdx.x % ROW_UNITS;
    const int64_t at = (p->t.start + rows->first + first) * (COLUMNS / 2) + 4 * unit;
    const float *cos = p->c.cos + at, *sin = p->c.sin + at;
    const uint32_t to = shared_address(&s->table[0][first][padded(unit)]);
#pragma unroll
    for (int i = 0; i < LOADS; ++i, cos += LOAD_STEP * (COLUMNS / 2), sin += LOAD_STEP * (COLUMNS / 2)) {
        const uint32_t row = to + i * LOAD_STEP * (int)sizeof s->table[0][0];
        const int bytes = first + i * LOAD_STEP < rows->count ? 16 : 0;
        cp_async_16(row, cos, bytes), cp_async_16(row + (int)sizeof s->table[0], sin, bytes);
    }
}

/* The thread's 32 numbers of the cosines, 0, or sines, 1, of its row: in shared memory too they lie without a gap. */
INLINE const float4 *table_of(const struct quantise_params *p, const struct quantise_shared *s, const struct rows *rows,
                              int which, int index, int lane) {
    if (p->tables_staged) return (const float4 *)&s->table[which][index][padded(8 * lane)];
    const int row = index < rows->count ? index : 0;
    return (const float4 *)((which ? p->c.sin : p->c.cos) + (p->t.start + rows->first + row) * (COLUMNS / 2) + 32 * lane);
}

/* A word for each column, with the sign's bit: of each lane's columns, as it holds them. All threads. */
INLINE void spread_signs(const struct quantise_params *p, struct quantise_shared *s) {
#pragma unroll 1
    for (int n = threadIdx.x; n < COLUMNS; n += THREADS) {
        const int column = n % 64 / 32 * (COLUMNS / 2) + n / 64 * 32 + n % 32;
        ((uint32_t *)s->signs)[n] = p->c.signs[column / 32] << (31 - column % 32) & 0x80000000u;
    }
}

/* Copies the warp's bytes from the tile to a head. */
INLINE void store_rows(const struct quantise_shared *s, const struct rows *rows, int64_t head) {
    const int first = first_stored();
    const uint4 *from = &s->rows[first][threadIdx.x % BYTE_UNITS];
    uint8_t *to = rows->to + head * rows->to_head;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < STORES; ++i, to += rows->to_row)
        if (first + i * STORE_STEP < rows->count) *(uint4 *)to = from[i * STORE_STEP * ROW_PITCH];
}

#endif
