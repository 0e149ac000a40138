/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_load.h: brings blocks of keys to shared memory by cp.async, of pages of any size too: a warp's lanes look up the
 * page of a key each, one block ahead, and hand them round. On an H200 such copies, of two CTAs a multiprocessor, read
 * faster than tensor copies, and in any order (docs/kernels/cuda.md). */
#ifndef STROBE_CUDA_SM80_DECODE_LOAD_H
#define STROBE_CUDA_SM80_DECODE_LOAD_H

#include "cuda/sm80/decode_schedule.h"
#include "cuda/sm80/load.h"

enum {
    LOOKUPS = BLOCK_N / 32, /* of a lane */
    K_BYTES = BLOCK_N * DIM * ELEMENT_BYTES,
    STAGE_BYTES = 2 * K_BYTES,
};

/* A block that is to be loaded: of keys lane + 32 n of it the entry of the page table, which is not looked at before it is
 * used, and -1 past the end. */
struct lookup {
    int page[LOOKUPS];
};

/* Where the loader stands. */
struct loader {
    int segment, block;   /* number of the segment from the CTA's first on; block of it */
    uint32_t left;        /* units of the CTA that have not been asked for */
    struct lookup lookup; /* of the next block; used with pages alone */
};

/* What is known of a stage's keys: whether pages are missing, and which keys lie in a page, a byte each, if so. */
struct shown {
    int missing;
    unsigned char key[BLOCK_N];
};

INLINE void look_up(struct lookup *to, const struct params *p, const struct segment *s, int j0) {
    const int lane = (int)threadIdx.x % 32;
    const int32_t *const table = p->cache.page_table + s->t.b * p->cache.table_stride;
    const unsigned size = (unsigned)p->cache.page_size, first = (unsigned)(s->t.first_key + j0 + lane);
#pragma unroll
    for (int n = 0; n < LOOKUPS; ++n) to->page[n] = j0 + lane + 32 * n < s->t.keys ? table[(first + 32 * n) / size] : -1;
}

/* Copies of a row of K and V into its place of a stage; K and V come as far as dim and dim_v. */
INLINE void copy_row(unsigned char *to, const element *k, const element *v, int k_bytes, int v_bytes) {
    cp_async_16(shared_address(to), k, k_bytes);
    cp_async_16(shared_address(to) + K_BYTES, v, v_bytes);
}

