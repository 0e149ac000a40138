/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pages.h: K and V in pages of whole eights of slots, variants of the classes PAGES alone. A block of KEYS keys is copied in
 * pieces, each of keys that lie side by side in a page: as many as divide both the page and the block, and all their columns
 * in one copy. So that one copy can do that, a stage lies in eights: [eight keys][slab][8][64]. One warp copies K and one V,
 * from right to left. A lane holds the page of one piece and copies it: 32 entries of the table are read at a time, those to
 * the left while copies go on. Included by forward.cu alone, after its -D constants.
 *
 * A piece whose page is none is copied from outside of the tensor: the copy engine reads nothing and writes zeros. A note
 * beside the stage of K says which eights these are, and consumers hide them. Slots past the sequence's length may hold NaN.
 * Consumers hide their scores, and the producer sets their rows of V to zero before it hands the stage over. */
#ifndef STROBE_CUDA_SM90_FORWARD_PAGES_H
#define STROBE_CUDA_SM90_FORWARD_PAGES_H

#include "cuda/ptx/tma_5d.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/trace.h"

#define NO_PAGE (-1)

/* The entry of the page table that key j has. */
INLINE int entry_of_key(const struct sm90_forward_params *p, int j) { return quotient(j, p->by_page_size); }

INLINE int slot_of_key(const struct sm90_forward_params *p, int j) { return j - entry_of_key(p, j) * p->cache.page_size; }

/* What the table has for key j of a sequence, and the page that this is. */
INLINE int number_of_key(const struct sm90_forward_params *p, int batch, int j) {
    return p->cache.page_table[batch * p->cache.table_stride + entry_of_key(p, j)];
}

INLINE int page_of_number(const struct sm90_forward_params *p, int number) {
    return (uint32_t)number < (uint32_t)p->cache.pages ? number : NO_PAGE;
}

/* The pieces of p->window_blocks blocks, a lane for each. Little is left to do for a block: the softmax of the consumers
 * needs most of the issue slots. */
struct page_window {
    int block;        /* the first; a multiple of window_blocks */
    int eight, head;  /* the lane's piece, see struct page_map: outside of the tensor without a page and past the length */
    uint32_t missing; /* of K: lanes whose piece has no page, though the sequence has its keys */
    int before;       /* what the table has in the window to the left: nothing waits for it before it is needed */
};

INLINE int key_of_lane(const struct sm90_forward_params *p, int block) {
    return block * KEYS + (int)threadIdx.x % 32 * p->piece_keys;
}

INLINE int number_of_lane(const struct sm90_forward_params *p, const struct tile *t, int block) {
    const int key = key_of_lane(p, block);
    return block < 0 || key >= t->keys ? NO_PAGE : number_of_key(p, t->batch, key);
}

/* The window to the right of the one that block n lies in, with nothing in it. */
INLINE struct page_window window_behind(const struct sm90_forward_params *p, const struct tile *t, int n) {
    struct page_window w;
    w.block = (n & -p->window_blocks) + p->window_blocks;
    w.eight = -KEYS, w.head = 0, w.missing = 0;
    w.before = number_of_lane(p, t, w.block - p->window_blocks);
    return w;
}

INLINE void move_left(const struct sm90_forward_params *p, const struct tile *t, bool is_v, struct page_window *w) {
    const struct page_map *where = is_v ? &p->v_pages : &p->k_pages;
    const int page = page_of_number(p, w->before);
    w->block -= p->window_blocks;
    const int key = key_of_lane(p, w->block);
    w->eight = page == NO_PAGE ? -KEYS : (slot_of_key(p, key) >> 3) + page * where->page_eights;
    w->head = t->kv_head + page * where->page_heads;
    if (!is_v) w->missing = __ballot_sync(0xffffffffu, page == NO_PAGE && key < t->keys);
    w->before = number_of_lane(p, t, w->block - p->window_blocks);
}

/* The note of a block: its eights of keys that have no page, as bits; almost always 0. `lane`: that of its first piece. */
INLINE uint32_t missing_eights(const struct sm90_forward_params *p, uint32_t missing, int lane) {
    uint32_t bits = 0;
    if (missing != 0)
#pragma unroll 1
        for (int at = 0, piece = lane, eights = p->piece_keys / 8; at < KEYS / 8; at += eights, ++piece)
            if (missing >> piece & 1) bits |= ((1u << eights) - 1) << at;
    return bits;
}

