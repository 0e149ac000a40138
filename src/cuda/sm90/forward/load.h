/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.h: the roles of the producer warp group, a warp or a thread of one each: the scheduler describes tiles, one producer
 * copies K and V, one Q. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_LOAD_H
#define STROBE_CUDA_SM90_FORWARD_LOAD_H

#include "cuda/ptx/tma.h"
#include "cuda/sm90/forward/schedule.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/walk.h"
#include "cuda/sm90/trace.h"
#if defined(FP8_INPUTS)
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/fp8/scales.h"
#endif
#if defined(RELAYS_TILES)
#include "cuda/sm90/forward/relay.h"
#endif
#if defined(CTA_PAIRS)
#include "cuda/ptx/cluster.h"
#endif

/* Tiles that a CTA knows at a time. LONG_TILE: blocks of the last one it has taken from which on two are enough: its
 * description and its copies take no longer than that tile, and what one CTA holds no other can do. */
#if defined(LONG_TILE)
#define KNOWN_TILES (p->is_dynamic && last_blocks >= LONG_TILE ? 2 : p->known_tiles)
#else
#define KNOWN_TILES p->known_tiles
#endif

/* One warp describes the CTA's tiles for all others. The first tile is that of the CTA's number, the next ones come from
 * next_tile(). Under a mask a tile is taken from the tile counter as late as its description and its copies allow, since
 * what one CTA holds no other can do. The description NO_TILE behind the last one ends all roles. */
INLINE void scheduler(const struct sm90_forward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_SCHEDULER, threadIdx.x % 32 == 0);
    struct cursor cursor = {0, 0};
    int number = blockIdx.x;
    bool going = true;
#if defined(LONG_TILE)
    int last_blocks = 0;
#endif
#pragma unroll 1
    for (uint32_t told = 0; going; ++told) {
        const uint32_t done = told - KNOWN_TILES;
        trace(&tracer, STROBE_TRACE_WAIT_ROOM, told);
        if (p->is_dynamic && told + 1 >= KNOWN_TILES) mbarrier_wait(&s->tile_ends[slot_of(done + 1)], slot_parity(done + 1));
        if (told >= KNOWN_TILES) mbarrier_wait(&s->tile_empty[slot_of(done)], slot_parity(done));
        trace(&tracer, STROBE_TRACE_DESCRIBE, told);
#if defined(RELAYS_TILES)
        int piece;
        number = relayed_tile(p, &s->relay, (int)told, &piece);
#else
        if (told > 0) number = next_tile(p, number, told);
#endif
        going = describe_tile(p, number, &cursor, &s->tile[slot_of(told)], threadIdx.x % 32 == 0);
#if defined(RELAYS_TILES)
        if (threadIdx.x % 32 == 0) cut_tile(&s->relay, &s->tile[slot_of(told)], slot_of(told), piece);
#endif
#if defined(LONG_TILE)
        last_blocks = __shfl_sync(0xffffffffu, s->tile[slot_of(told)].end_block - s->tile[slot_of(told)].first_block, 0);
#endif
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&s->tile_full[slot_of(told)]);
#if defined(FP8_INPUTS)
        if (going) {
            load_row_scales(p, &s->tile[slot_of(told)], s->row_scale[slot_of(told)]);
            arrive_as_warp(&s->rows_full[slot_of(told)]);
        }
#endif
    }
    close_tile_counter(p, number, has_lengths(p) ? cursor.tiles : p->tiles);
    trace(&tracer, STROBE_TRACE_END, 0);
}

INLINE void load_block(unsigned char *to, const CUtensorMap *map, uint64_t *full, int slab_bytes, int row, int head,
                       int batch, uint64_t policy) {
    mbarrier_expect(full, SLABS * slab_bytes);
#pragma unroll 1
    for (int slab = 0; slab < SLABS; ++slab)
        tma_load_4d(to + slab * slab_bytes, map, full, slab * SLAB_COLUMNS, row, head, batch, policy);
}

/* A block of K or V. With CTA_PAIRS each CTA of a pair copies half of the slabs, to both, and expects all of the bytes; a
 * stage is empty when the consumers of both have given it back, see release_block(). */
INLINE void load_kv_block(unsigned char *to, const CUtensorMap *map, uint64_t *full, int row, int head, int batch) {
#if defined(CTA_PAIRS)
    static_assert(SLABS % PAIR == 0, "each CTA copies as many slabs");
    const int first = cluster_rank() * (SLABS / PAIR);
    mbarrier_expect(full, SLABS * KV_SLAB);
#pragma unroll 1
    for (int slab = first; slab < first + SLABS / PAIR; ++slab)
        tma_load_4d_to_pair(to + slab * KV_SLAB, map, full, slab * SLAB_COLUMNS, row, head, batch, TMA_EVICT_LAST);
#else
    load_block(to, map, full, KV_SLAB, row, head, batch, TMA_EVICT_LAST);
#endif
}

/* Copies K and V of every block of a tile, V one block behind K: wait for room, expect the bytes, copy. Blocks run from
 * right to left. `count`: blocks before this tile; `ends` is told when TAKE_AHEAD blocks are left. */
