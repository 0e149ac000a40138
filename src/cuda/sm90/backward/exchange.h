/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.h: what the two CTAs of a pair do for each other in backward/backward_pair.cu, which includes it after struct
 * shared: dS of one's keys goes to the other, so that each has half of dQ's columns over all keys; and the turns in which dQ
 * is added in a fixed order. */
#ifndef STROBE_CUDA_SM90_BACKWARD_PAIR_H
#define STROBE_CUDA_SM90_BACKWARD_PAIR_H

#include "cuda/ptx/cluster.h"
#include "cuda/ptx/turn.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/backward/dq_sums.h"

/* The warp is done with what the writers of both CTAs wait for: ARRIVALS at each. */
INLINE void release_both(uint64_t *barrier) {
    __syncwarp();
    const int lane = (int)threadIdx.x % 32;
    if (lane >= CTAS * ARRIVALS) return;
    mbarrier_arrive_at(cluster_address(barrier, lane % CTAS));
    if (ARRIVALS == 32) mbarrier_arrive_at(cluster_address(barrier, (lane + 1) % CTAS));
}

INLINE uint32_t blocks_of(const struct sm90_backward_params *p, const struct tile *t) {
    return (uint32_t)((t->end_block - t->first_block) * p->group);
}

/* One thread: the other CTA's keys once, and dS of every block to it. */
INLINE void courier(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    const int rank = cluster_rank(), other = rank ^ 1, first = rank * GROUPS,
              slabs = SLABS - first < GROUPS ? SLABS - first : GROUPS;
    const uint32_t blocks = blocks_of(p, t);
    if (p->clears_itself) wait_for_cleared(p, t); /* before it arrives where who adds to dQ has waited */
    mbarrier_expect(&s->other_full, (uint32_t)slabs * K_SLAB);
    for (int slab = 0; slab < slabs; ++slab)
        tma_load_4d(s->k_other + slab * K_SLAB, &p->k, &s->other_full, (first + slab) * 64,
                    t->in.keys.first + t->key + (other - rank) * KEYS, t->head_kv, t->in.keys.batch, TMA_EVICT_FIRST);
#pragma unroll 1
    for (uint32_t count = 0; count < blocks; ++count) {
        const uint32_t stage = stage_of(count);
        mbarrier_wait(&s->ds_made[stage], full_parity(count));
        mbarrier_expect(&s->ds_full[stage], DS_BYTES);
        bulk_send(cluster_address(s->ds[stage][1], other), s->ds[stage][0], DS_BYTES,
                  cluster_address(&s->ds_full[stage], other));
    }
}

/* With turns, where the tile's are counted at its `count`th block of rows: m of a query head. */
INLINE uint32_t *turn_at(const struct sm90_backward_params *p, const struct tile *t, uint32_t count, int *m) {
    const int blocks = t->end_block - t->first_block, head = (int)count / blocks;
    *m = t->end_block - 1 - ((int)count - head * blocks);
    const int block = ((t->batch * p->heads_kv + t->head_kv) * p->group + head) * p->row_blocks + *m;
    return p->turns + (int64_t)block * DQ_TILES + cluster_rank();
}

/* One thread waits for the tile's turn at every block of rows, one ahead of the groups. Tiles add to a block of rows from
 * the first to the last that it sees, and all walk from the last rows to the first, so that nobody waits for a CTA that
 * starts after it. */
INLINE void turn_taker(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    const uint32_t blocks = blocks_of(p, t);
#pragma unroll 1
    for (uint32_t count = 0; count < blocks; ++count) {
        int m;
        const uint32_t *turn = turn_at(p, t, count, &m);
        turn_wait(turn, (uint32_t)turn_of(t, m));
        if (count > 0) mbarrier_wait(&s->noted, (count - 1) % 2);
        mbarrier_arrive(&s->turn);
    }
}

/* Another gives it to the next tile when both groups have added, whose sums it makes sure of while they go on. */
INLINE void turn_giver(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    const uint32_t blocks = blocks_of(p, t);
#pragma unroll 1
    for (uint32_t count = 0; count < blocks; ++count) {
        int m;
        mbarrier_wait(&s->added, count % 2);
        mbarrier_arrive(&s->noted);
        __threadfence();
        turn_give(turn_at(p, t, count, &m));
    }
}

/* A group's part of dQ: which 64 columns. Of three times 64 there are none for one of the pair's groups, which then works
 * out what nobody looks at. Uniform. */
INLINE int part_of_dq(int group) { return uniform(cluster_rank()) * GROUPS + group; }

/* dQ = dS K over the keys of both CTAs. */
INLINE void issue_part(float (&dq)[32], const struct shared *s, int part, uint32_t stage) {
    const int tile = unforeseen(part);
    const uint64_t ds = wgmma_operand(shared_address(s->ds), 0) + stage * (CTAS * DS_BYTES / 16);
    const uint64_t own = wgmma_operand(shared_address(s->k), K_SLAB) + tile * (K_SLAB / 16);
    const uint64_t other = wgmma_operand(shared_address(s->k_other), K_SLAB) + tile % GROUPS * (K_SLAB / 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < TILE_KEYS / 16; ++step) {
        const uint64_t k = (step < KEYS / 16 ? own : other) + step % (KEYS / 16) * (16 * ROW_BYTES / 16);
        if (step == 0)
            wgmma_st_64_first(dq, ds, k);
        else
            wgmma_st_64(dq, ds + step / 4 * (DS_BYTES / 16) + step % 4 * 2, k);
    }
    wgmma_commit();
}

/* Which block of rows, of all query heads. */
INLINE int block_of(const struct sm90_backward_params *p, const struct tile *t, const struct progress *at) {
    return ((t->batch * p->heads_kv + t->head_kv + 1) * p->group - at->heads) * p->row_blocks + at->row / ROWS;
}

/* dQ of the tile's `count`th block to its sums, a thread's registers as they are, four at a time. */
INLINE void add_part(const struct sm90_backward_params *p, struct shared *shared, int part, const float (&dq)[32], int block,
                     uint32_t count) {
    if (p->turns) mbarrier_wait(&shared->turn, count % 2);
    if (DQ_TILES % GROUPS == 0 || part < DQ_TILES) {
        float *sum = p->dq_sum + ((int64_t)block * DQ_TILES + part) * DQ_TILE + (int)threadIdx.x % 128 * 4;
#pragma unroll
        for (int v = 0; v < 32; v += 4) red_add_4(sum + v * 128, dq[v], dq[v + 1], dq[v + 2], dq[v + 3]);
    }
    if (p->turns) release(&shared->added);
}

/* The last block's dQ. */
INLINE void last_part(const struct sm90_backward_params *p, struct shared *shared, int part, int block, uint32_t count) {
    float dq[32];
    mbarrier_wait(&shared->ds_full[stage_of(count)], full_parity(count));
    issue_part(dq, shared, part, stage_of(count));
    wgmma_wait(0);
    add_part(p, shared, part, dq, block, count);
}

#endif
