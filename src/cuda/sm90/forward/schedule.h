/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which tiles a persistent CTA works on, one after the other. Under a mask tiles differ in length, and
 * scheduling is dynamic: a CTA takes its next tile from the tile counter in the workspace. Included by forward.cu alone,
 * after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_SCHEDULE_H
#define STROBE_CUDA_SM90_FORWARD_SCHEDULE_H

#define POSITIONS_32 /* the host refuses longer packed tensors */
#include "cuda/device/sequence.h"
#include "cuda/ptx/memory.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"

enum { TILE_ROWS = 64 * GROUPS };
static_assert(!HAS_MASKS || ((int)TILE_ROWS == (int)UNIT && UNIT % (int)KEYS == 0),
              "a tile's rows are those of an owner of units");

/* Opens the tile counter: the first CTA sets it to zero and writes this launch's number beside it. All CTAs wait for that
 * number before they take a tile. The last take of all clears the number, because a launch that a graph repeats has the
 * same number again. Where no tile was taken the number may stay, since the counter is still zero. */
INLINE void open_tile_counter(const struct sm90_forward_params *p) {
    if (!p->is_dynamic || blockIdx.x > 0 || load_acquire(&p->workspace->launch) == p->launch) return;
    *(volatile uint32_t *)&p->workspace->tile_counter = 0;
    store_release(&p->workspace->launch, p->launch);
}

/* Takes the next tile from the counter. first: the CTA has taken none yet. Later on the counter is open, and to ask for it
 * takes as long as the take itself. */
INLINE int take_tile(const struct sm90_forward_params *p, bool first) {
    while (first && load_acquire(&p->workspace->launch) != p->launch) {
    }
    return (int)gridDim.x + (int)atomicAdd(&p->workspace->tile_counter, 1);
}

/* Clears the launch's number after the last take. Each CTA that has a first tile ends by taking a number past the last of
 * `tiles`, so the last take of all is known by its number. */
INLINE void close_tile_counter(const struct sm90_forward_params *p, int taken, int tiles) {
    if (!p->is_dynamic || threadIdx.x % 32 > 0) return;
    if (taken == tiles + (int)gridDim.x - 1) *(volatile uint64_t *)&p->workspace->launch = 0;
}

/* The CTA's next tile; `told`: tiles that it has had. All lanes of the scheduler's warp. */
INLINE int next_tile(const struct sm90_forward_params *p, int number, uint32_t told) {
    int taken = 0;
    if (!p->is_dynamic) return number + (int)gridDim.x;
    if (threadIdx.x % 32 == 0) taken = take_tile(p, told == 1);
    return __shfl_sync(0xffffffffu, taken, 0);
}

INLINE int length(const struct sm90_forward_params *p, const void *used, const void *offsets, int batch, int most) {
    int length = most;
    if (used) {
        length = entry(used, p->index_bits == 64, batch);
    } else if (offsets) {
        const int next = batch + 1;
        length = entry(offsets, p->index_bits == 64, next) - entry(offsets, p->index_bits == 64, batch);
    }
    return clamp(length, most);
}

/* The first keys of a sequence that are padding, which its length counts. */
INLINE int padding_of(const struct sm90_forward_params *p, int batch, int keys) {
    return p->cache.leftpad ? clamp(entry(p->cache.leftpad, p->index_bits == 64, batch), keys) : 0;
}

INLINE int rows_of(const struct sm90_forward_params *p, int batch) {
    return length(p, p->used_q, p->cu_seqlens_q, batch, p->seq_q);
}

INLINE int keys_of(const struct sm90_forward_params *p, int batch) {
    return length(p, p->used_k, p->cu_seqlens_k, batch, p->seq_k);
}

/* Whether sequences may differ; tiles that CTAs share are all alike. */
INLINE bool is_ragged(const struct sm90_forward_params *p) {
#if defined(RELAYS_TILES)
    return false;
#else
    return p->is_ragged;
#endif
}

/* Whether sequences differ in rows. */
INLINE bool has_lengths(const struct sm90_forward_params *p) { return is_ragged(p) && (p->cu_seqlens_q || p->used_q); }

/* Heads of the same number of rows, and a tile's number among the tiles of these heads. */
struct stretch {
    int batch; /* of its first head */
    int heads, row_tiles, number;
};

/* How far a search among sequences has come: `tiles` is the tiles of the sequences before `batch`. */
struct cursor {
    int batch, tiles;
};

/* Finds the sequence that tile `number` belongs to, where sequences differ in length; numbers only grow from call to call.
 * All lanes of a warp take part, each counts the tiles of one sequence. Returns false past the last tile. */
