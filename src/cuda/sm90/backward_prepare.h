/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_prepare.h: what backward.cu needs of every row before it starts, bound by memory: lse in base 2, negated, and
 * D = rowsum(dO out) - dlse; and dQ's sums, turns and marks set to 0. A CTA has a block of ROWS rows of a query head. */
#ifndef STROBE_CUDA_SM90_BACKWARD_PREPARE_H
#define STROBE_CUDA_SM90_BACKWARD_PREPARE_H

#include "cuda/sm90/backward_exact.h"

enum {
    PREPARE_THREADS = 256,
    ROW_LANES = HEAD_DIM > 128 ? 32 : HEAD_DIM / 8, /* threads of a row, eight elements each */
    ROWS_AT_A_TIME = PREPARE_THREADS / ROW_LANES,
};

INLINE float dot_of_pair(uint32_t a, uint32_t b) {
    return element_to_float((element)a) * element_to_float((element)b) +
           element_to_float((element)(a >> 16)) * element_to_float((element)(b >> 16));
}

/* rowsum(dO out), the same in all lanes of the row. */
INLINE float row_product(uint4 a, uint4 b) {
    float sum = dot_of_pair(a.x, b.x) + dot_of_pair(a.y, b.y) + dot_of_pair(a.z, b.z) + dot_of_pair(a.w, b.w);
#pragma unroll
    for (int lanes = ROW_LANES / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    return sum;
}

#define PREPARE_(name) name##_prepare
#define PREPARE(name)  PREPARE_(name)

extern "C" __global__ void __launch_bounds__(PREPARE_THREADS)
    PREPARE(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    const int m = (int)(blockIdx.x % (unsigned)p.row_blocks), heads = p.heads_kv * p.group;
    const int head = (int)(blockIdx.x / (unsigned)p.row_blocks) % heads,
              batch = (int)(blockIdx.x / (unsigned)p.row_blocks) / heads;
    const struct span rows = rows_of(&p, batch);
    const int lane = (int)threadIdx.x % ROW_LANES, column = lane * 8;
    uint4 out[ROWS / ROWS_AT_A_TIME], dout[ROWS / ROWS_AT_A_TIME];
#pragma unroll
    for (int n = 0; n < ROWS / ROWS_AT_A_TIME; ++n) {
        const int i = m * ROWS + n * ROWS_AT_A_TIME + (int)threadIdx.x / ROW_LANES;
        out[n] = dout[n] = make_uint4(0, 0, 0, 0);
        if (i >= rows.count) continue;
        out[n] = load_piece(&p.out_rows, row_start(&p.out_rows, &rows, i, head), column);
        dout[n] = load_piece(&p.dout_rows, row_start(&p.dout_rows, &rows, i, head), column);
    }
    float4 *sum = (float4 *)(p.dq_sum + (int64_t)blockIdx.x * BLOCK_ELEMENTS);
#pragma unroll
    for (int n = 0; n < BLOCK_ELEMENTS / 4 / PREPARE_THREADS; ++n)
        sum[n * PREPARE_THREADS + threadIdx.x] = make_float4(0, 0, 0, 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_tile = 0;
    if (p.may_hide)
        for (int64_t n = (int64_t)blockIdx.x * PREPARE_THREADS + threadIdx.x; n < all_marks(&p);
             n += (int64_t)gridDim.x * PREPARE_THREADS)
            p.marks[n] = 0;
    if (p.turns && threadIdx.x < DQ_TILES) p.turns[(int64_t)blockIdx.x * DQ_TILES + threadIdx.x] = 0;
#pragma unroll
    for (int n = 0; n < ROWS / ROWS_AT_A_TIME; ++n) {
        const int in_block = n * ROWS_AT_A_TIME + (int)threadIdx.x / ROW_LANES, i = m * ROWS + in_block;
        float term = row_product(out[n], dout[n]), lse = -INFINITY;
        if (lane != 0) continue;
        if (i < rows.count)
            lse = p.lse[rows.batch * p.lse_stride[0] + (int64_t)(rows.first + i) * p.lse_stride[1] + head * p.lse_stride[2]];
        if (lse == -INFINITY) /* a row that sees nothing may hold anything */
            term = 0;
        else if (p.dlse)
            term -= p.dlse[rows.batch * p.dlse_stride[0] + (int64_t)(rows.first + i) * p.dlse_stride[1] +
                           head * p.dlse_stride[2]];
        p.row_lse[(int64_t)blockIdx.x * ROWS + in_block] = lse == -INFINITY ? -INFINITY : -lse * (float)LOG2_E;
        p.row_term[(int64_t)blockIdx.x * ROWS + in_block] = term;
    }
}

#endif