INLINE void load_tile(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, uint32_t count,
                      uint64_t *ends, struct tracer *tracer) {
    const int kv_head = t->kv_head, first_key = t->first_key, blocks = t->end_block - t->first_block;
    const int tells = blocks > TAKE_AHEAD ? blocks - TAKE_AHEAD : 0;
    const int batch_k = p->cu_seqlens_k ? 0 : t->batch;
    int block = start_of_walk(t), before = block;
#pragma unroll 1
    for (int n = 0; n < blocks + V_BEHIND; ++n, before = block, block = next_of_walk(t, block)) {
        if (n < blocks) {
            const uint32_t stage = stage_of(count + n);
            trace(tracer, STROBE_TRACE_WAIT_ROOM, count + n);
            mbarrier_wait(&s->k_empty[stage], empty_parity(count + n));
            trace(tracer, STROBE_TRACE_LOAD_K, count + n);
            load_kv_block(s->k[stage], &p->k, &s->k_full[stage], first_key + block * KEYS, kv_head, batch_k);
            if (n == tells) mbarrier_arrive(ends);
        }
        if (n >= V_BEHIND) {
            const uint32_t stage = v_stage_of(count + n - V_BEHIND);
            trace(tracer, STROBE_TRACE_WAIT_ROOM, count + n - V_BEHIND);
            mbarrier_wait(&s->v_empty[stage], v_empty_parity(count + n - V_BEHIND));
            trace(tracer, STROBE_TRACE_LOAD_V, count + n - V_BEHIND);
            load_kv_block(s->v[stage], &p->v, &s->v_full[stage], first_key + (V_BEHIND ? before : block) * KEYS, kv_head,
                          batch_k);
        }
    }
}

/* The same where there are masks: visible blocks alone. A tile that sees nothing has one block, whose K and V are whatever
 * lies there: all of it is hidden. Returns how many. */
INLINE uint32_t load_visible(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, uint32_t count) {
    const int batch_k = p->cu_seqlens_k ? 0 : t->batch;
    struct eight_states states = {0, 0, NO_BLOCK};
    uint32_t blocks = 0;
    int now = visible_block(p, t, &states, t->end_block - 1), before = NO_BLOCK;
    bool nothing = now == NO_BLOCK;
    if (nothing) now = t->first_block;
#pragma unroll 1
    for (;; ++blocks) {
        int next = NO_BLOCK;
        if (now != NO_BLOCK) {
            const uint32_t stage = stage_of(count + blocks);
            uint32_t note = nothing ? (uint32_t)now * NOTE_NUMBER | NOTE_NOTHING : note_of(&states, now);
            if (!nothing) next = visible_block(p, t, &states, now - 1);
            if (next == NO_BLOCK) note |= NOTE_LAST;
            mbarrier_wait(&s->k_empty[stage], empty_parity(count + blocks));
            s->note[stage] = note;
            if (nothing)
                mbarrier_arrive(&s->k_full[stage]);
            else
                load_block(s->k[stage], &p->k, &s->k_full[stage], KV_SLAB, t->first_key + now * KEYS, t->kv_head, batch_k,
                           TMA_EVICT_LAST);
        }
        if (before != NO_BLOCK) {
            const uint32_t stage = stage_of(count + blocks - 1);
            mbarrier_wait(&s->v_empty[stage], empty_parity(count + blocks - 1));
            if (nothing)
                mbarrier_arrive(&s->v_full[stage]);
            else
                load_block(s->v[stage], &p->v, &s->v_full[stage], KV_SLAB, t->first_key + before * KEYS, t->kv_head, batch_k,
                           TMA_EVICT_LAST);
        }
        if (now == NO_BLOCK) return blocks;
        before = now, now = next;
    }
}

/* One thread: K and V, tile after tile. */
INLINE void producer_kv(const struct sm90_forward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        trace(&tracer, STROBE_TRACE_WAIT_TILE, tiles);
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        if (HAS_MASKS) {
            mbarrier_arrive(&s->tile_ends[slot_of(tiles)]); /* how many blocks are visible is not known */
            count += load_visible(p, s, t, count);
        } else {
            load_tile(p, s, t, count, &s->tile_ends[slot_of(tiles)], &tracer);
            count += t->end_block - t->first_block;
        }
        mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
    trace(&tracer, STROBE_TRACE_END, 0);
}

/* Copies a tile's Q, a piece for each group; `piece`: pieces before this tile. Returns those after it. */
INLINE uint32_t load_queries(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, uint32_t piece,
                             struct tracer *tracer, uint32_t tiles) {
#pragma unroll 1
    for (int group = 0, row = t->first_row + t->row; group < GROUPS; ++group, row += 64, ++piece) {
        const uint32_t slot = q_slot_of(piece);
        trace(tracer, STROBE_TRACE_WAIT_ROOM, tiles);
        mbarrier_wait(&s->q_empty[slot], q_parity(piece) ^ 1);
        trace(tracer, STROBE_TRACE_LOAD_Q, tiles);
        const int batch = p->cu_seqlens_q ? 0 : t->batch;
        if (HAS_PARTS) /* the map has heads in front of rows */
            load_block(s->q[slot], &p->q, &s->q_full[slot], Q_SLAB, t->head << t->cut.head_bits,
                       t->first_row + (int)position_of(t, t->row + 64 * group), batch, TMA_EVICT_LAST);
        else
            load_block(s->q[slot], &p->q, &s->q_full[slot], Q_SLAB, row, t->head, batch, TMA_EVICT_FIRST);
    }
    return piece;
}

/* One thread: Q of a tile, as soon as the tile is known and a slot is free. */
INLINE void producer_q(const struct sm90_forward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_QUERY_LOADER, true);
    uint32_t piece = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        trace(&tracer, STROBE_TRACE_WAIT_TILE, tiles);
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        piece = load_queries(p, s, t, piece, &tracer, tiles);
        mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
    trace(&tracer, STROBE_TRACE_END, 0);
}

#endif
