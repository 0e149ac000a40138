/* SPDX-License-Identifier: BSD-3-Clause
 *
 * prepare.h: what backward.cu needs of every row before it starts: delta = rowsum(dO * O) - dlse, -lse in base 2, and the
 * sink's weight. It also sets counters, semaphores and marks to 0. A CTA has a block of ROWS rows of a query head; the
 * kernel is bound by memory. */
#ifndef STROBE_CUDA_SM90_BACKWARD_PREPARE_H
#define STROBE_CUDA_SM90_BACKWARD_PREPARE_H

#include "cuda/device/lanes.h"
#include "cuda/ptx/dependent.h"
#include "cuda/sm90/backward/exact_row.h"
#include "cuda/sm90/backward/sinks.h"

enum {
    PREPARE_THREADS = 256,
    ROW_LANES = HEAD_DIM > 128 ? 32 : HEAD_DIM / 8, /* threads of a row, eight elements each */
    ROWS_AT_A_TIME = PREPARE_THREADS / ROW_LANES,
};

INLINE float dot_of_pair(uint32_t a, uint32_t b) {
    return element_to_float((element)a) * element_to_float((element)b) +
           element_to_float((element)(a >> 16)) * element_to_float((element)(b >> 16));
}

/* rowsum(dO * O), the same in all lanes of the row. */
INLINE float row_product(uint4 a, uint4 b) {
    return lanes_sum(dot_of_pair(a.x, b.x) + dot_of_pair(a.y, b.y) + dot_of_pair(a.z, b.z) + dot_of_pair(a.w, b.w),
                     ROW_LANES);
}

/* Elements from the first lse, or dlse, to that of row i. */
INLINE int64_t statistic_start(const int64_t (&stride)[3], const struct span *rows, int i, int head) {
    return rows->batch * stride[0] + (int64_t)(rows->first + i) * stride[1] + head * stride[2];
}

/* Stores -lse in base 2 and delta of a row. What a row that sees nothing has in O and dO may be anything. */
INLINE void store_statistics(const struct sm90_backward_params *p, int64_t to, float product, float lse, float dlse) {
    p->row_lse[to] = lse == -INFINITY ? -INFINITY : -lse * (float)LOG2_E;
    p->row_delta[to] = lse == -INFINITY ? 0 : product - dlse;
}

/* Stores the weight of a row's sink. */
INLINE void store_sink(const struct sm90_backward_params *p, int64_t to, int head, float lse) {
    p->row_sink[to] = lse == -INFINITY ? 0 : ex2((p->sinks[head] - lse) * (float)LOG2_E);
}

/* Clears counters, semaphores, marks and parts of dsinks. */
INLINE void clear_counts(const struct sm90_backward_params *p) {
    for (int64_t n = (int64_t)blockIdx.x * PREPARE_THREADS + threadIdx.x; n < p->counts;
         n += (int64_t)gridDim.x * PREPARE_THREADS)
        p->tile_counter[n] = 0;
}

/* Blocks of keys of an entry of the batch. */
INLINE int key_blocks_of(const struct sm90_backward_params *p, int batch) {
    return (span_of(p->cu_seqlens_k, p->used_k, p->index64, batch, p->seq_k).count + TILE_KEYS - 1) / TILE_KEYS;
}

/* The first CTA puts sequences in the order in which their tiles are taken, and counts these. With a fixed dQ order long
 * sequences come first, so that all CTAs end together; otherwise dQ's sums are cleared in the order of the batch. */
INLINE void order_sequences(const struct sm90_backward_params *p) {
    enum { CLASSES = 64 }; /* of lengths, long ones first */
    __shared__ int of_class[CLASSES], of_warp[PREPARE_THREADS / 32];
    const int thread = (int)threadIdx.x, lane = thread % 32;
    const bool sorts = p->dq_semaphores;
    if (thread < CLASSES) of_class[thread] = 0;
    __syncthreads();
    for (int n = thread; sorts && n < p->batch; n += PREPARE_THREADS) {
        const int blocks = key_blocks_of(p, n);
        atomicAdd(&of_class[blocks < CLASSES ? CLASSES - 1 - blocks : 0], 1);
    }
    __syncthreads();
    if (thread == 0)
        for (int n = 0, before = 0; n < CLASSES; ++n) {
            const int count = of_class[n];
            of_class[n] = before, before += count;
        }
    __syncthreads();
    for (int n = thread; n < p->batch; n += PREPARE_THREADS) {
        const int blocks = key_blocks_of(p, n);
        p->sequences[sorts ? atomicAdd(&of_class[blocks < CLASSES ? CLASSES - 1 - blocks : 0], 1) : n].batch = n;
    }
    __syncthreads();
    for (int start = 0, before = 0; start <= p->batch; start += PREPARE_THREADS) {
        const int at = start + thread, own = at < p->batch ? key_blocks_of(p, p->sequences[at].batch) : 0;
        int sum = own; /* of the lanes up to this one */
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) of_warp[thread / 32] = sum;
        __syncthreads();
        int first = before + sum - own;
        for (int warp = 0; warp < PREPARE_THREADS / 32; ++warp) {
            if (warp < thread / 32) first += of_warp[warp];
            before += of_warp[warp];
        }
        if (at <= p->batch) p->sequences[at].tile = first;
        __syncthreads();
    }
}

#define PREPARE_(name) name##_prepare
#define PREPARE(name)  PREPARE_(name)

/* All loads of some rows are issued before the first is waited for: so many that 1024 threads have registers for theirs. */
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4)
    PREPARE(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    enum { TIMES = 4 };
    const struct row_block block = row_block_of_cta(&p);
    const struct span rows = rows_of(&p, block.batch);
    const int lane = (int)threadIdx.x % ROW_LANES, first = (int)threadIdx.x / ROW_LANES;
    let_next_start();
    if (p.sequences && blockIdx.x == 0) order_sequences(&p);
    clear_counts(&p);
    if (block.m * ROWS >= rows.count) return; /* nobody reads what it would store */
#pragma unroll 1
    for (int start = 0; start < ROWS; start += TIMES * ROWS_AT_A_TIME) {
        uint4 out[TIMES], dout[TIMES];
        float lse[TIMES], dlse[TIMES];
#pragma unroll
        for (int n = 0; n < TIMES; ++n) {
            const int i = block.m * ROWS + start + n * ROWS_AT_A_TIME + first;
            out[n] = dout[n] = make_uint4(0, 0, 0, 0), lse[n] = -INFINITY, dlse[n] = 0;
            if (i >= rows.count) continue;
            out[n] = load_piece(&p.out_rows, row_start(&p.out_rows, &rows, i, block.head), lane * 8);
            dout[n] = load_piece(&p.dout_rows, row_start(&p.dout_rows, &rows, i, block.head), lane * 8);
            lse[n] = p.lse[statistic_start(p.lse_stride, &rows, i, block.head)];
            if (p.dlse) dlse[n] = p.dlse[statistic_start(p.dlse_stride, &rows, i, block.head)];
        }
#pragma unroll
        for (int n = 0; n < TIMES; ++n) {
            const int row = start + n * ROWS_AT_A_TIME + first;
            const float product = row_product(out[n], dout[n]);
            if (lane == 0) store_statistics(&p, block.number * ROWS + row, product, lse[n], dlse[n]);
            if (sums_sinks(&p) && lane == 0) store_sink(&p, block.number * ROWS + row, block.head, lse[n]);
        }
    }
}

#endif
