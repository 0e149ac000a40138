/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dq_writer.h: the roles of backward.cu that add dQ to its fp32 sums: a thread for each consumer group takes the group's
 * tiles of dQ from shared memory; with a fixed dQ order three threads may share those of both. Included by
 * backward.cu alone, after struct shared. */
#ifndef STROBE_CUDA_SM90_BACKWARD_DQ_WRITER_H
#define STROBE_CUDA_SM90_BACKWARD_DQ_WRITER_H

#include "cuda/sm90/backward/schedule.h"

/* A consumer hands its tile of dQ to its writer, in the order of a thread's registers, four at a time. */
INLINE void hand_dq_to_writer(struct shared *s, const float (&dq)[DQ_WORDS], int group, uint32_t count) {
    float *staging = s->dq[group] + (int)threadIdx.x % 128 * 4;
    mbarrier_wait(&s->dq_empty[group], count % 2 ^ 1);
#pragma unroll
    for (int v = 0; v < DQ_WORDS; v += 4)
        *(float4 *)(staging + v * 128) = make_float4(dq[v], dq[v + 1], dq[v + 2], dq[v + 3]);
    fence_proxy_async();
    release(&s->dq_full[group]);
}

/* One thread for each consumer group adds the group's tiles of dQ to the sums of their blocks, and lets the consumers make
 * the next tile when this one has been read. `tile` counts a group's tiles of all blocks. */
INLINE void add_block(const struct sm90_backward_params *p, struct shared *s, int group, uint32_t tile, bool stores,
                      uint32_t count, struct tracer *tracer) {
    trace(tracer, STROBE_TRACE_ADD_DQ, count);
    bulk_add(p->dq_sum + (int64_t)tile * DQ_TILE, s->dq[group], DQ_WORDS * 128 * sizeof(float), stores);
    bulk_wait_read();
    mbarrier_arrive(&s->dq_empty[group]);
}

/* ---- With a fixed dQ order tiles of smaller number, which were taken before, add to a block of rows first; the first of
 * all stores its dQ, so that nobody has to clear the sums. */

/* Adds a tile after `order` others. `added`: tiles that are known to have been added. */
INLINE void add_block_in_order(const struct sm90_backward_params *p, struct shared *s, int group, uint32_t tile, int order,
                               uint32_t added, uint32_t count, struct tracer *tracer) {
    trace(tracer, STROBE_TRACE_WAIT_DQ_ORDER, count);
    while (added != (uint32_t)order) added = semaphore_now(p->dq_semaphores + tile);
    trace(tracer, STROBE_TRACE_WAIT_DQ, count);
    mbarrier_wait(&s->dq_full[group], count % 2);
    add_block(p, s, group, tile, order == 0, count, tracer);
}

/* The next tile may add when this one's sums are in memory. Until they are takes as long as an answer of the next block's
 * semaphore, which is returned: to wait for one after the other would take longer than the products of a block. */
INLINE uint32_t let_next_tile_add(const struct sm90_backward_params *p, uint32_t tile, uint32_t next_tile, int order) {
    const uint32_t added = semaphore_now(p->dq_semaphores + next_tile);
    if (p->first_alone && order > 0) return added;
    bulk_wait(), semaphore_post(p->dq_semaphores + tile);
    return added;
}

INLINE void wait_for_dq(struct shared *s, int group, uint32_t count, struct tracer *tracer) {
    trace(tracer, STROBE_TRACE_WAIT_DQ, count);
    mbarrier_wait(&s->dq_full[group], count % 2);
}

INLINE uint32_t add_blocks(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group,
                           uint32_t count, struct tracer *tracer) {
    const int64_t heads = (int64_t)t->batch * p->heads_kv * p->group + t->head_kv * p->group;
    const struct walk walk = walk_of(t);
    for (int head = 0; head < p->group; ++head)
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m = next_block(p, &walk, m), ++count) {
            wait_for_dq(s, group, count, tracer);
            add_block(p, s, group, (uint32_t)(((heads + head) * p->row_blocks + m) * GROUPS + group), false, count, tracer);
        }
    return count;
}

/* The same with a fixed dQ order. */
INLINE uint32_t add_blocks_in_order(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group,
                                    uint32_t count, struct tracer *tracer) {
    uint32_t added = UINT32_MAX;
#pragma unroll 1
    for (int head = 0, m = t->start_block; head < p->group;) {
        const uint32_t block = (uint32_t)(((t->batch * p->heads_kv + t->head_kv) * p->group + head) * p->row_blocks + m);
        const uint32_t tile = block * GROUPS + group;
        const int order = order_of_adding(p, t, m);
        add_block_in_order(p, s, group, tile, order, added, count++, tracer);
        m += t->step;
        const bool more = m >= t->first_block && m < t->end_block;
        added = let_next_tile_add(p, tile, more ? tile + t->step * GROUPS : tile, order);
        if (!more) m = t->start_block, ++head, added = UINT32_MAX;
    }
    return count;
}

/* With blocks of 64 rows and a fixed dQ order a writer is busy for longer than a block takes, most of it with making sure of
 * its sums. So three share the work: block n of group g is work number 2 n + g, and goes to the writer of that number modulo
 * three, `work` counting on from tile to tile. Which block a phase of dq_full stands for is only certain when the block
 * before has come: its writer says so by a barrier of dq_came. With 128 rows two writers are faster. */
INLINE void wait_for_next_dq(struct shared *s, int group, uint32_t count, struct tracer *tracer) {
    if (count > 0) mbarrier_wait(&s->dq_came[group][(count - 1) % ORDERED_WRITERS], (count - 1) / ORDERED_WRITERS % 2);
    wait_for_dq(s, group, count, tracer);
    mbarrier_arrive(&s->dq_came[group][count % ORDERED_WRITERS]);
}

