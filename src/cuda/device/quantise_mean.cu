/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_mean.cu: the mean of K over a sequence, of one head and eight columns a CTA. Thread n adds rows n, n + 256, ...;
 * then halves are added to halves, as math/quantise.h has it. What is not finite counts as 0. */
#define PLAIN 0
#include "cuda/device/quantise_load.h"

extern "C" __global__ void __launch_bounds__(MEAN_PARTS) KERNEL(const __grid_constant__ struct quantise_params p) {
    __shared__ float part[MEAN_PARTS][9];
    const struct quantise_tensor *t = &p.t;
    const uint32_t eights = (uint32_t)(t->dim + 7) / 8;
    const int column = (int)(blockIdx.x % eights) * 8, thread = threadIdx.x;
    const int64_t of_head = blockIdx.x / eights, head = of_head % t->heads, sequence = of_head / t->heads;
    int64_t first = 0, rows = t->rows;
    if (t->cu_seqlens) {
        first = quantise_entry(t, t->cu_seqlens, sequence);
        rows = quantise_entry(t, t->cu_seqlens, sequence + 1) - first;
    }
    if (t->used) {
        const int64_t used = quantise_entry(t, t->used, sequence);
        rows = used < rows ? used : rows;
    }
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 4
    for (int64_t i = thread; i < rows; i += MEAN_PARTS) {
        const int64_t at = source_at(t, t->cu_seqlens ? 0 : sequence, first + i, head);
        float x[8];
        load_eight(&p, at, column, x);
        rotate_eight(&p, at, t->start + i, column, x);
#pragma unroll
        for (int n = 0; n < 8; ++n) sum[n] += is_finite_float(x[n]) ? x[n] : 0;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) part[thread][n] = sum[n];
    for (int width = MEAN_PARTS / 2; width > 0; width /= 2) {
        __syncthreads();
        for (int n = 0; thread < width && n < 8; ++n) part[thread][n] += part[thread + width][n];
    }
    __syncthreads();
    if (thread < 8 && column + thread < t->dim)
        t->mean[of_head * t->dim + column + thread] = rows > 0 ? part[0][thread] / (float)rows : 0;
}
