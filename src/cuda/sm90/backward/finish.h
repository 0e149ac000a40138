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

/* A warp's part of dQ: sixteen rows of a block, 64 columns. A thread has some of rows row + lane / 4 and 8 further. */
struct part_of_dq {
    struct span rows;
    int head, row, column;
};

#if !defined(GRADIENTS_FP32)
/* Stores a thread's elements: pieces of eight columns that neighbours have exchanged. Sums of nothing hold anything. */
INLINE void store_dq(const struct sm90_backward_params *p, const struct part_of_dq *part, const float4 (&dq)[8],
                     bool summed) {
    uint32_t packed[2][8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        packed[0][n] = summed ? pack(dq[n].x * p->scale, dq[n].y * p->scale) : 0;
        packed[1][n] = summed ? pack(dq[n].z * p->scale, dq[n].w * p->scale) : 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = part->row + (int)threadIdx.x % 32 / 4 + 8 * half;
        const int64_t to = row_start(&p->dq_rows, &part->rows, i, part->head);
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            const uint4 piece = gather_piece(packed[half][n], packed[half][n + 1], packed[half][n + 2], packed[half][n + 3]);
            const int from = part->column + 8 * n + (int)threadIdx.x % 4 * 8;
            if (i < part->rows.count && from < p->dq_rows.columns) store_piece(&p->dq_rows, to, from, piece);
        }
    }
}
#else
/* The same into fp32: nothing is rounded, and a thread stores its pairs of columns itself. */
INLINE void store_dq(const struct sm90_backward_params *p, const struct part_of_dq *part, const float4 (&dq)[8],
                     bool summed) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = part->row + (int)threadIdx.x % 32 / 4 + 8 * half;
        float *to = (float *)p->dq_rows.data + row_start(&p->dq_rows, &part->rows, i, part->head);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float x = half ? dq[n].z : dq[n].x, y = half ? dq[n].w : dq[n].y;
            store_two(&p->dq_rows, to, i < part->rows.count, part->column + 8 * n + 2 * (int)(threadIdx.x % 4),
                      summed ? x * p->scale : 0, summed ? y * p->scale : 0);
        }
    }
}
#endif

/* A part's rows as exact rows. A call of its own, as what follows: inlined they would take registers from finite data. */
static __device__ __noinline__ void exact_rows(const struct sm90_backward_params *p, int batch, int head, int row,
                                               int column) {
    const struct pair_of_spans in = spans_of(p, batch);
    for (int i = row; i < row + 16 && i < in.rows.count; ++i) exact_row(p, &in, batch, head, i, column);
}

static __device__ __noinline__ void exact_keys_of_warp(const struct sm90_backward_params *p, int64_t warp, int64_t warps) {
    exact_keys(p, warp, warps);
}

/* A warp among the grid's. */
struct warp_of_grid {
    int64_t number, all;
};

INLINE struct warp_of_grid warp_of_grid(int cta) {
    enum { WARPS = FINISH_THREADS / 32 };
    const struct warp_of_grid w = {(int64_t)cta * WARPS + threadIdx.x / 32, (int64_t)gridDim.x * WARPS};
    return w;
}

INLINE void load_dq(const struct sm90_backward_params *p, const struct row_block *block, int tile, float4 (&dq)[8]) {
    const float4 *sum = (const float4 *)(p->dq_sum + block->number * BLOCK_ELEMENTS + tile * DQ_TILE) + threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = n < DQ_WORDS / 4 ? sum[n * 128] : make_float4(0, 0, 0, 0);
}

/* Sums are 0 where nobody has added: where the main kernel has not run or, with a fixed dQ order, whose semaphores tell it,
 * no key is seen. A column of a row that is finite is right, whatever the others are. */
INLINE void finish_dq(const struct sm90_backward_params *p, const struct row_block *block, const struct part_of_dq *part,
                      const float4 (&dq)[8], bool summed) {
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
#pragma unroll
    for (int n = 0; n < 8; ++n) nothing = fmaf(dq[n].x, 0, fmaf(dq[n].y, 0, fmaf(dq[n].z, 0, fmaf(dq[n].w, 0, nothing))));
    if (p->may_hide && __any_sync(0xffffffffu, summed && nothing != 0))
        exact_rows(p, block->batch, block->head, part->row, part->column);
    else
        store_dq(p, part, dq, summed);
}

#define FINISH_(name) name##_finish
#define FINISH(name)  FINISH_(name)

/* All loads of a thread are issued before the first is waited for; 1024 threads have registers for theirs. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 1024 / FINISH_THREADS)
    FINISH(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    const struct row_block block = row_block_of_cta(&p);
    const int tile = (int)threadIdx.x / 128, warp = (int)threadIdx.x % 128 / 32;
    const struct warp_of_grid own = warp_of_grid((int)blockIdx.x);
    struct part_of_dq part;
    float4 dq[8];
    part.head = block.head, part.row = block.m * ROWS + (ROW_PARTS == 2 ? 64 * tile : 0) + 16 * warp;
    part.column = ROW_PARTS == 1 ? 64 * tile : 0;
    wait_for_previous();
    part.rows = rows_of(&p, block.batch);
    const bool is_there = part.row < part.rows.count && part.column < p.dq_rows.columns;
    if (is_there) load_dq(&p, &block, tile, dq);
    const bool summed = p.tiles > 0 && (!p.dq_semaphores || p.dq_semaphores[block.number * DQ_TILES] > 0);
    const bool looks = p.may_hide && own.number < all_marks(&p);
    const bool marked = looks && (p.marks[own.number] || own.all < all_marks(&p));
    if (is_there) finish_dq(&p, &block, &part, dq, summed);
    const struct warp_of_grid again = warp_of_grid(unforeseen((int)blockIdx.x)); /* not kept in registers */
    if (marked) exact_keys_of_warp(&p, again.number, again.all);
    if (p.shares > 1) add_shares(&p, again.number * 32 + threadIdx.x % 32, again.all * 32);
}

#endif
