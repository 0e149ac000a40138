/* SPDX-License-Identifier: BSD-3-Clause
 *
 * row_terms.cu: the small kernels around the backward pass, all bound by memory.
 *   strobe__row_terms    lse in base 2 and D = rowsum(dout * out) - dlse of every row, a warp a row
 *   strobe__sink_sums    dsink of a head = -sum over batch and rows of exp(sink - lse) D, a block of threads a head, in a
 *                        fixed order, in fp64
 *   strobe__dbias_round  the fp32 sums of dbias to where and as the caller wants them */
#include "cuda/tile/gradients.h"

extern "C" __global__ void __launch_bounds__(128) strobe__row_terms(const __grid_constant__ struct params p) {
    const int lane = (int)threadIdx.x % 32, heads = p.heads_kv * p.group;
    int64_t index = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    if (index >= (int64_t)p.batch * heads * p.seq_q) return;
    const int64_t to = index;
    struct place at;
    struct job t;
    at.i = (int)(index % p.seq_q), index /= p.seq_q;
    at.h = (int)(index % heads), t.b = (int)(index / heads);
    job_sequence(&t, &p);
    if (at.i >= t.rows) return;
    const float lse = ((const float *)p.lse.data)[row_offset(&p.lse, &t, at)];
    float sum = 0;
    if (lse != -INFINITY) { /* a row that sees nothing may hold anything */
        const int64_t out = row_offset(&p.out, &t, at), dout = row_offset(&p.dout, &t, at);
        for (int x = lane; x < p.dim_v; x += 32)
            sum += load_any(p.out.data, p.out.dtype, out + x) * load_any(p.dout.data, p.dout.dtype, dout + x);
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (p.dlse.data) sum -= ((const float *)p.dlse.data)[row_offset(&p.dlse, &t, at)];
    }
    if (lane) return;
    p.row_term[to] = sum;
    p.row_lse[to] = lse == -INFINITY ? INFINITY : lse * (float)LOG2_E;
}

extern "C" __global__ void __launch_bounds__(256) strobe__sink_sums(const __grid_constant__ struct params p) {
    __shared__ double sums[256];
    const int h = (int)blockIdx.x, heads = p.heads_kv * p.group;
    double sum = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
        struct job t;
        t.b = (int)b;
        job_sequence(&t, &p);
        const int64_t at = (b * heads + h) * p.seq_q;
        for (int i = (int)threadIdx.x; i < t.rows; i += 256)
            if (p.row_lse[at + i] != INFINITY)
                sum -= (double)(exp2f(p.sinks[h] * (float)LOG2_E - p.row_lse[at + i]) * p.row_term[at + i]);
    }
    sums[threadIdx.x] = sum;
    for (int d = 128; d; d /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < d) sums[threadIdx.x] += sums[threadIdx.x + d];
    }
    if (threadIdx.x == 0) p.dsinks[h] = (float)sums[0];
}

/* Extents of the bias are 1 where its stride is 0. */
extern "C" __global__ void __launch_bounds__(256) strobe__dbias_round(const __grid_constant__ struct params p) {
    const int64_t rows = p.dbias_sum.row ? p.seq_q : 1, heads = p.dbias_sum.head ? p.heads_kv * p.group : 1;
    const int64_t batch = p.dbias_sum.batch ? p.batch : 1, all = batch * heads * rows * p.seq_k;
    for (int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x; at < all; at += (int64_t)gridDim.x * 256) {
        const int64_t j = at % p.seq_k, i = at / p.seq_k % rows, h = at / p.seq_k / rows % heads,
                      b = at / p.seq_k / rows / heads;
        store_any(p.dbias.data, p.dbias.dtype, b * p.dbias.batch + h * p.dbias.head + i * p.dbias.row + j,
                  ((const float *)p.dbias_sum.data)[at]);
    }
}