/* Each lane copies its piece, if the block has it. `lane`: that of the block's first. */
INLINE void load_pieces(const struct sm90_forward_params *p, bool is_v, const struct page_window *w, unsigned char *stage,
                        uint64_t *full, int lane) {
    const int piece = (int)threadIdx.x % 32 - lane;
    if (piece < 0 || piece >= p->block_pieces) return;
    unsigned char *to = stage + piece * p->piece_keys * (KV_EIGHT / 8);
    const int slabs = SLABS == 1 ? 1 : is_v ? p->v_pages.slabs : p->k_pages.slabs;
#pragma unroll 1
    for (int slab = 0; slab < SLABS; slab += slabs) {
        const int at[5] = {slab * SLAB_COLUMNS, 0, 0, w->eight, w->head};
        tma_load_5d(to + slab * SLAB_STEP, is_v ? &p->v : &p->k, full, at, TMA_EVICT_LAST);
    }
}

/* Sets a stage's rows from `begin` on to zero. */
INLINE void clear_rows(unsigned char *stage, int begin) {
#pragma unroll 1
    for (int at = begin * 8 + (int)threadIdx.x % 32; at < KEYS * 8; at += 32)
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
            *(uint4 *)(stage + at / 64 * KV_EIGHT + slab * SLAB_STEP + at % 64 * 16) = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    __syncwarp();
}

/* Copies K, or V, of a tile's blocks. `count`: blocks before this tile; `ends`: blocks so far in which a sequence ended;
 * `tile_ends`: as in load_tile(). */
INLINE void load_tile_pages(const struct sm90_forward_params *p, struct shared *s, const struct tile *t, bool is_v,
                            uint32_t count, uint64_t *tile_ends, uint32_t *ends, struct tracer *tracer) {
    struct page_window w = window_behind(p, t, t->end_block - 1);
    const int tells = min(t->first_block + (int)TAKE_AHEAD, t->end_block) - 1;
#pragma unroll 1
    for (int n = t->end_block - 1; n >= t->first_block; --n, ++count) {
        const uint32_t stage = stage_of(count);
        if (n < w.block) move_left(p, t, is_v, &w);
        trace(tracer, STROBE_TRACE_WAIT_ROOM, count);
        mbarrier_wait(is_v ? &s->v_empty[stage] : &s->k_empty[stage], empty_parity(count));
        trace(tracer, is_v ? STROBE_TRACE_LOAD_V : STROBE_TRACE_LOAD_K, count);
        const int lane = (n - w.block) * p->block_pieces, keys = t->keys - n * KEYS; /* that the sequence has from here on */
        const bool ends_here = is_v && keys > 0 && keys < KEYS;
        const uint32_t note = is_v ? 0 : missing_eights(p, w.missing, lane);
        unsigned char *to = is_v ? s->v[stage] : s->k[stage];
        uint64_t *full = is_v ? &s->v_full[stage] : &s->k_full[stage];
        if (threadIdx.x % 32 == 0) {
            if (!is_v) s->note[stage] = note;
            mbarrier_expect(ends_here ? &s->v_arrived : full, SLABS * KV_SLAB);
        }
        __syncwarp(); /* the barrier expects the copies before any arrives */
        load_pieces(p, is_v, &w, to, ends_here ? &s->v_arrived : full, lane);
        if (n == tells && !is_v && threadIdx.x % 32 == 0) mbarrier_arrive(tile_ends);
        if (!ends_here) continue;
        mbarrier_wait(&s->v_arrived, (*ends)++ % 2);
        clear_rows(to, keys);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(full);
    }
}

/* A warp: K, or V, tile after tile. */
INLINE void producer_pages(const struct sm90_forward_params *p, struct shared *s, bool is_v) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, threadIdx.x == 0);
    uint32_t count = 0, ends = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        trace(&tracer, STROBE_TRACE_WAIT_TILE, tiles);
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        load_tile_pages(p, s, t, is_v, count, &s->tile_ends[slot_of(tiles)], &ends, &tracer);
        count += t->end_block - t->first_block;
        arrive_as_warp(&s->tile_empty[slot_of(tiles)]);
    }
    trace(&tracer, STROBE_TRACE_END, 0);
}

/* The consumers' part: hides the eights of a block's note. */
INLINE void hide_missing(float (&s)[KEYS / 2], uint32_t note) {
    if (note == 0) return;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        if (note & 1u << v / 4) s[v] = -INFINITY;
}

#endif
