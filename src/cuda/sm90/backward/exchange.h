/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.h: what the two CTAs of a pair do for each other in backward_pair.cu, which includes it after struct shared. Each
 * CTA has 64 keys of the tile and computes half of dQ's columns over all 128 keys. For that it needs the other's K, once,
 * and the other's dS, for every block of rows: dS is copied through distributed shared memory. With a fixed dQ order, two
 * threads of each CTA wait for and post the semaphores, so that the consumers only see mbarriers. */
#ifndef STROBE_CUDA_SM90_BACKWARD_EXCHANGE_H
#define STROBE_CUDA_SM90_BACKWARD_EXCHANGE_H

#include "cuda/ptx/cluster.h"
#include "cuda/ptx/semaphore.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/backward/dq_sums.h"

/* The warp is done with what both CTAs wait for: it arrives ARRIVALS times at the barrier of each. */
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

/* One thread: loads the other CTA's keys once, and copies dS of every block into the other CTA's shared memory. */
INLINE void exchange(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, bool in_order) {
    const int rank = cluster_rank(), other = rank ^ 1, first = rank * GROUPS,
              slabs = SLABS - first < GROUPS ? SLABS - first : GROUPS;
    const uint32_t blocks = HAS_MASKS ? UINT32_MAX : blocks_of(p, t);
    bool last = false;
    /* Consumers wait for other_full before they add to dQ: it completes after dQ's sums are clear. */
    if (!in_order) wait_for_cleared(p, t);
    mbarrier_expect(&s->other_full, (uint32_t)slabs * K_SLAB);
    for (int slab = 0; slab < slabs; ++slab)
        tma_load_4d(s->k_other + slab * K_SLAB, &p->k, &s->other_full, (first + slab) * 64,
                    t->in.keys.first + t->key + (other - rank) * KEYS, t->head_keys, t->in.keys.batch, TMA_EVICT_FIRST);
#pragma unroll 1
    for (uint32_t count = 0; count < blocks && !last; ++count) {
        const uint32_t stage = stage_of(count);
        mbarrier_wait(&s->ds_made[stage], full_parity(count));
        if (HAS_MASKS) last = s->note[count % NOTES].block & NOTE_LAST;
        mbarrier_expect(&s->ds_full[stage], DS_BYTES);
        bulk_copy_to_cta(cluster_address(s->ds[stage][1], other), s->ds[stage][0], DS_BYTES,
                         cluster_address(&s->ds_full[stage], other));
    }
}

/* ---- dQ order: tiles add to a block of rows in the order of their numbers, so a tile only waits for tiles whose CTAs have
 * started before. */

/* Goes to the first block of rows in the tile's walk with a fixed dQ order; and to the next one, or returns false. */
INLINE void start_order(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    at->head = 0, at->m = t->start_block;
    if (HAS_MASKS) (void)find_first(p, t, at);
}

INLINE bool go_on_in_order(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    if (HAS_MASKS) return find_next(p, t, at);
    at->m += t->step;
    if (at->m >= t->first_block && at->m < t->end_block) return true;
    at->m = t->start_block;
    return ++at->head < p->group;
}

INLINE uint32_t *dq_semaphore_at(const struct sm90_backward_params *p, const struct tile *t, const struct search *at) {
    const int block = ((t->batch * p->heads_kv + t->head_kv) * p->group + at->head) * p->row_blocks + at->m;
    return p->dq_semaphores + (int64_t)block * DQ_TILES + cluster_rank();
}

/* One thread, where there are masks the first one of a warp that counts, waits at every block of rows and one block ahead of
 * the consumers, until all tiles that come first in the dQ order have added. */
