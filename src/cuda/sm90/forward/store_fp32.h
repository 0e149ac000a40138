/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store_fp32.h: what store.h does, for an out in fp32: partial results, which are merged and rounded once (rings of many
 * processes). Included by tile.h in variants with OUT_FP32. */
#ifndef STROBE_CUDA_SM90_FORWARD_STORE_FP32_H
#define STROBE_CUDA_SM90_FORWARD_STORE_FP32_H

INLINE float first_of(float x, float) { return x; }

/* Stores the sixteen rows of a warp. A thread has pairs of columns, and four lanes fill a sector of 32 bytes. */
INLINE void store_rows_fp32(const struct sm90_forward_params *p, const struct tile *t, const float (&o)[HEAD_DIM / 2],
                            const float (&factor)[2], int first) {
    const int lane = threadIdx.x % 32, column = 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int64_t row = t->row + first + lane / 4 + 8 * i;
        float *to = (float *)p->out + row_at(p, t, p->out_stride, row) + part_at(t, p->parts.step_out) + column;
        const int columns = row < t->rows ? p->dim_v - column : 0;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; ++n) {
            const float2 two = make_float2(o[4 * n + 2 * i] * factor[i], o[4 * n + 2 * i + 1] * factor[i]);
            if (p->out_is_aligned) {
                if (8 * n < columns) *(float2 *)(to + 8 * n) = two;
            } else {
                if (8 * n < columns) to[8 * n] = two.x;
                if (8 * n + 1 < columns) to[8 * n + 1] = two.y;
            }
        }
    }
}

#endif