INLINE bool find_sequence(const struct sm90_forward_params *p, int number, struct cursor *cursor, struct stretch *found) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (; cursor->batch < p->batch; cursor->batch += 32) {
        const int batch = cursor->batch + lane;
        const int rows = batch < p->batch ? rows_of(p, batch) << (HAS_PARTS ? p->parts.head_bits : 0) : 0;
        const int row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
        int end = row_tiles * p->heads_q; /* tiles up to this sequence's last */
#pragma unroll 1
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, end, lanes);
            if (lane >= lanes) end += before;
        }
        const uint32_t beyond = __ballot_sync(0xffffffffu, cursor->tiles + end > number);
        if (beyond) {
            const int at = __ffs((int)beyond) - 1;
            found->batch = cursor->batch + at, found->heads = p->heads_q;
            found->row_tiles = __shfl_sync(0xffffffffu, row_tiles, at);
            found->number = number - cursor->tiles - __shfl_sync(0xffffffffu, end, at) + found->row_tiles * p->heads_q;
            return true;
        }
        cursor->tiles += __shfl_sync(0xffffffffu, end, 31);
    }
    return false;
}

/* With parts: of the blocks that the tile's rows see, those of the tile's part. A part without blocks sees no key. */
INLINE void cut_blocks(const struct sm90_forward_params *p, struct tile *t) {
    const int each = (t->end_block - t->first_block + p->parts.count - 1) / p->parts.count;
    const int first = t->first_block + t->cut.part * each, end = first + each < t->end_block ? first + each : t->end_block;
    if (first >= end) t->keys = 0;
    t->first_block = first < end ? first : 0, t->end_block = first < end ? end : 1;
}

/* Describes tile `number` in *t, by the lanes that write; returns false past the last. Heads are taken a section at a time,
 * and in a section the last rows come first: under a causal mask they see the most keys, and when long tiles come first,
 * CTAs that take the next number when they are done with one end together. A tile that sees no key has one block, all of it
 * hidden. All lanes of a warp. */
INLINE bool describe_tile(const struct sm90_forward_params *p, int number, struct cursor *cursor, struct tile *t,
                          bool writes) {
    struct stretch all = {0, p->all_heads, p->row_tiles, number};
    bool there = number < p->tiles;
    if (has_lengths(p)) there = find_sequence(p, number, cursor, &all);
    if (!writes) return there;
    t->number = there ? number : NO_TILE, t->first_block = t->end_block = 0;
    if (!there) return false;
    const int section_tiles = p->section_heads * all.row_tiles;
    const int section = has_lengths(p) ? all.number / section_tiles : quotient(all.number, p->by_section_tiles);
    const int first_head = section * p->section_heads, in_section = all.number - section * section_tiles;
    const int left = all.heads - first_head;
    const bool is_whole = left >= p->section_heads;
    const int pair = in_section / PAIR, pair_row = quotient(pair, is_whole ? p->by_section_heads : p->by_last_heads);
    const int head = first_head + pair - pair_row * (is_whole ? p->section_heads : left),
              row = (all.row_tiles - 1 - pair_row * PAIR - in_section % PAIR) * TILE_ROWS;
    const bool inner = FEATURE_CLASS == FEATURES_BIAS && p->batch_is_inner;
    const int entry_of_batch = FEATURE_CLASS == FEATURES_BIAS ? head / p->heads_q : quotient(head, p->by_heads_q);
    const int batch = inner ? head % p->batch : all.batch + entry_of_batch;
    int positions = p->seq_q, keys = p->seq_k;
    t->first_row = t->first_key = 0;
    if (is_ragged(p)) {
        const int stored = keys_of(p, batch), padding = padding_of(p, batch, stored);
        positions = rows_of(p, batch), keys = stored - padding;
        t->first_row = p->cu_seqlens_q ? entry(p->cu_seqlens_q, p->index_bits == 64, batch) : 0;
        t->first_key = (p->cu_seqlens_k ? entry(p->cu_seqlens_k, p->index_bits == 64, batch) : 0) + padding;
    }
    const int rows = HAS_PARTS ? positions << p->parts.head_bits : positions;
    t->row = row, t->rows = rows, t->keys = keys;
    t->head = inner ? head / p->batch : head - entry_of_batch * p->heads_q, t->batch = batch;
    if (HAS_PARTS) {
        t->cut.part = (int16_t)(t->head % p->parts.count), t->cut.head_bits = (int16_t)p->parts.head_bits;
        t->head /= p->parts.count;
    }
    t->kv_head = quotient(t->head, p->by_group);
    const int diagonal = p->bottom_right ? keys - positions : 0;
    t->first_shift = p->first_shift + diagonal, t->end_shift = p->end_shift + diagonal;
    const int last = row + TILE_ROWS < rows ? row + TILE_ROWS - 1 : rows - 1;
    const int first_block = first_key_of(t, row) / KEYS, end_block = (end_key_of(t, last) + KEYS - 1) / KEYS;
    t->first_block = end_block > first_block ? first_block : 0;
    t->end_block = end_block > first_block ? end_block : 1;
    if (HAS_PARTS) cut_blocks(p, t);
    if (HAS_ROW_OFFSETS) {
        const int block = (last + p->start + keys - rows) / KEYS, most = t->end_block - 1;
        t->start_block = block < t->first_block ? t->first_block : block > most ? most : block;
    }
    if (HAS_MASKS) {
        t->owner = owner_of(&p->visible, batch, t->head, row / UNIT);
        fetch_states(&p->visible, &t->owner, (t->end_block - 1) / (UNIT / KEYS));
    }
    return true;
}

#endif
