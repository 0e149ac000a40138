/* SPDX-License-Identifier: BSD-3-Clause
 *
 * finish.h: scales and rounds dQ's fp32 sums into the caller's dQ; bound by memory. A CTA has a block of ROWS rows of a
 * query head, and a thread has the elements that the thread of its number had in backward.cu. Blocks are taken from the last
 * one to the first, since the L2 cache still has the sums of the last ones.
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

enum { FINISH_THREADS = 128 * DQ_TILES };

/* A thread's sums of a tile of dQ; 0 where nobody has added: behind a sequence's end, where the main kernel has not run or,
 * with a fixed dQ order, whose semaphores tell it, no key is seen. Such sums hold anything. */
INLINE void load_dq(const struct sm90_backward_params *p, const struct row_block *block, int tile, int thread, bool has_rows,
                    float4 (&dq)[8]) {
    const float4 *sum = (const float4 *)(p->dq_sum + block->number * BLOCK_ELEMENTS + tile * DQ_TILE) + thread;
    const bool summed = has_rows && p->tiles > 0 && (!p->dq_semaphores || p->dq_semaphores[block->number * DQ_TILES] > 0);
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = has_rows ? sum[n * 128] : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = summed ? dq[n] : make_float4(0, 0, 0, 0);
}

#if !defined(GRADIENTS_FP32)
/* Stores a thread's elements of rows i and i + 8: pieces of eight columns that neighbours have exchanged. */
INLINE void store_dq(const struct sm90_backward_params *p, const struct span *rows, int head, int i, int column,
                     const float4 (&dq)[8]) {
    uint32_t packed[2][8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        packed[0][n] = pack(dq[n].x * p->scale, dq[n].y * p->scale);
        packed[1][n] = pack(dq[n].z * p->scale, dq[n].w * p->scale);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t to = row_start(&p->dq_rows, rows, i + 8 * half, head);
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            const uint4 piece = gather_piece(packed[half][n], packed[half][n + 1], packed[half][n + 2], packed[half][n + 3]);
            const int from = column + 8 * n + (int)threadIdx.x % 4 * 8;
            if (i + 8 * half < rows->count && from < p->dq_rows.columns)
                store_piece(&p->dq_rows, to, from, (const unsigned char *)&piece);
        }
    }
}
#else
/* The same into fp32: nothing is rounded, and a thread stores its pairs of columns itself. */
INLINE void store_dq(const struct sm90_backward_params *p, const struct span *rows, int head, int i, int column,
                     const float4 (&dq)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float *to = (float *)p->dq_rows.data + row_start(&p->dq_rows, rows, i + 8 * half, head);
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store_two(&p->dq_rows, to, i + 8 * half < rows->count, column + 8 * n + 2 * (int)(threadIdx.x % 4),
                      (half ? dq[n].z : dq[n].x) * p->scale, (half ? dq[n].w : dq[n].y) * p->scale);
    }
}
#endif

/* Sixteen rows of a block, as exact rows. */
INLINE void exact_rows(const struct sm90_backward_params *p, const struct row_block *block, int part) {
    const struct pair_of_spans in = spans_of(p, block->batch);
    const int first = block->m * ROWS + 16 * part;
    for (int i = first; i < first + 16 && i < in.rows.count; ++i) exact_row(p, &in, block->batch, block->head, i);
}

#define FINISH_(name) name##_finish
#define FINISH(name)  FINISH_(name)
extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 512 / FINISH_THREADS)
    FINISH(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    __shared__ int not_finite[ROWS / 16];
    const struct row_block block = row_block_of_cta(&p);
    const int tile = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int first_row = (ROW_PARTS == 2 ? 64 * tile : 0) + 16 * warp, column = (ROW_PARTS == 1 ? 64 * tile : 0);
    const int64_t number = (int64_t)blockIdx.x * (FINISH_THREADS / 32) + threadIdx.x / 32, /* of the warp */
        all_warps = (int64_t)gridDim.x * (FINISH_THREADS / 32);
    float4 dq[8];
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
    wait_for_previous();
    const struct span rows = rows_of(&p, block.batch);
    load_dq(&p, &block, tile, thread, block.m * ROWS < rows.count && p.dq_rows.columns > 0, dq);
    const bool may_be_marked = p.may_hide && number < all_marks(&p);
    const uint32_t mark = may_be_marked ? p.marks[number] : 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) nothing = fmaf(dq[n].x, 0, fmaf(dq[n].y, 0, fmaf(dq[n].z, 0, fmaf(dq[n].w, 0, nothing))));
    const bool all_finite = !p.may_hide || !__syncthreads_or(nothing != 0);
    bool whole = true;
    if (!all_finite) {
        if (threadIdx.x < ROWS / 16) not_finite[threadIdx.x] = 0;
        __syncthreads();
        if (nothing != 0) not_finite[first_row / 16] = 1;
        __syncthreads();
        whole = !not_finite[first_row / 16];
    }
    if (whole) store_dq(&p, &rows, block.head, block.m * ROWS + first_row + lane / 4, column, dq);
    for (int part = (int)threadIdx.x / 32; !all_finite && part < ROWS / 16; part += FINISH_THREADS / 32)
        if (not_finite[part]) exact_rows(&p, &block, part);
    if (mark || (may_be_marked && all_warps < all_marks(&p))) exact_keys(&p, number, all_warps);
    if (p.shares > 1) add_shares(&p, number * 32 + lane, all_warps * 32);
}

#endif
