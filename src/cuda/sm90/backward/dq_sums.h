/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dq_sums.h: dQ's fp32 sums are set to 0 by the main kernel itself: in each CTA a warp that has nothing else to do does it
 * beside the products of the others. Heads are cleared one after the other, and a CTA adds to a head's sums when all blocks
 * of that head are clear. Warps take blocks of rows from a counter, so that nobody waits for a CTA that has not started.
 * With a fixed dQ order the first to add to a block of rows stores instead. */
#ifndef STROBE_CUDA_SM90_BACKWARD_DQ_SUMS_H
#define STROBE_CUDA_SM90_BACKWARD_DQ_SUMS_H

#include "cuda/ptx/semaphore.h"
#include "cuda/sm90/backward/steps.h"

/* Blocks of rows of all query heads of a K/V head. */
INLINE uint32_t blocks_of_head(const struct sm90_backward_params *p) { return (uint32_t)(p->group * p->row_blocks); }

/* A warp takes the next block to clear. */
INLINE uint32_t take_block_to_clear(const struct sm90_backward_params *p) {
    uint32_t taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(p->clear_counter, 1u);
    return __shfl_sync(0xffffffffu, taken, 0);
}

/* A warp clears `most` blocks, and more until the last block of `head` has been taken, since its own CTA waits for that
 * head. A persistent CTA clears until none is left (most = UINT32_MAX). */
INLINE void clear_dq(const struct sm90_backward_params *p, uint32_t most, int head) {
    const uint32_t lane = threadIdx.x % 32, blocks = blocks_of_head(p), all = blocks * (uint32_t)(p->heads_kv * p->batch);
    uint32_t block = 0;
    for (uint32_t n = 0; (n < most || block + 1 < (head + 1) * blocks) && (block = take_block_to_clear(p)) < all; ++n) {
        float4 *sum = (float4 *)(p->dq_sum + (int64_t)block * BLOCK_ELEMENTS);
        /* Sequences may be shorter than the longest: nothing is added behind their ends. */
        const int head = (int)block / p->row_blocks, row = (int)block % p->row_blocks * ROWS;
        const bool has_rows = row < rows_of(p, head / (p->heads_kv * p->group)).count;
#pragma unroll 8
        for (uint32_t n = lane; has_rows && n < BLOCK_ELEMENTS / 4; n += 32) sum[n] = make_float4(0, 0, 0, 0);
        __threadfence();
        __syncwarp();
        if (lane == 0) semaphore_post(p->heads_cleared + block / blocks);
    }
}

/* One thread waits until the sums of a tile's heads are clear, before it has the copy engine add to them. */
INLINE void wait_for_cleared(const struct sm90_backward_params *p, const struct tile *t) {
    semaphore_wait(p->heads_cleared + t->batch * p->heads_kv + t->head_kv, blocks_of_head(p));
    fence_proxy_async_global();
}

#endif
