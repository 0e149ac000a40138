/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store_fp32.h: how rows of dQ, dK and dV in fp32 are written: parts of gradients, which are added and rounded once (rings
 * of many processes). Included by tile.h in variants with GRADIENTS_FP32. */
#ifndef STROBE_CUDA_SM90_BACKWARD_STORE_FP32_H
#define STROBE_CUDA_SM90_BACKWARD_STORE_FP32_H

INLINE float first_of(float x, float) { return x; }

INLINE void store_two(const struct sm90_rows *rows, float *to, bool there, int column, float x, float y) {
    if (rows->aligned && rows->columns % 2 == 0) {
        if (there && column < rows->columns) *(float2 *)(to + column) = make_float2(x, y);
        return;
    }
    if (there && column < rows->columns) to[column] = x;
    if (there && column + 1 < rows->columns) to[column + 1] = y;
}

/* A thread's part of a row of dK or dV from `column` on, where rows are aligned. Neighbouring lanes swap pairs of columns,
 * so that each has four of a row: the even one of eight columns, the odd one of the next eight. */
template <int count>
INLINE void store_pieces(const struct sm90_rows *rows, float *to, bool there, const float (&sums)[count], int half,
                         int column, float factor) {
    const int odd = threadIdx.x % 2, from = column + 8 * odd + (int)threadIdx.x % 4 / 2 * 4;
#pragma unroll
    for (int v = 2 * half; v < count; v += 8) {
        const float2 low = make_float2(sums[v] * factor, sums[v + 1] * factor);
        const float2 high = make_float2(sums[v + 4] * factor, sums[v + 5] * factor);
        const float x = __shfl_xor_sync(0xffffffffu, odd ? low.x : high.x, 1);
        const float y = __shfl_xor_sync(0xffffffffu, odd ? low.y : high.y, 1);
        const float4 four = odd ? make_float4(x, y, high.x, high.y) : make_float4(low.x, low.y, x, y);
        const int at = from + 2 * (v - 2 * half);
        if (there && at < rows->columns) *(float4 *)(to + at) = four;
    }
}

#endif
