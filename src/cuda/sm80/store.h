/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.h: accumulators to rows of a tensor. They pass through shared memory in fp32, from where a thread stores 16 bytes of
 * a row: alignment, type and ragged ends are then one short loop. Straight from registers the same cases are some thousands
 * of instructions that run once, and with short sequences fetching those took longer than everything else. */
#ifndef STROBE_CUDA_SM80_STORE_H
#define STROBE_CUDA_SM80_STORE_H

#include "cuda/sm80/load.h"

/* Floats from one row of the staging memory to the next: rows 8 apart start in other banks. */
#define STAGE_ROW(columns) ((columns) + 4)

/* Puts one of the lane's two rows of a 16-row tile, times factor, into row `row` of staging memory of `columns` columns,
 * from `column` on. */
INLINE void stage_row(float *stage, int columns, int row, int column, const float (*o)[4], int tiles, int half,
                      float factor) {
    float *to = stage + row * STAGE_ROW(columns) + column + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
        *(float2 *)(to + 8 * n) = make_float2(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
}

/* Stores rows [0, rows) of the staging memory, which are packed rows or keys from `first` on, to the tensor's columns from
 * `column` on. All threads, after the staging memory is complete. */
INLINE void store_staged(const struct params *p, const struct job *t, const struct view *to, bool packed, int64_t first,
                         int rows, int stage_columns, int column, int columns, int64_t extra, const float *stage,
                         int threads) {
    const int end = packed ? t->rows * p->group : t->keys, eights = stage_columns / 8;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < rows * eights; at += threads) {
        const int row = at / eights, x = at % eights * 8;
        if (first + row >= end || x >= columns - column) continue;
        const int64_t offset = packed ? row_offset(to, t, place_of(p, t, (int)first + row)) : key_offset(to, t, first + row);
        const float *from = stage + row * STAGE_ROW(stage_columns) + x;
        const int there = columns - column - x;
        if (store_eight(to, offset + extra + column + x, from, there)) continue;
#pragma unroll 1
        for (int e = 0; e < 8 && e < there; ++e) store_any(to->data, to->dtype, offset + extra + column + x + e, from[e]);
    }
}

/* Adds what a pass for infinities of one sign has found (nonfinite.h): an infinity where the staging memory is above 0. */
INLINE void add_infinities(const struct params *p, const struct job *t, const struct view *to, bool packed, int64_t first,
                           int rows, int stage_columns, int column, int columns, int64_t extra, const float *stage,
                           float infinity, int threads) {
    const int end = packed ? t->rows * p->group : t->keys;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < rows * stage_columns; at += threads) {
        const int row = at / stage_columns, x = at % stage_columns;
        if (first + row >= end || x >= columns - column || !(stage[row * STAGE_ROW(stage_columns) + x] > 0)) continue;
        const int64_t offset = packed ? row_offset(to, t, place_of(p, t, (int)first + row)) : key_offset(to, t, first + row);
        const int64_t index = offset + extra + column + x;
        store_any(to->data, to->dtype, index, load_any(to->data, to->dtype, index) + infinity);
    }
}

/* Rounds a 16-row tile of accumulators, rows 0..7 times low and rows 8..15 times high, into a tile of elements. lane: the
 * lane's number, by thread_anew() where registers are short. */
INLINE void keep_rows(unsigned char *tile, int row_bytes, int row, int column, const float (*x)[4], int tiles, float low,
                      float high, int lane) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#if defined(ELEMENT_FP32)
        const int at = column / 4 + 2 * n + lane % 4 / 2, within = lane % 2 * 8;
        *(float2 *)(tile + chunk_at(row_bytes, row + lane / 4, at) + within) = make_float2(x[n][0] * low, x[n][1] * low);
        *(float2 *)(tile + chunk_at(row_bytes, row + 8 + lane / 4, at) + within) = make_float2(x[n][2] * high,
                                                                                               x[n][3] * high);
#else
        *(uint32_t *)(tile + chunk_at(row_bytes, row + lane / 4, column / 8 + n) + lane % 4 * 4) = pack(x[n][0] * low,
                                                                                                        x[n][1] * low);
        *(uint32_t *)(tile + chunk_at(row_bytes, row + 8 + lane / 4, column / 8 + n) + lane % 4 * 4) = pack(x[n][2] * high,
                                                                                                            x[n][3] * high);
#endif
    }
}

/* Stores the rows of a tile of elements to a tensor of that type, aligned and of whole chunks: load_rows() backwards. */
INLINE void unload_rows(element *to, int64_t stride, const unsigned char *tile, int tile_rows, int rows, int row_elements,
                        int columns, int threads) {
    const int chunks = row_elements / CHUNK, step = threads / chunks, thread = thread_anew();
    const int chunk = thread % chunks, first = thread / chunks;
    if (chunk * CHUNK >= columns) return;
#pragma unroll
    for (int n = 0; n < tile_rows / step; ++n) {
        const int row = first + n * step;
        if (row < rows)
            *(uint4 *)(to + row * stride +
                       chunk * CHUNK) = *(const uint4 *)(tile + chunk_at(row_elements * ELEMENT_BYTES, row, chunk));
    }
}

#endif
