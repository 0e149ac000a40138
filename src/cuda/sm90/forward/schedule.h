/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which tiles a CTA works on, one after the other. Included by forward.cu alone, after its -D constants.
 */
#ifndef STROBE_CUDA_SM90_FORWARD_SCHEDULE_H
#define STROBE_CUDA_SM90_FORWARD_SCHEDULE_H

#include "cuda/ptx/memory.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"

enum { TILE_ROWS = 64 * GROUPS };

/* All of a packed tensor's rows are less than 2^31: the low half of 64 bits will do. */
static __device__ __forceinline__ int entry(const struct sm90_forward_params *p, const void *entries, int at) {
    return ((const int32_t *)entries)[p->index_bits == 64 ? 2 * at : at];
}

/* The counter that tiles are drawn from. The first CTA sets it to zero and marks it as this launch's, which all wait for
 * before they draw; the last draw of all takes the mark off, since a launch that a graph repeats has the number that it had
 * before. Where nothing was drawn the mark may stay, with a counter of zero. */
static __device__ __forceinline__ void open_counter(const struct sm90_forward_params *p) {
    if (!p->draws || blockIdx.x > 0 || load_acquire(&p->workspace->launch) == p->launch) return;
    *(volatile uint32_t *)&p->workspace->next_tile = 0;
    store_release(&p->workspace->launch, p->launch);
}

static __device__ __forceinline__ int draw(const struct sm90_forward_params *p) {
    while (load_acquire(&p->workspace->launch) != p->launch) {
    }
    return (int)gridDim.x + (int)atomicAdd(&p->workspace->next_tile, 1);
}

/* Each of the CTAs that have a first tile ends by drawing a number past the last of `tiles`. */
static __device__ __forceinline__ void close_counter(const struct sm90_forward_params *p, int drawn, int tiles) {
    if (!p->draws || threadIdx.x % 32 > 0) return;
    if (drawn == tiles + (int)gridDim.x - 1) *(volatile uint64_t *)&p->workspace->launch = 0;
}

/* All lanes of the scheduler's warp. Tiles of one length follow each other by the grid's size, others are drawn. */
static __device__ __forceinline__ int next_tile(const struct sm90_forward_params *p, int number) {
    int drawn = 0;
    if (!p->draws) return number + (int)gridDim.x;
    if (threadIdx.x % 32 == 0) drawn = draw(p);
    return __shfl_sync(0xffffffffu, drawn, 0);
}

/* The host cannot read the lengths of sequences: beyond the stated bounds they are cut, so that nothing is written out of
 * place.
 */
static __device__ __forceinline__ int length(const struct sm90_forward_params *p, const void *used, const void *offsets,
                                             int batch, int most) {
    int length = most;
    if (used)
        length = entry(p, used, batch);
    else if (offsets)
        length = entry(p, offsets, batch + 1) - entry(p, offsets, batch);
    return length < 0 ? 0 : length < most ? length : most;
}

static __device__ __forceinline__ int rows_of(const struct sm90_forward_params *p, int batch) {
    return length(p, p->used_q, p->cu_seqlens_q, batch, p->seq_q);
}

static __device__ __forceinline__ int keys_of(const struct sm90_forward_params *p, int batch) {
    return length(p, p->used_k, p->cu_seqlens_k, batch, p->seq_k);
}

/* Sequences differ in rows. */
static __device__ __forceinline__ bool has_lengths(const struct sm90_forward_params *p) {
    return p->cu_seqlens_q || p->used_q;
}

/* Some heads of as many rows each, and a tile's number among theirs. */
struct stretch {
    int batch; /* of its first head */
    int heads, row_tiles, number;
};

/* Where a search among sequences stands: tiles of those before `batch`. */
struct cursor {
    int batch, tiles;
};

/* The sequence that tile `number` belongs to, where sequences differ in length; numbers only grow from call to call. All
 * lanes of a warp, each of which counts the tiles of one sequence. False past the last tile. */
static __device__ __forceinline__ bool find_sequence(const struct sm90_forward_params *p, int number, struct cursor *cursor,
                                                     struct stretch *found) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (; cursor->batch < p->batch; cursor->batch += 32) {
        const int batch = cursor->batch + lane;
        const int row_tiles = batch < p->batch ? (rows_of(p, batch) + TILE_ROWS - 1) / TILE_ROWS : 0;
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

/* Tile `number`, to *t by the lanes that write; false past the last. Heads are taken a section at a time, in a section the
 * last rows first, since under a causal mask they see the most keys: CTAs, which take the next number when they are done
 * with one, end together. A tile that sees no key has one block, all of it hidden. All lanes of a warp. */
static __device__ __forceinline__ bool describe_tile(const struct sm90_forward_params *p, int number, struct cursor *cursor,
                                                     struct tile *t, bool writes) {
    struct stretch all = {0, p->all_heads, p->row_tiles, number};
    bool there = number < p->tiles;
    if (has_lengths(p)) there = find_sequence(p, number, cursor, &all);
    if (!writes) return there;
    t->number = there ? number : NO_TILE, t->first_block = t->end_block = 0;
    if (!there) return false;
    const int section_tiles = p->section_heads * all.row_tiles;
    const int first_head = all.number / section_tiles * p->section_heads, in_section = all.number % section_tiles;
    const int left = all.heads - first_head, heads = left < p->section_heads ? left : p->section_heads;
    const int head = first_head + in_section % heads, row = (all.row_tiles - 1 - in_section / heads) * TILE_ROWS;
    const int batch = all.batch + head / p->heads_q, rows = rows_of(p, batch), keys = keys_of(p, batch);
    t->row = row, t->rows = rows, t->keys = keys;
    t->head = head % p->heads_q, t->kv_head = t->head / p->group, t->batch = batch;
    t->first_row = p->cu_seqlens_q ? entry(p, p->cu_seqlens_q, batch) : 0;
    t->first_key = p->cu_seqlens_k ? entry(p, p->cu_seqlens_k, batch) : 0;
    const int diagonal = p->bottom_right ? keys - rows : 0;
    t->first_shift = p->first_shift + diagonal, t->end_shift = p->end_shift + diagonal;
    const int last = row + TILE_ROWS < rows ? row + TILE_ROWS - 1 : rows - 1;
    const int first_block = first_key_of(t, row) / KEYS, end_block = (end_key_of(t, last) + KEYS - 1) / KEYS;
    t->first_block = end_block > first_block ? first_block : 0;
    t->end_block = end_block > first_block ? end_block : 1;
    return true;
}

#endif