INLINE void dq_order_waiter(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    struct search at;
    struct order_ahead ahead;
    bool more = true;
    start_order(p, t, &at);
    if (HAS_MASKS) look_ahead(p, t, at.head, at.m, &ahead);
#pragma unroll 1
    for (uint32_t count = 0; more; ++count) {
        const uint32_t *semaphore = dq_semaphore_at(p, t, &at);
        const int order = HAS_MASKS ? dq_order_at(p, t, at.head, at.m, &ahead) : order_of_adding(p, t, at.m);
        more = go_on_in_order(p, t, &at);
        if (HAS_MASKS && more) look_ahead(p, t, at.head, at.m, &ahead);
        if (threadIdx.x % LANES == 0) {
            semaphore_wait(semaphore, (uint32_t)order);
            if (count > 0) mbarrier_wait(&s->added_seen, (count - 1) % 2);
            s->is_first = order == 0;
            mbarrier_arrive(&s->may_add);
        }
        if (HAS_MASKS) __syncwarp();
    }
}

/* Another thread posts the semaphore for the next tile when both consumers have added, if others wait for this one; the
 * fence that makes their sums visible takes no time of theirs. `added_seen`: the waiter lets block n be added only when this
 * thread has seen that block n - 1 was, since a barrier's parity tells a phase from the next one, but not from the next but
 * one. */
INLINE void dq_order_poster(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    struct search at;
    uint32_t count = 0;
    start_order(p, t, &at);
#pragma unroll 1
    do {
        mbarrier_wait(&s->added, count % 2);
        mbarrier_arrive(&s->added_seen);
        if (!p->first_alone || dq_order_of(p, t, at.m) == 0) semaphore_post(dq_semaphore_at(p, t, &at));
        ++count;
    } while (go_on_in_order(p, t, &at));
}

/* Which 64 of dQ's columns a consumer computes. With 192 columns one consumer of the pair has none: it computes a product
 * that is not looked at. Uniform. */
INLINE int part_of_dq(int group) { return uniform(cluster_rank()) * GROUPS + group; }

/* Issues dQ = dS K over the keys of both CTAs, for the columns of `part`. */
INLINE void issue_dq_part(float (&dq)[32], const struct shared *s, int part, uint32_t stage) {
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

/* The block of rows that a consumer is at, counted over all query heads. */
INLINE int block_of(const struct sm90_backward_params *p, const struct tile *t, const struct progress *at) {
    return ((t->batch * p->heads_kv + t->head_kv + 1) * p->group - at->heads) * p->row_blocks + at->row / ROWS;
}

/* Adds dQ of the tile's `count`th block to the fp32 sums, in the order of a thread's registers, four at a time. With a fixed
 * order the first tile stores it: nobody clears the sums then. */
INLINE void add_dq_part(const struct sm90_backward_params *p, struct shared *shared, int part, const float (&dq)[32],
                        int block, uint32_t count, bool in_order) {
    const bool has_part = DQ_TILES % GROUPS == 0 || part < DQ_TILES;
    float *sum = p->dq_sum + ((int64_t)block * DQ_TILES + part) * DQ_TILE + (int)threadIdx.x % 128 * 4;
    if (!in_order) {
#pragma unroll
        for (int v = 0; has_part && v < 32; v += 4) red_add_4(sum + v * 128, dq[v], dq[v + 1], dq[v + 2], dq[v + 3]);
        return;
    }
    mbarrier_wait(&shared->may_add, count % 2);
    const uint32_t stores = shared->is_first;
#pragma unroll
    for (int v = 0; has_part && v < 32; v += 4)
        red_add_or_store_4(sum + v * 128, dq[v], dq[v + 1], dq[v + 2], dq[v + 3], stores);
    release(&shared->added);
}

/* dQ of the tile's last block, which no later block carries with it. */
INLINE void last_dq_part(const struct sm90_backward_params *p, struct shared *shared, int part, int block, uint32_t count,
                         bool in_order) {
    float dq[32];
    mbarrier_wait(&shared->ds_full[stage_of(count)], full_parity(count));
    issue_dq_part(dq, shared, part, stage_of(count));
    wgmma_wait(0);
    add_dq_part(p, shared, part, dq, block, count, in_order);
}

#endif
