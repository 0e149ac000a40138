/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.h (fp8): one thread copies Q, K and V of a CTA's tiles, and loads the scales of K and V. Included by the FP8 kernels
 * alone, after their -D constants. */
#ifndef STROBE_CUDA_SM90_FP8_LOAD_H
#define STROBE_CUDA_SM90_FP8_LOAD_H

#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/fp8/scales.h"

/* Where slots of Q are fewer than two tiles have, a tile's Q finds room when the tile before ends; K and V of its first
 * block are copied before. */
enum { QUERIES_LATER = Q_SLOTS < 2 * GROUPS };

INLINE void load_keys(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                      int block) {
    const uint32_t stage = stage_of(count);
    load_block(s->k[stage], &p->k, &s->k_full[stage], KV_SLAB, t->first_key + block * KEYS, t->kv_head,
               p->cu_seqlens_k ? 0 : t->batch, TMA_EVICT_LAST);
}

INLINE void load_values(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                        int block) {
    const uint32_t stage = v_stage_of(count);
    load_block(s->v[stage], &p->v, &s->v_full[stage], KV_SLAB, t->first_key + block * KEYS, t->kv_head,
               p->cu_seqlens_k ? 0 : t->batch, TMA_EVICT_LAST);
}

/* Copies a tile: wait for room, expect the bytes, copy. Blocks run from right to left. `count`: blocks before this tile;
 * `piece`: pieces of Q before it. The tile's end is told when TAKE_AHEAD blocks are left. Returns the pieces after it. */
INLINE uint32_t load_tile_fp8(const struct sm90_forward_params *p, struct shared *s, uint32_t tiles, uint32_t count,
                              uint32_t piece, struct tracer *tracer) {
    const struct tile *t = &s->tile[slot_of(tiles)];
    const int blocks = t->end_block - t->first_block, tells = blocks > TAKE_AHEAD ? blocks - TAKE_AHEAD : 0;
    struct scale_walk walk = scales_of_tile(p, t);
    float2 scales = next_scales(p, &walk); /* loaded a block ahead */
    if (!QUERIES_LATER) piece = load_queries(p, s, t, piece, tracer, tiles);
#pragma unroll 1
    for (int n = 0; n < blocks + V_BEHIND; ++n, ++count) {
        if (n < blocks) {
            trace(tracer, STROBE_TRACE_WAIT_ROOM, count);
            mbarrier_wait(&s->k_empty[stage_of(count)], empty_parity(count));
            s->scales[stage_of(count)] = scales; /* seen by those who wait for K */
            if (n + 1 < blocks) scales = next_scales(p, &walk);
            trace(tracer, STROBE_TRACE_LOAD_K, count);
            load_keys(p, s, t, count, t->end_block - 1 - n);
            if (n == tells) mbarrier_arrive(&s->tile_ends[slot_of(tiles)]);
        }
        if (n >= V_BEHIND) {
            trace(tracer, STROBE_TRACE_WAIT_ROOM, count - V_BEHIND);
            mbarrier_wait(&s->v_empty[v_stage_of(count - V_BEHIND)], v_empty_parity(count - V_BEHIND));
            trace(tracer, STROBE_TRACE_LOAD_V, count - V_BEHIND);
            load_values(p, s, t, count - V_BEHIND, t->end_block - 1 - n + V_BEHIND);
        }
        if (QUERIES_LATER && n == 0) piece = load_queries(p, s, t, piece, tracer, tiles);
    }
    return piece;
}

/* One thread: Q, K and V, tile after tile. */
INLINE void producer_qkv(const struct sm90_forward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0, piece = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        piece = load_tile_fp8(p, s, tiles, count, piece, &tracer);
        count += t->end_block - t->first_block;
        mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
}

#endif
