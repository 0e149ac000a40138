/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which tiles a CTA of backward.cu works on, one after the other, and the thread that chooses,
 * describes and copies them, ahead of the others: the first copies of a tile run under the last products of the one before.
 * A CTA's first tile is that of its number, the next ones are drawn from a counter, which backward/prepare.h has cleared,
 * since tiles differ in length under a mask. Where they take turns all are drawn, in order, and a CTA does its own in order,
 * so that the first of all that are not done waits for no other. Included by backward.cu alone, after struct shared. */
#ifndef STROBE_CUDA_SM90_BACKWARD_SCHEDULE_H
#define STROBE_CUDA_SM90_BACKWARD_SCHEDULE_H

#include "cuda/sm90/backward/steps.h"

enum { NO_TILE = -1 };

/* Tiles are counted by all, from the CTA's first. */
INLINE uint32_t tile_slot(uint32_t tiles) { return tiles % TILES; }
INLINE uint32_t tile_parity(uint32_t tiles) { return tiles / TILES % 2; }

INLINE bool is_past_last(const struct tile *t) { return t->key == NO_TILE; }
INLINE bool has_blocks(const struct tile *t) { return t->end_block > t->first_block; }

/* CTAs that take turns draw their first tiles too: one that has not started, since another grid has its multiprocessor, must
 * not have a tile that others wait for. Without rows there is nothing to wait for, and nobody has cleared the counter. */
INLINE bool all_are_drawn(const struct sm90_backward_params *p) { return p->turns && p->row_blocks > 0; }

/* A number past the last tile, if there is none. */
INLINE int next_tile(const struct sm90_backward_params *p) {
    const uint32_t first = all_are_drawn(p) ? 0 : gridDim.x, left = (uint32_t)p->tiles - first;
    const uint32_t drawn = atomicAdd(p->next_tile, 1u);
    return drawn < left ? (int)(first + drawn) : p->tiles;
}

/* The CTA's `tiles`th tile to where all find it, when they are done with what was there. */
INLINE const struct tile *describe_tile(const struct sm90_backward_params *p, struct shared *s, uint32_t tiles, int number) {
    struct tile *t = &s->tile[tile_slot(tiles)];
    mbarrier_wait(&s->tile_empty[tile_slot(tiles)], tile_parity(tiles) ^ 1);
    if (number < p->tiles)
        *t = tile_of(p, number);
    else
        t->key = NO_TILE;
    mbarrier_arrive(&s->tile_full[tile_slot(tiles)]);
    return t;
}

/* Q with lse and dO with D of a tile's blocks. The first of them are copied while consumers are at the tile before; K and V,
 * of which there is one each, when these have read that tile's, so they are sent to the L2 cache first. `filled`: tiles that
 * had K and V before. */
INLINE uint32_t load_blocks(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                            uint32_t filled, struct tracer *tracer) {
    const struct walk walk = walk_of(p, t);
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

/* One thread: tile after tile, chosen, described for all others, and copied. */
INLINE void producer(const struct sm90_backward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0, filled = 0;
    int number = all_are_drawn(p) ? next_tile(p) : (int)blockIdx.x;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        trace(&tracer, STROBE_TRACE_DESCRIBE, tiles);
        const struct tile *t = describe_tile(p, s, tiles, number);
        if (is_past_last(t)) break;
        if (has_blocks(t)) count = load_blocks(p, s, t, count, filled++, &tracer);
        number = next_tile(p);
    }
    trace(&tracer, STROBE_TRACE_END, count);
}

#endif
