/* SPDX-License-Identifier: BSD-3-Clause
 *
 * finish.h: scales and rounds dQ's fp32 sums into the caller's dQ; bound by memory. A CTA has a block of ROWS rows of a
 * query head, and a thread has the elements that the thread of its number had in backward.cu.
 *
 * A warp whose sixteen rows are not all finite computes them again as exact rows, and so are keys that the main kernel has
 * marked: see exact_row.h. Where a group's query heads are shared out among tiles, their dK and dV are added here. */
#ifndef STROBE_CUDA_SM90_BACKWARD_FINISH_H
#define STROBE_CUDA_SM90_BACKWARD_FINISH_H

#include "cuda/ptx/dependent.h"
#include "cuda/sm90/backward/exact_row.h"

/* Eight columns of the sums of all shares of a K/V head, in the shares' order, scaled already. */
INLINE void add_piece_of_shares(const struct sm90_backward_params *p, const struct sm90_rows *shares,
                                const struct sm90_rows *to, const struct span *keys, int head_kv, int key, int column) {
    if (column >= to->columns) return;
    const float *from = (const float *)shares->data + row_start(shares, keys, key, head_kv * p->shares) + column;
    float sums[8] = {0};
    for (int share = 0; share < p->shares; ++share, from += shares->stride[2]) {
        const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
        sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
        sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
    }
    store_gradients(to, row_start(to, keys, key, head_kv), column, sums);
}

/* The thread's part of dK and dV of all keys, but for marked ones. */
INLINE void add_shares(const struct sm90_backward_params *p, int64_t thread, int64_t threads) {
    enum { PIECES = HEAD_DIM / 8 };
    const int64_t all = (int64_t)p->batch * p->heads_kv * p->seq_k * PIECES;
    for (int64_t n = thread; n < all; n += threads) {
        const int64_t row = n / PIECES;
        const int key = (int)(row % p->seq_k), head = (int)(row / p->seq_k), batch = head / p->heads_kv;
        const struct span keys = span_of(p->cu_seqlens_k, p->used_k, p->index64, batch, p->seq_k);
        if (key >= keys.count || (p->may_hide && p->marks[head * marks_of_head(p) + key / MARKED_KEYS])) continue;
        const int column = (int)(n % PIECES) * 8;
        add_piece_of_shares(p, &p->dk_shares, &p->dk_rows, &keys, head % p->heads_kv, key, column);
        add_piece_of_shares(p, &p->dv_shares, &p->dv_rows, &keys, head % p->heads_kv, key, column);
    }
}

/* A thread's sums of a tile of dQ; 0 where nobody has added: behind a sequence's end, where the main kernel has not run or,
 * with a fixed dQ order, whose semaphores tell it, no key is seen. Such sums hold anything. */
INLINE void load_dq(const struct sm90_backward_params *p, const struct row_block *block, int tile, int thread,
                    float4 (&dq)[8]) {
    const float4 *sum = (const float4 *)(p->dq_sum + block->number * BLOCK_ELEMENTS + tile * DQ_TILE) + thread;
    const bool has_rows = block->m * ROWS < rows_of(p, block->batch).count;
    const bool summed = has_rows && p->tiles > 0 && (!p->dq_semaphores || p->dq_semaphores[block->number * DQ_TILES] > 0);
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = has_rows ? sum[n * 128] : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = summed ? dq[n] : make_float4(0, 0, 0, 0);
}

