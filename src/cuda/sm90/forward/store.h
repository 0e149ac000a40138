/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.h: the end of a tile: O / l and lse from the registers of a warp to memory. This code runs once a tile and its
 * instructions are fetched anew each time, so it costs by its length and is kept short. Included by forward.cu alone. */
#ifndef STROBE_CUDA_SM90_FORWARD_STORE_H
#define STROBE_CUDA_SM90_FORWARD_STORE_H

#include "cuda/device/lse.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/tile.h"
#include "math/exp2.h"

/* Finishes rows l / 4 and l / 4 + 8 of a warp; of two neighbouring lanes each finishes one row for both. */
INLINE void finish_rows(const struct sm90_forward_params *p, const struct tile *t, int first, const float (&shift)[2],
                        float (&sum)[2], float (&factor)[2]) {
    const int lane = threadIdx.x % 32, odd = lane % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    }
    const int64_t row = t->row + first + lane / 4 + 8 * odd;
    struct row_end end = end_of_row(odd ? shift[1] : shift[0], 0, p->to_natural, odd ? sum[1] : sum[0],
                                    p->sinks ? p->sinks + head_of(t, row) : NULL);
    if (HAS_DROPOUT && p->dropout) end.factor *= p->place.keep_scale;
    const float own = end.factor;
    const float other = __shfl_xor_sync(0xffffffffu, own, 1);
    factor[0] = odd ? other : own, factor[1] = odd ? own : other;
    if (p->lse && lane % 4 < 2 && row < t->rows) {
        float *const lse = p->lse + row_at(p, t, p->lse_stride, row) + part_at(t, p->parts.step_lse);
        *lse = end.lse;
        if (HAS_PARTS && p->parts.count > 1) lse[p->parts.count * p->parts.step_lse] = end.rest;
    }
}

/* Stores four columns of a row, or the `columns` that are left of it. */
INLINE void store_few(uint16_t *to, uint2 four, int columns) {
    const uint64_t bits = four.x | (uint64_t)four.y << 32;
#pragma unroll
    for (int x = 0; x < 4; ++x)
        if (x < columns) to[x] = (uint16_t)(bits >> 16 * x);
}

/* Four neighbouring columns of row i, times `factor`. Neighbouring lanes swap pairs of columns, so that each has four of a
 * row and four lanes fill a sector of 32 bytes: columns 16 n + 8 (lane % 2) + 4 (lane % 4 / 2) + 0..3. */
INLINE uint2 four_columns(const float (&o)[HEAD_DIM / 2], float factor, int i, int n) {
    const int odd = threadIdx.x % 2;
    const uint32_t low = pack(o[8 * n + 2 * i] * factor, o[8 * n + 2 * i + 1] * factor);
    const uint32_t high = pack(o[8 * n + 4 + 2 * i] * factor, o[8 * n + 5 + 2 * i] * factor);
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    return make_uint2(odd ? got : low, odd ? high : got);
}

/* Stores the sixteen rows of a warp, rounded. */
INLINE void store_rows(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[HEAD_DIM / 2],
                       const float (&factor)[2], int first) {
    const int lane = threadIdx.x % 32, column = 8 * (lane % 2) + 4 * (lane % 4 / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int64_t row = t->row + first + lane / 4 + 8 * i;
        uint16_t *to = (uint16_t *)p->out + row_at(p, t, p->out_stride, row) + column;
        const int columns = row < t->rows ? p->dim_v - column : 0;
        if (p->out_is_aligned) {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n) {
                const uint2 four = four_columns(o, factor[i], i, n);
                if (16 * n < columns) *(uint2 *)(to + 16 * n) = four;
            }
        } else {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 16; ++n)
                store_few(to + 16 * n, four_columns(o, factor[i], i, n), columns - 16 * n);
        }
    }
}

/* Stores O / l. Returns whether the warp's O was finite; true, unasked, where no loaded key can be hidden. */
INLINE bool store_tile(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[HEAD_DIM / 2],
                       const float (&factor)[2], int first) {
    float nothing[4] = {0}; /* four sums, which do not wait for each other */
    STORE_ROWS(p, t, o, factor, first);
    if (!p->may_hide) return true;
#pragma unroll
    for (int v = 0; v < HEAD_DIM / 2; ++v) nothing[v % 4] = fmaf(o[v], 0, nothing[v % 4]);
    return are_finite(t, first, nothing);
}

/* The whole end of a tile. */
INLINE bool epilogue(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[HEAD_DIM / 2],
                     struct rows *r, int first) {
    float factor[2];
    finish_rows(p, t, first, r->shift, r->sum, factor);
    return store_tile(p, t, o, factor, first);
}

#endif
