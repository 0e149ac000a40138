/* SPDX-License-Identifier: BSD-3-Clause
 *
 * product_ffma.h: the products of product_mma.h in true fp32, by fused multiply-adds, with the same layout of accumulators,
 * so that everything around them is one text: with g = lane / 4, t = lane % 4 a lane has rows g and g + 8 and columns 2t and
 * 2t + 1 of every 16 x 8 tile. */
#ifndef STROBE_CUDA_SM80_PRODUCT_FFMA_H
#define STROBE_CUDA_SM80_PRODUCT_FFMA_H

#include "cuda/sm80/load.h"

INLINE float4 chunk_of(const unsigned char *tile, int row_bytes, int row, int chunk) {
    return *(const float4 *)(tile + chunk_at(row_bytes, row, chunk));
}

INLINE float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* c[m][n] += A B^T over `depth` columns. */
INLINE void product_rows_ffma(float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *a, int a_row,
                              const unsigned char *b, int b_row, int row_elements) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, row_bytes = 4 * row_elements;
#pragma unroll 1
    for (int k = 0; k < depth / 4; ++k)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            const float4 low = chunk_of(a, row_bytes, a_row + 16 * m + g, k);
            const float4 high = chunk_of(a, row_bytes, a_row + 16 * m + g + 8, k);
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float4 right = chunk_of(b, row_bytes, b_row + 8 * n + 2 * t + e, k);
                    float *sum = c[m * n_tiles + n];
                    sum[e] = dot4(low, right, sum[e]);
                    sum[2 + e] = dot4(high, right, sum[2 + e]);
                }
        }
}

/* c[m][n] += X B, X in accumulator registers: each of its elements is shuffled to the four lanes that share its row. */
INLINE void product_registers_ffma(float (*c)[4], int m_tiles, int n_tiles, int depth, const float (*x)[4],
                                   const unsigned char *b, int b_row, int column, int row_elements) {
    const int lane = (int)threadIdx.x % 32, t = lane % 4, row_bytes = 4 * row_elements;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int k = 0; k < depth / 8; ++k)
#pragma unroll 1
            for (int from = 0; from < 4; ++from)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float low = __shfl_sync(0xffffffffu, x[m * (depth / 8) + k][e], lane - t + from);
                    const float high = __shfl_sync(0xffffffffu, x[m * (depth / 8) + k][2 + e], lane - t + from);
                    const int row = b_row + 8 * k + 2 * from + e;
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n) {
                        const int at = (column + 8 * n + 2 * t) / 4;
                        const float2 right = *(const float2 *)(b + chunk_at(row_bytes, row, at) + (uint32_t)(t % 2 * 8));
                        float *sum = c[m * n_tiles + n];
                        sum[0] = fmaf(low, right.x, sum[0]), sum[1] = fmaf(low, right.y, sum[1]);
                        sum[2] = fmaf(high, right.x, sum[2]), sum[3] = fmaf(high, right.y, sum[3]);
                    }
                }
}

#endif