#define FINISH_(name) name##_finish
#define FINISH(name)  FINISH_(name)
#if !defined(GRADIENTS_FP32)
extern "C" __global__ void __launch_bounds__(128 * DQ_TILES, DQ_TILES > 2 ? 1 : 2)
    FINISH(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    __shared__ __align__(128) unsigned char staging[BLOCK_ELEMENTS * 2];
    __shared__ int not_finite[ROWS / 16];
    const struct row_block block = row_block_of_cta(&p);
    const int tile = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int first_row = (ROW_PARTS == 2 ? 64 * tile : 0), first_column = (ROW_PARTS == 1 ? 64 * tile : 0);
    float4 dq[8];
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
    wait_for_previous();
    load_dq(&p, &block, tile, thread, dq);
    if (threadIdx.x < ROWS / 16) not_finite[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int row = first_row + 16 * warp + lane / 4, column = first_column + 8 * n + 2 * (lane % 4);
        *(uint32_t *)(staging + swizzled(row, column, ROWS)) = pack(dq[n].x * p.scale, dq[n].y * p.scale);
        *(uint32_t *)(staging + swizzled(row + 8, column, ROWS)) = pack(dq[n].z * p.scale, dq[n].w * p.scale);
        nothing = fmaf(dq[n].x, 0, fmaf(dq[n].y, 0, fmaf(dq[n].z, 0, fmaf(dq[n].w, 0, nothing))));
    }
    if (p.may_hide && nothing != 0) not_finite[first_row / 16 + warp] = 1;
    __syncthreads();
    const struct pair_of_spans in = spans_of(&p, block.batch);
    for (int part = (int)threadIdx.x / 32; part < ROWS / 16; part += 4 * DQ_TILES) {
        const int i = block.m * ROWS + 16 * part;
        if (!not_finite[part]) {
            store_warp_rows(&p.dq_rows, staging, 16 * part, ROWS, &in.rows, block.head, i);
            continue;
        }
        for (int row = 0; row < 16 && i + row < in.rows.count; ++row) {
            exact_row(&p, &in, block.batch, block.head, i + row);
        }
    }
    const int warps = 4 * DQ_TILES;
    if (p.may_hide) exact_keys(&p, (int64_t)blockIdx.x * warps + threadIdx.x / 32, (int64_t)gridDim.x * warps);
    if (p.shares > 1)
        add_shares(&p, (int64_t)blockIdx.x * (128 * DQ_TILES) + threadIdx.x, (int64_t)gridDim.x * (128 * DQ_TILES));
}

#else

/* The same into fp32: nothing is rounded, and a thread stores its pairs of columns itself. */
extern "C" __global__ void __launch_bounds__(128 * DQ_TILES, DQ_TILES > 2 ? 1 : 2)
    FINISH(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    __shared__ int not_finite[ROWS / 16];
    const struct row_block block = row_block_of_cta(&p);
    const int tile = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int first_row = (ROW_PARTS == 2 ? 64 * tile : 0), first_column = (ROW_PARTS == 1 ? 64 * tile : 0);
    const int row = first_row + 16 * warp + lane / 4, part_of_warp = first_row / 16 + warp;
    float4 dq[8];
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
    wait_for_previous();
    load_dq(&p, &block, tile, thread, dq);
    if (threadIdx.x < ROWS / 16) not_finite[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 8; ++n) nothing = fmaf(dq[n].x, 0, fmaf(dq[n].y, 0, fmaf(dq[n].z, 0, fmaf(dq[n].w, 0, nothing))));
    if (p.may_hide && nothing != 0) not_finite[part_of_warp] = 1;
    __syncthreads();
    const struct pair_of_spans in = spans_of(&p, block.batch);
    if (!not_finite[part_of_warp]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = block.m * ROWS + row + 8 * half;
            float *to = (float *)p.dq_rows.data + row_start(&p.dq_rows, &in.rows, i, block.head);
#pragma unroll
            for (int n = 0; n < 8; ++n)
                store_two(&p.dq_rows, to, i < in.rows.count, first_column + 8 * n + 2 * (lane % 4),
                          (half ? dq[n].z : dq[n].x) * p.scale, (half ? dq[n].w : dq[n].y) * p.scale);
        }
    }
    for (int part = (int)threadIdx.x / 32; part < ROWS / 16; part += 4 * DQ_TILES) {
        const int i = block.m * ROWS + 16 * part;
        for (int n = 0; not_finite[part] && n < 16 && i + n < in.rows.count; ++n)
            exact_row(&p, &in, block.batch, block.head, i + n);
    }
    const int warps = 4 * DQ_TILES;
    if (p.may_hide) exact_keys(&p, (int64_t)blockIdx.x * warps + threadIdx.x / 32, (int64_t)gridDim.x * warps);
    if (p.shares > 1)
        add_shares(&p, (int64_t)blockIdx.x * (128 * DQ_TILES) + threadIdx.x, (int64_t)gridDim.x * (128 * DQ_TILES));
}
#endif

#endif
