/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.h: the producer, one warp: describes segments, and copies Q and blocks of K into the ring. Some lanes copy eight keys
 * each, with all their columns; with pages, whose sizes are multiples of eight, it looks up their page a block ahead. What
 * has no page is copied from outside of the tensor: the copy engine reads nothing and writes zeros. Included by latent.cu
 * alone. */
#ifndef STROBE_CUDA_SM90_LATENT_LOAD_H
#define STROBE_CUDA_SM90_LATENT_LOAD_H

#include "cuda/ptx/tma_5d.h"
#include "cuda/sm90/latent/shared.h"

#define NO_PAGE (-1)

/* Some slabs of the 64 packed rows of the CTA's tile, in pieces of heads; `to`: of the first. Rows past the last token come
 * as zeros, or as anything in packed tensors. */
INLINE void load_slabs(const struct latent_params *d, unsigned char *to, uint64_t *full, const struct job *t, int first,
                       int end) {
    const int pieces = ROWS / d->q_piece;
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < (end - first) * pieces; at += 32) {
        const int slab = at / pieces, row = at % pieces * d->q_piece, packed = tile_of_cta(d) * ROWS + row;
        const int i = packed / d->p.group;
        tma_load_4d(to + slab * Q_SLAB + row * ROW_BYTES, &d->q, full, (first + slab) * 64,
                    t->kv * d->p.group + packed - i * d->p.group, (int)t->first_row + i, (int)t->batch_q, TMA_EVICT_FIRST);
    }
}

/* Q of a segment. The last slabs have their own place, where those of the segment before are no longer needed once its
 * scores are done. */
INLINE void load_query(const struct latent_params *d, struct shared *shared, const struct job *t, uint32_t count) {
    const uint32_t stage = stage_of(count), before = count - 1;
    uint64_t *const full = &shared->full[stage];
    if (threadIdx.x % 32 == 0) mbarrier_expect(full, SLABS * Q_SLAB);
    __syncwarp(); /* the barrier expects the copies before any arrives */
    load_slabs(d, shared->stage[stage], full, t, 0, HELD_SLABS);
    if (count > 0) mbarrier_wait(&shared->weights[stage_of(before)], parity_of(before));
    load_slabs(d, shared->q[0], full, t, HELD_SLABS, SLABS);
}

/* The entry of the page table of the lane's eight keys, in block n of the segment; past the segment's end there is none. */
INLINE int page_of_lane(const struct params *p, const struct segment *s, int n) {
    const int lane = (int)threadIdx.x % 32, key = s->first + n * KEYS + lane * 8;
    if (!p->cache.page_table || lane >= EIGHTS || n >= s->blocks || key >= s->t.keys) return NO_PAGE;
    return p->cache.page_table[s->t.b * p->cache.table_stride + key / p->cache.page_size];
}

/* Where the lane's eight keys of block n lie, as the copy engine counts; outside of the tensor where `page`, what the table
 * has for them, is none. */
INLINE void find_eight(const struct params *p, const struct segment *s, int n, int page, int (&at)[5]) {
    const int key = s->first + n * KEYS + (int)threadIdx.x % 32 * 8;
    at[0] = 0, at[1] = (int)s->t.first_key + key, at[2] = 0, at[3] = s->t.kv, at[4] = (int)s->t.batch_k;
    if (!p->cache.page_table) return;
    at[1] = key - key / p->cache.page_size * p->cache.page_size;
    at[4] = (uint32_t)page < (uint32_t)p->cache.pages ? page : NO_PAGE;
}

/* Until both values groups are done with the stage of entry `count`. */
INLINE void wait_for_room(struct shared *shared, uint32_t count) {
    mbarrier_wait(&shared->empty[stage_of(count)], parity_of(count) ^ 1);
}

/* Block n of the segment. */
INLINE void load_keys(const struct latent_params *d, struct shared *shared, const struct segment *s, int n, int page,
                      uint32_t count) {
    const uint32_t stage = stage_of(count);
    const int lane = (int)threadIdx.x % 32;
    int at[5];
    find_eight(&d->p, s, n, page, at);
    const bool is_missing = at[4] == NO_PAGE && lane < EIGHTS && s->first + n * KEYS + lane * 8 < s->t.keys;
    const uint32_t missing = __ballot_sync(0xffffffffu, is_missing);
    wait_for_room(shared, count);
    if (lane == 0) {
        shared->missing[stage] = missing;
        mbarrier_expect(&shared->full[stage], STAGE_BYTES);
    }
    __syncwarp();
    if (lane < EIGHTS)
        tma_load_5d(shared->stage[stage] + lane * EIGHT_BYTES, &d->k, &shared->full[stage], at, TMA_EVICT_FIRST);
}

/* The blocks of a segment; pages are looked up a block before they are needed. Returns the ring's count behind it. */
INLINE uint32_t load_blocks(const struct latent_params *d, struct shared *shared, const struct segment *s, uint32_t count) {
    int page = page_of_lane(&d->p, s, 0);
#pragma unroll 1
    for (int n = 0; n < s->blocks; ++n, ++count) {
        const int next = page_of_lane(&d->p, s, n + 1);
        load_keys(d, shared, s, n, page, count);
        page = next;
    }
    return count;
}

/* One warp. */
INLINE void producer(const struct latent_params *d, struct shared *shared) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
        struct segment *s = &shared->segment[number % SEGMENTS];
        wait_for_room(shared, count);
        if (threadIdx.x == 0) {
            next_segment(s, &shared->walk, &d->p, share_of_cta(d));
            if (s->begins && tile_of_cta(d) == 0 && d->by_item) d->crossings[shared->walk.last.item] = shared->walk.last;
        }
        __syncwarp();
        if (s->blocks == 0) break;
        load_query(d, shared, &s->t, count);
        count = load_blocks(d, shared, s, count + 1);
    }
    if (threadIdx.x != 0) return;
    if (tile_of_cta(d) == 0 && !d->by_item) d->crossings[share_of_cta(d)] = shared->walk.last;
    mbarrier_arrive(&shared->full[stage_of(count)]);
}

#endif
