/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.h: accumulators to rows of a tensor, by way of shared memory, where they lie in fp32: then a thread stores 16 bytes
 * of a row, and the many cases of alignment, type and ragged ends are one short loop. (Straight from registers they are some
 * thousands of instructions that run once: with short sequences, fetching them took longer than everything else.) */
#ifndef STROBE_CUDA_TILE_STORE_H
#define STROBE_CUDA_TILE_STORE_H

#include "cuda/tile/job.h"

/* Floats from one row of the stage to the next: rows 8 apart start in other banks. */
#define STAGE_ROW(columns) ((columns) + 4)

/* One of the lane's two rows of a 16-row tile, times factor, into row `row` of the stage. */
INLINE void stage_row(float *stage, int row, const float (*o)[4], int tiles, int half, float factor) {
    float *to = stage + row * STAGE_ROW(8 * tiles) + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
        *(float2 *)(to + 8 * n) = make_float2(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
}

/* Eight staged columns to element `at` of the tensor, of which `columns` are there. */
INLINE void store_eight(const struct view *to, int64_t at, const float *from, int columns) {
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
#if !defined(ELEMENT_FP32)
    if (columns >= 8 && to->aligned && to->dtype == ELEMENT_DTYPE) {
        *(uint4 *)((element *)to->data + at) = make_uint4(pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y),
                                                          pack(high.z, high.w));
        return;
    }
#endif
    if (columns >= 8 && to->aligned && to->dtype == CUDA_FP32) {
        *(float4 *)((float *)to->data + at) = low;
        *(float4 *)((float *)to->data + at + 4) = high;
        return;
    }
#pragma unroll 1
    for (int x = 0; x < 8 && x < columns; ++x) store_any(to->data, to->dtype, at + x, from[x]);
}

/* Rows [0, rows) of the stage, packed rows from `first` on, or keys, to columns of the tensor from `column` on. All threads;
 * the stage is complete. */
INLINE void store_staged(const struct params *p, const struct job *t, const struct view *to, bool packed, int64_t first,
                         int rows, int stage_columns, int column, int columns, int64_t extra, const float *stage,
                         int threads) {
    const int end = packed ? t->rows * p->group : t->keys, eights = stage_columns / 8;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < rows * eights; at += threads) {
        const int row = at / eights, x = at % eights * 8;
        if (first + row >= end || x >= columns - column) continue;
        const int64_t offset = packed ? row_offset(to, t, place_of(p, t, (int)first + row)) : key_offset(to, t, first + row);
        store_eight(to, offset + extra + column + x, stage + row * STAGE_ROW(stage_columns) + x, columns - column - x);
    }
}

#endif
