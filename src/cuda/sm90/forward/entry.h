/* SPDX-License-Identifier: BSD-3-Clause
 *
 * entry.h: where a kernel of forward.cu or plain.cu begins: barriers, then each warp's role. Included by the text alone,
 * behind its consumer(). */
#ifndef STROBE_CUDA_SM90_FORWARD_ENTRY_H
#define STROBE_CUDA_SM90_FORWARD_ENTRY_H

#include "cuda/ptx/dependent.h"
#include "cuda/sm90/forward/bias_tile.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/pages.h"

static_assert(sizeof(struct shared) <=
                  sizeof(shared::q) + sizeof(shared::k) + sizeof(shared::v) + sizeof(shared::bias) + 1024,
              "host.c asks for so much behind the stages");

#if defined(CTA_PAIRS)
#define CLUSTER_DIMS(ctas) __cluster_dims__(ctas, 1, 1)
#else
#define CLUSTER_DIMS(ctas)
#endif

/* All threads of both CTAs, as soon as copies to the other and arrivals there may begin, and when all of them have come. */
INLINE void sync_pair(void) {
#if defined(CTA_PAIRS)
    __syncwarp();
    cluster_barrier();
#endif
}

extern "C" __global__ void CLUSTER_DIMS(PAIR) __launch_bounds__(THREADS, CTAS)
    KERNEL(const __grid_constant__ struct sm90_forward_params p) {
    extern __shared__ unsigned char memory[];
    struct shared *shared = (struct shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v);
        for (int slot = 0; slot < Q_SLOTS; ++slot)
            mbarrier_init(&shared->q_full[slot], 1), mbarrier_init(&shared->q_empty[slot], 4 * ARRIVALS);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared->k_full[stage], 1), mbarrier_init(&shared->v_full[stage], 1);
            mbarrier_init(&shared->k_empty[stage], PAIR * 4 * GROUPS * ARRIVALS);
            mbarrier_init(&shared->v_empty[stage], PAIR * 4 * GROUPS * ARRIVALS);
        }
        for (int slot = 0; slot < TILES; ++slot) {
            mbarrier_init(&shared->tile_full[slot], 1), mbarrier_init(&shared->tile_ends[slot], 1);
            mbarrier_init(&shared->tile_empty[slot], (4 * GROUPS + PRODUCER_WARPS) * ARRIVALS + PRODUCER_THREADS);
        }
        for (int i = 0; i < BIAS_STAGES * GROUPS; ++i)
            mbarrier_init(&shared->bias_full[0][i], 1), mbarrier_init(&shared->bias_empty[0][i], 4 * ARRIVALS);
        if (HAS_PAGES) mbarrier_init(&shared->v_arrived, 1);
        for (int warp = 0; warp < 4 * GROUPS; ++warp) shared->chain[warp] = -1;
#if defined(RELAYS_TILES)
        find_relay(&p, &shared->relay);
#endif
        mbarrier_init_fence();
    }
    __syncthreads();
    sync_pair();
    if (HAS_MASKS) wait_for_previous(); /* visible.cu */
    if (HAS_PARTS) let_next_start();    /* merge.cu, which waits for all CTAs to end */
    if (threadIdx.x == 64) trace_moment(&p, true);
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (!HAS_PAGES && threadIdx.x == 0) producer_kv(&p, shared);
        if (threadIdx.x == 64) producer_q(&p, shared);
        if (threadIdx.x == 96) open_tile_counter(&p);
        if (HAS_BIAS_TILES && threadIdx.x == 96) producer_bias(&p, shared);
        if (HAS_PAGES && threadIdx.x / 32 == 0) producer_pages(&p, shared, false);
        if (threadIdx.x / 32 == 1) scheduler(&p, shared);
        if (threadIdx.x == 32) trace_moment(&p, false);
        if (HAS_PAGES && threadIdx.x >= 96) producer_pages(&p, shared, true);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
    sync_pair();
}

#endif
