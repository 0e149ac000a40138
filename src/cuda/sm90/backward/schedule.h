/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which tiles a persistent CTA of backward.cu works on, one after the other, and the producer, a thread that
 * describes and copies them ahead of the consumers: the first copies of a tile run under the last products of the one
 * before.
 *
 * Scheduling is dynamic, since tiles differ in length under a mask: a CTA's first tile is that of its number, and it takes
 * the next ones from a tile counter, which prepare.h has cleared. With a fixed dQ order a CTA waits for tiles of smaller
 * number. Then it takes its first tile from the counter too, and works on its tiles in ascending order: the smallest tile
 * that is not done waits for no other, and so there is no deadlock. Included by backward.cu alone, after struct shared. */
#ifndef STROBE_CUDA_SM90_BACKWARD_SCHEDULE_H
#define STROBE_CUDA_SM90_BACKWARD_SCHEDULE_H

#include "cuda/sm90/backward/steps.h"

enum { NO_TILE = -1 };

/* Every role counts the CTA's tiles; the count tells the slot of the description and its barrier's parity. */
INLINE uint32_t tile_slot(uint32_t tiles) { return tiles % TILES; }
INLINE uint32_t tile_parity(uint32_t tiles) { return tiles / TILES % 2; }

INLINE bool is_past_last(const struct tile *t) { return t->key == NO_TILE; }
INLINE bool has_blocks(const struct tile *t) { return t->end_block > t->first_block; }

/* Whether first tiles come from the counter too. With a fixed dQ order they must: a CTA that has not started, because
 * another grid occupies its multiprocessor, must not own a tile that others wait for. Without rows nothing waits, and
 * prepare, whose CTAs have a block of rows each, has not run to clear the counter. */
INLINE bool first_is_dynamic(const struct sm90_backward_params *p) { return p->dq_semaphores && p->row_blocks > 0; }

/* Takes the next tile from the counter; returns a number past the last tile if there is none. */
INLINE int take_tile(const struct sm90_backward_params *p) {
    const uint32_t first = first_is_dynamic(p) ? 0 : gridDim.x, left = (uint32_t)p->tiles - first;
    const uint32_t taken = atomicAdd(p->tile_counter, 1u);
    return taken < left ? (int)(first + taken) : p->tiles;
}

/* Describes the CTA's `tiles`th tile in its slot, once all roles are done with the tile that was there. */
INLINE const struct tile *describe_tile(const struct sm90_backward_params *p, struct shared *s, uint32_t tiles, int number) {
    struct tile *t = &s->tile[tile_slot(tiles)];
    mbarrier_wait(&s->tile_empty[tile_slot(tiles)], tile_parity(tiles) ^ 1);
    const bool is_there = number < all_tiles(p);
    if (is_there)
        *t = tile_of(p, number);
    else
        t->key = NO_TILE;
    struct search search;
    if (HAS_MASKS && is_there && !find_first(p, t, &search)) t->end_block = t->first_block;
    mbarrier_arrive(&s->tile_full[tile_slot(tiles)]);
    return t;
}

/* Copies Q with lse and dO with delta of a tile's blocks, and its K and V. The first blocks of rows are copied while
 * consumers are at the tile before. K and V have one buffer each, which is free when consumers have read those of the tile
 * before; until then they are prefetched to the L2 cache. `filled`: tiles that had K and V before. */
INLINE uint32_t load_blocks(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                            uint32_t filled, struct tracer *tracer) {
    const struct walk walk = walk_of(t);
    const uint32_t first = count;
    prefetch_keys(&p->k, t), prefetch_keys(&p->v, t);
#pragma unroll 1
    for (int head = t->head_kv * p->group; head < (t->head_kv + 1) * p->group; ++head) {
        const int64_t statistics = statistic_at(p, t->batch, head, 0);
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m = next_block(p, &walk, m), ++count) {
            const struct block block = block_at(head, m, statistics);
            load_q(p, s, t, block, count, tracer);
            load_dout(p, s, t, block, count, tracer);
            if (count > first) continue;
            trace(tracer, STROBE_TRACE_LOAD_V, count);
            mbarrier_wait(&s->v_empty, filled % 2 ^ 1);
            load_keys(s->v, &p->v, &s->v_full, t);
            trace(tracer, STROBE_TRACE_LOAD_K, count);
            mbarrier_wait(&s->k_empty, filled % 2 ^ 1);
            load_keys(s->k, &p->k, &s->k_full, t);
        }
    }
    return count;
}

/* The same where there are masks: visible blocks alone. */
INLINE uint32_t load_visible(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                             uint32_t filled, struct tracer *tracer) {
    struct search search;
    const uint32_t first = count;
    bool last;
    find_first(p, t, &search);
    prefetch_keys(&p->k, t), prefetch_keys(&p->v, t);
#pragma unroll 1
    do {
        const struct note note = take_note(p, t, &search);
        last = load_noted(p, s, t, &note, count, tracer);
        if (count++ > first) continue;
        mbarrier_wait(&s->v_empty, filled % 2 ^ 1);
        load_keys(s->v, &p->v, &s->v_full, t);
        mbarrier_wait(&s->k_empty, filled % 2 ^ 1);
        load_keys(s->k, &p->k, &s->k_full, t);
    } while (!last);
    return count;
}

/* One thread: takes tile after tile, describes it for all other roles, and copies it. */
INLINE void producer(const struct sm90_backward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0, filled = 0;
    int number = first_is_dynamic(p) ? take_tile(p) : (int)blockIdx.x;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        trace(&tracer, STROBE_TRACE_DESCRIBE, tiles);
        const struct tile *t = describe_tile(p, s, tiles, number);
        if (is_past_last(t)) break;
        if (has_blocks(t))
            count = HAS_MASKS ? load_visible(p, s, t, count, filled++, &tracer)
                              : load_blocks(p, s, t, count, filled++, &tracer);
        number = take_tile(p);
    }
    trace(&tracer, STROBE_TRACE_END, count);
}

#endif