/* Copies of K and V of the block at j0. */
INLINE void load_block(const struct params *p, const struct segment *s, const struct lookup *lookup, unsigned char *stage,
                       struct shown *shown, int j0) {
    enum { CHUNKS = DIM / CHUNK, STEP = THREADS / CHUNKS, ROUNDS = BLOCK_N / STEP };
    const int lane = (int)threadIdx.x % 32, chunk = (int)threadIdx.x % CHUNKS, own = (int)threadIdx.x / CHUNKS;
    const int k_left = p->dim - chunk * CHUNK, v_left = p->dim_v - chunk * CHUNK, end = s->t.keys - j0;
    const int k_bytes = (k_left < 0 ? 0 : k_left < CHUNK ? k_left : CHUNK) * ELEMENT_BYTES;
    const int v_bytes = (v_left < 0 ? 0 : v_left < CHUNK ? v_left : CHUNK) * ELEMENT_BYTES;
    const element *k = s->t.k + chunk * CHUNK, *v = s->t.v + chunk * CHUNK;
    unsigned char *to = stage + chunk_at(DIM * ELEMENT_BYTES, own, chunk);
    static_assert(STEP % 8 == 0 || STEP == 4, "chunk_at() repeats after 8 rows");
    if (!p->cache.page_table) {
        const int64_t first = s->t.first_key + j0 + own;
        k += first * p->k.row, v += first * p->v.row;
#pragma unroll 4
        for (int n = 0; n < ROUNDS; ++n, k += STEP * p->k.row, v += STEP * p->v.row) {
            const bool there = own + n * STEP < end;
            to = stage + chunk_at(DIM * ELEMENT_BYTES, own + n * STEP, chunk);
            copy_row(to, there ? k : s->t.k, there ? v : s->t.v, there ? k_bytes : 0, there ? v_bytes : 0);
        }
        return;
    }
    const unsigned size = (unsigned)p->cache.page_size, first = (unsigned)(s->t.first_key + j0);
    bool missing = false;
#pragma unroll
    for (int n = 0; n < LOOKUPS; ++n)
        missing = missing || ((unsigned)lookup->page[n] >= (unsigned)p->cache.pages && lane + 32 * n < end);
    if (__any_sync(0xffffffffu, missing)) { /* every warp has looked up all of them */
        shown->missing = 1;
#pragma unroll
        for (int n = 0; n < LOOKUPS; ++n) shown->key[lane + 32 * n] = (unsigned)lookup->page[n] < (unsigned)p->cache.pages;
    } else {
        shown->missing = 0;
    }
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        const int row = own + n * STEP;
        int page = __shfl_sync(0xffffffffu, lookup->page[n * STEP / 32], row % 32);
        const unsigned slot = (first + (unsigned)row) % size;
        const bool there = (unsigned)page < (unsigned)p->cache.pages;
        if (!there) page = 0;
        to = stage + chunk_at(DIM * ELEMENT_BYTES, row, chunk);
        copy_row(to, k + (page * p->k.batch + slot * p->k.row), v + (page * p->v.batch + slot * p->v.row),
                 there ? k_bytes : 0, there ? v_bytes : 0);
    }
}

/* Segments that are described when one is entered; with pages one more, whose page is looked up. */
INLINE int described_ahead(const struct params *p) { return p->cache.page_table ? 2 : 1; }

/* Asks for the CTA's next block, if there is one, and looks ahead to the one after it. One thread describes segments, as
 * they are entered. Closes a group of copies in any case. */
INLINE void load_next(struct loader *l, const struct params *p, struct segment *segments, struct walk *walk,
                      unsigned char *stage, struct shown *shown) {
    if (l->left > 0) {
        const struct segment *s = &segments[l->segment % SEGMENTS];
        load_block(p, s, &l->lookup, stage, shown, s->first + l->block * BLOCK_N);
        if (l->block == 0 && threadIdx.x == 0)
            next_segment(&segments[(l->segment + described_ahead(p)) % SEGMENTS], walk, p);
        --l->left;
        if (++l->block == s->blocks) ++l->segment, l->block = 0;
        if (l->left > 0 && p->cache.page_table) {
            const struct segment *next = &segments[l->segment % SEGMENTS];
            look_up(&l->lookup, p, next, next->first + l->block * BLOCK_N);
        }
    }
    cp_async_commit();
}

/* Q's packed rows, as load_packed() lays them, but by plain loads: copies of K and V are on their way, in groups of their
 * own. */
INLINE void load_query(unsigned char *tile, const struct params *p, const struct job *t) {
    enum { CHUNKS = DIM / CHUNK };
    const int end = t->rows * p->group;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < BLOCK_M * CHUNKS; at += THREADS) {
        const int row = at / CHUNKS, chunk = at % CHUNKS, left = p->dim - chunk * CHUNK, i = row / p->group;
        const element *from = t->q + i * p->q.row + (row - i * p->group) * p->q.head + chunk * CHUNK;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < end && left >= CHUNK && p->q.aligned) {
            x = *(const uint4 *)from;
        } else if (row < end) {
            element *const to = (element *)(tile + chunk_at(DIM * ELEMENT_BYTES, row, chunk));
#pragma unroll 1
            for (int e = 0; e < CHUNK; ++e) to[e] = e < left ? from[e] : (element)0;
            continue;
        }
        *(uint4 *)(tile + chunk_at(DIM * ELEMENT_BYTES, row, chunk)) = x;
    }
}

#endif
