/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dq_sums.h: dQ's sums are set to 0 by a warp of each CTA of the main kernel that has nothing else to do, beside the
 * products of the others; head after head, and nobody adds before those of his head are there. Blocks of rows are drawn from
 * a counter, so that nobody waits for a CTA that has not started. */
#ifndef STROBE_CUDA_SM90_BACKWARD_SUMS_H
#define STROBE_CUDA_SM90_BACKWARD_SUMS_H

#include "cuda/ptx/turn.h"
#include "cuda/sm90/backward/steps.h"

/* Blocks of rows of all query heads of a K/V head. */
INLINE uint32_t blocks_of_head(const struct sm90_backward_params *p) { return (uint32_t)(p->group * p->row_blocks); }

/* A warp: the next block. */
INLINE uint32_t draw_block(const struct sm90_backward_params *p) {
    uint32_t drawn = 0;
    if (threadIdx.x % 32 == 0) drawn = atomicAdd(p->next_cleared, 1u);
    return __shfl_sync(0xffffffffu, drawn, 0);
}

/* A warp. Of CTAs that have one tile each it clears so many blocks, but goes on until those of its own head have been drawn,
 * for which it waits. */
INLINE void clear_dq(const struct sm90_backward_params *p, uint32_t most, int head) {
    const uint32_t lane = threadIdx.x % 32, blocks = blocks_of_head(p), all = blocks * (uint32_t)(p->heads_kv * p->batch);
    uint32_t block = 0;
    for (uint32_t n = 0; (n < most || block + 1 < (head + 1) * blocks) && (block = draw_block(p)) < all; ++n) {
        float4 *sum = (float4 *)(p->dq_sum + (int64_t)block * BLOCK_ELEMENTS);
#pragma unroll 8
        for (uint32_t n = lane; n < BLOCK_ELEMENTS / 4; n += 32) sum[n] = make_float4(0, 0, 0, 0);
        __threadfence();
        __syncwarp();
        if (lane == 0) turn_give(p->heads_cleared + block / blocks);
    }
}

/* One thread, before it has the copy engine add to the sums of a tile's heads. */
INLINE void wait_for_cleared(const struct sm90_backward_params *p, const struct tile *t) {
    turn_wait(p->heads_cleared + t->batch * p->heads_kv + t->head_kv, blocks_of_head(p));
    fence_proxy_async_global();
}

#endif
