/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.h: the producer, one warp: describes segments, and copies Q and blocks of K into the ring. Some lanes copy eight keys
 * each, with all their columns; with pages, whose sizes are multiples of eight, it looks up their page a block ahead. What
 * has no page is copied from outside of the tensor: the copy engine reads nothing and writes zeros. Of a cache of bytes it
 * also reads the keys' scales, a block ahead. Included by latent.cu alone. */
#ifndef STROBE_CUDA_SM90_LATENT_LOAD_H
#define STROBE_CUDA_SM90_LATENT_LOAD_H

#include "cuda/device/key_scales.h"
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

/* The scales of two keys of block n, the lane's and the one 32 further on; 1 where there is none. page: the lane's. */
struct two_scales {
    float of[2];
};
INLINE struct two_scales read_scales(const struct params *p, const struct segment *s, int n, int page) {
    struct two_scales its = {{1, 1}};
    if (IS_RAW && p->cache.k_scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int own = (int)threadIdx.x % 32 + 32 * half, key = s->first + n * KEYS + own;
            const int its_page = __shfl_sync(0xffffffffu, page, own / 8);
            if (own >= KEYS || n >= s->blocks || key >= s->t.keys) continue;
            if (p->cache.page_table && (uint32_t)its_page >= (uint32_t)p->cache.pages) continue;
            const int64_t batch = p->cache.page_table ? its_page : s->t.batch_k;
            const int64_t slot = p->cache.page_table ? key % p->cache.page_size : s->t.first_key + key;
            its.of[half] = *scale_of_key(p->cache.k_scale, p->cache.k_scale_stride, p, &s->t, batch, slot);
        }
    }
    return its;
}

/* Block n of the segment. keys: blocks of K before it. */
INLINE void load_keys(const struct latent_params *d, struct shared *shared, const struct segment *s, int n, int page,
                      struct two_scales scales, uint32_t count, uint32_t keys) {
    const uint32_t stage = stage_of(count);
    uint64_t *const there = IS_RAW ? &shared->raw[stage_of(keys)] : &shared->full[stage];
    const int lane = (int)threadIdx.x % 32;
    int at[5];
    find_eight(&d->p, s, n, page, at);
    const bool is_missing = at[4] == NO_PAGE && lane < EIGHTS && s->first + n * KEYS + lane * 8 < s->t.keys;
    const uint32_t missing = __ballot_sync(0xffffffffu, is_missing);
    wait_for_room(shared, count);
    if (IS_RAW) {
        shared->scale[stage][lane] = scales.of[0];
        if (lane + 32 < KEYS) shared->scale[stage][lane + 32] = scales.of[1];
        __syncwarp();
    }
    if (lane == 0) {
        shared->missing[stage] = missing;
        mbarrier_expect(there, EIGHTS * RAW_EIGHT);
    }
    __syncwarp();
    if (lane < EIGHTS) tma_load_5d(shared->stage[stage] + RAW_AT + lane * RAW_EIGHT, &d->k, there, at, TMA_EVICT_FIRST);
}

/* The blocks of a segment, behind `keys` others, and from entry `count` of the ring on. Pages are looked up a block before
 * they are needed; where there are scales too, these are, and pages a block before that. */
INLINE void load_blocks(const struct latent_params *d, struct shared *shared, const struct segment *s, uint32_t count,
                        uint32_t keys) {
    const struct params *p = &d->p;
    enum { AHEAD = IS_RAW ? 2 : 1 };
    int page = page_of_lane(p, s, 0), next = IS_RAW ? page_of_lane(p, s, 1) : NO_PAGE;
    struct two_scales scales = read_scales(p, s, 0, page);
#pragma unroll 1
    for (int n = 0; n < s->blocks; ++n) {
        const struct two_scales next_scales = read_scales(p, s, n + 1, next);
        const int ahead = page_of_lane(p, s, n + AHEAD);
        load_keys(d, shared, s, n, page, scales, count + (uint32_t)n, keys + (uint32_t)n);
        page = IS_RAW ? next : ahead, next = ahead, scales = next_scales;
    }
}

/* One warp. */
INLINE void producer(const struct latent_params *d, struct shared *shared) {
    uint32_t count = 0, keys = 0; /* entries of the ring, and blocks of K among them */
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
        struct segment *s = &shared->segment[number % SEGMENTS];
        wait_for_room(shared, count);
        if (threadIdx.x == 0) {
            next_segment(s, &shared->walk, d, share_of_cta(d));
            if (s->begins && tile_of_cta(d) == 0 && d->by_item) d->crossings[shared->walk.last.item] = shared->walk.last;
        }
        __syncwarp();
        if (s->blocks == 0) break;
        load_query(d, shared, &s->t, count);
        load_blocks(d, shared, s, count + 1, keys);
        count += 1 + (uint32_t)s->blocks, keys += (uint32_t)s->blocks;
    }
    if (threadIdx.x != 0) return;
    if (tile_of_cta(d) == 0 && !d->by_item) d->crossings[share_of_cta(d)] = shared->walk.last;
    mbarrier_arrive(&shared->full[stage_of(count)]);
    if (IS_RAW) mbarrier_arrive(&shared->raw[stage_of(keys)]);
}

#endif
