/* SPDX-License-Identifier: BSD-3-Clause
 *
 * entry.h: where an FP8 kernel begins: barriers, then each warp's role. Included by a kernel's text alone, behind its
 * consumer(). */
#ifndef STROBE_CUDA_SM90_FP8_ENTRY_H
#define STROBE_CUDA_SM90_FP8_ENTRY_H

INLINE void init_barriers(struct shared *s) {
    for (int slot = 0; slot < Q_SLOTS; ++slot)
        mbarrier_init(&s->q_full[slot], 1), mbarrier_init(&s->q_empty[slot], 4 * ARRIVALS);
    for (int stage = 0; stage < STAGES; ++stage)
        mbarrier_init(&s->k_full[stage], 1), mbarrier_init(&s->k_empty[stage], 4 * GROUPS * ARRIVALS);
    for (int stage = 0; stage < V_STAGES; ++stage) {
        mbarrier_init(&s->v_full[stage], 1), mbarrier_init(&s->v_empty[stage], 4 * GROUPS * ARRIVALS);
        mbarrier_init(&s->vt_full[stage], TRANSPOSERS * ARRIVALS);
    }
    for (int slot = 0; slot < TILES; ++slot) {
        mbarrier_init(&s->tile_full[slot], 1), mbarrier_init(&s->tile_ends[slot], 1);
        mbarrier_init(&s->rows_full[slot], ARRIVALS);
        mbarrier_init(&s->tile_empty[slot], (4 * GROUPS + TRANSPOSERS) * ARRIVALS + 1);
    }
    for (int warp = 0; warp < 4 * GROUPS; ++warp) s->chain[warp] = -1;
    mbarrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct sm90_forward_params p) {
    extern __shared__ unsigned char memory[];
    struct shared *shared = (struct shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v);
        init_barriers(shared);
    }
    write_ones(shared);
    __syncthreads();
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) open_tile_counter(&p), producer_qkv(&p, shared);
        if (threadIdx.x / 32 == 1) scheduler(&p, shared);
        if (threadIdx.x / 32 >= 2) transposer(&p, shared, (int)threadIdx.x / 32 - 2);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}

#endif