/* Where a writer is in a tile: the query head of the group, and the block of rows, counted from the walk's first. */
struct place {
    int head, n;
};

INLINE uint32_t dq_tile_at(const struct sm90_backward_params *p, const struct tile *t, const struct place *at, int group) {
    const uint32_t heads = (uint32_t)((t->batch * p->heads_kv + t->head_kv) * p->group + at->head);
    return (heads * (uint32_t)p->row_blocks + (uint32_t)(t->start_block + t->step * at->n)) * GROUPS + (uint32_t)group;
}

/* first: blocks of all tiles before. Returns the writer's next work. */
INLINE uint32_t add_by_three(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, uint32_t first,
                             uint32_t work, struct tracer *tracer) {
    const int blocks = t->end_block - t->first_block;
    const uint32_t end = (first + (uint32_t)(blocks * p->group)) * GROUPS;
    struct place at = {0, (int)(work / GROUPS - first)};
    uint32_t added = UINT32_MAX;
#pragma unroll 1
    while (work < end) {
        while (at.n >= blocks) at.n -= blocks, ++at.head;
        const int group = (int)(work % GROUPS);
        const uint32_t count = work / GROUPS, tile = dq_tile_at(p, t, &at, group);
        const int order = order_of_adding(p, t, t->start_block + t->step * at.n);
        trace(tracer, STROBE_TRACE_WAIT_DQ_ORDER, count);
        while (added != (uint32_t)order) added = semaphore_now(p->dq_semaphores + tile);
        wait_for_next_dq(s, group, count, tracer);
        add_block(p, s, group, tile, order == 0, count, tracer);
        work += ORDERED_WRITERS, at.n += (int)(work / GROUPS - count);
        const bool more = work < end && at.n < blocks;
        added = let_next_tile_add(p, tile, more ? dq_tile_at(p, t, &at, (int)(work % GROUPS)) : tile, order);
        if (!more) added = UINT32_MAX;
    }
    return work;
}

/* The same where there are masks, for a tile that has blocks: notes say which. */
INLINE uint32_t add_visible(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group,
                            uint32_t count, struct tracer *tracer) {
    const int64_t heads_end = (int64_t)t->batch * p->heads_kv * p->group + (t->head_kv + 1) * p->group;
    bool last;
#pragma unroll 1
    do {
        wait_for_dq(s, group, count, tracer);
        const struct note *note = &s->note[count % NOTES];
        const int64_t block = (heads_end - note->heads) * p->row_blocks + block_of_note(note);
        last = note->block & NOTE_LAST;
        add_block(p, s, group, (uint32_t)(block * GROUPS + group), false, count++, tracer);
    } while (!last);
    return count;
}

/* The same with a fixed dQ order, by a warp, whose first lane adds. The states of which the order of the next block follows
 * are sent for when a block has been read, and looked at before the next one is there. */
INLINE uint32_t add_visible_in_order(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group,
                                     uint32_t count, struct tracer *tracer) {
    const int64_t heads = ((int64_t)t->batch * p->heads_kv + t->head_kv) * p->group;
    const bool adds = threadIdx.x % LANES == 0;
    if (adds) wait_for_dq(s, group, count, tracer); /* its note is there, too */
    __syncwarp();
    int head = p->group - s->note[count % NOTES].heads, m = block_of_note(&s->note[count % NOTES]);
    struct order_ahead ahead;
    look_ahead(p, t, head, m, &ahead);
    uint32_t tile = (uint32_t)(((heads + head) * p->row_blocks + m) * GROUPS + group), added = UINT32_MAX;
    bool last;
#pragma unroll 1
    do {
        const int order = dq_order_at(p, t, head, m, &ahead);
        if (adds) add_block_in_order(p, s, group, tile, order, added, count, tracer);
        __syncwarp();
        const struct note *note = &s->note[count++ % NOTES];
        const uint32_t now = tile;
        last = note->block & NOTE_LAST;
        if (!last) {
            head = note->next_head, m = note->next_m;
            tile = (uint32_t)(((heads + head) * p->row_blocks + m) * GROUPS + group);
            look_ahead(p, t, head, m, &ahead);
        }
        if (adds) added = let_next_tile_add(p, now, tile, order);
    } while (!last);
    return count;
}

/* One thread for each consumer group, with a fixed dQ order one warp where there are masks, and three threads for both
 * groups where there are none: tile after tile. group: the role's number. */
INLINE void dq_writer(const struct sm90_backward_params *p, struct shared *s, int group) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_WRITER + group, threadIdx.x % 32 == 0 && group < GROUPS);
    const bool in_order = HAS_MASKS && p->dq_semaphores;
    uint32_t count = 0, work = (uint32_t)group;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[tile_slot(tiles)];
        mbarrier_wait(&s->tile_full[tile_slot(tiles)], tile_parity(tiles));
        if (is_past_last(t)) break;
        if (has_blocks(t)) {
            if (!p->dq_semaphores) wait_for_cleared(p, t);
            if (BY_THREE && p->dq_semaphores)
                work = add_by_three(p, s, t, count, work, &tracer),
                count += (uint32_t)((t->end_block - t->first_block) * p->group);
            else
                count = in_order           ? add_visible_in_order(p, s, t, group, count, &tracer)
                        : HAS_MASKS        ? add_visible(p, s, t, group, count, &tracer)
                        : p->dq_semaphores ? add_blocks_in_order(p, s, t, group, count, &tracer)
                                           : add_blocks(p, s, t, group, count, &tracer);
        }
        if (in_order) __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&s->tile_empty[tile_slot(tiles)]);
    }
    trace(&tracer, STROBE_TRACE_END, count);
}

#endif
