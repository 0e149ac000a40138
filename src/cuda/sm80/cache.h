/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cache.h (sm80): blocks of K and V of a cache into shared memory: rows in pages, numbers stored in fewer bits than the
 * element type has, scales. CACHE, by -D: 0 the kernel is given none, 1 always, 2 at times; 3 always one in pages of
 * elements without scales, all of whose columns are there, with one layout for K and V: a row's place is then a number of 32
 * bits.
 *
 * Where the rows of a block lie is looked up two blocks ahead, a key a thread, so that nothing waits for the page table: the
 * entry is asked for before the products of a block, and becomes addresses behind them (struct key_rows). A key whose page
 * is none has no row; it is not read, and invisible.
 *
 * Elements are copied into the tile. Other numbers are copied as they are into memory behind the tile, with two stages, and
 * widened by the thread that has copied them; with one stage they pass through registers. */
#ifndef STROBE_CUDA_SM80_CACHE_H
#define STROBE_CUDA_SM80_CACHE_H

/* What is hardly ever called is a function of its own over a cache: inlined, it took registers from the operands of the
 * products, which were then no longer loaded ahead of them. */
#if CACHE
#define SELDOM static __device__ __noinline__
#else
#define SELDOM INLINE
#endif

#include "cuda/device/key_scales.h"
#include "cuda/device/widen.h"
#include "cuda/ptx/cp_async_word.h"
#include "cuda/sm80/key_rows.h"
#include "cuda/sm80/load.h"
#include "cuda/sm80/scores.h"

/* Of one block of keys: where rows begin, NULL where there is none, and scales, where there are; without a row anything. */
#if CACHE == 3
enum {
    CHUNKS_OF_ROW = DIM / CHUNK,
    ROW_STEP = THREADS / CHUNKS_OF_ROW, /* a thread copies a chunk of every such row */
    ROW_COUNT = BLOCK_N / ROW_STEP,     /* of them */
};
#define NO_ROW 0xffffffffu
struct key_rows {
    __align__(16) uint32_t at[BLOCK_N]; /* [ROW_STEP][ROW_COUNT]: units of 16 bytes from data to the row, or NO_ROW */
    uint32_t missing[4];                /* a bit for each key that has no row although the sequence has it */
};
static_assert(sizeof(struct key_rows) == KEY_ROWS_32_BYTES(BLOCK_N), "the host asks for this memory");
static_assert(DIM == DIM_V && ROW_COUNT % 4 == 0, "K and V are copied alike, and four rows are looked up at a time");
INLINE const float *k_scales(const struct key_rows *) { return NULL; }
INLINE const float *v_scales(const struct key_rows *) { return NULL; }
#else
struct key_rows {
    const unsigned char *k[BLOCK_N], *v[BLOCK_N];
    float k_scale[BLOCK_N], v_scale[BLOCK_N];
    uint32_t missing[4]; /* a bit for each key that has no row although the sequence has it */
};

static_assert(sizeof(struct key_rows) == KEY_ROWS_BYTES(BLOCK_N), "the host asks for this memory");
INLINE const float *k_scales(const struct key_rows *rows) { return rows->k_scale; }
INLINE const float *v_scales(const struct key_rows *rows) { return rows->v_scale; }
#endif
static_assert(BLOCK_N <= THREADS && BLOCK_N <= 128, "a thread has one key; the bits fit");

INLINE bool is_stored(const struct params *p) { return CACHE != 3 && p->k.dtype != ELEMENT_DTYPE; }
INLINE bool has_scales(const struct params *p) { return CACHE != 3 && (p->cache.k_scale || p->cache.v_scale); }
INLINE bool is_cache(const struct params *p) {
    return CACHE == 1 || CACHE == 3 ||
           (CACHE == 2 && (p->cache.page_table || p->cache.k_scale || p->cache.v_scale || p->k.dtype != ELEMENT_DTYPE));
}

/* The key of a block that this thread looks up; with threads enough, K's and V's rows have threads of their own. */
INLINE int own_key(void) { return (int)threadIdx.x % BLOCK_N; }

/* 2^32 / page_size, rounded down. */
INLINE uint32_t reciprocal_of_page(const struct params *p) {
    return p->cache.page_table && p->cache.page_size > 1 ? (uint32_t)(((uint64_t)1 << 32) / (uint32_t)p->cache.page_size)
                                                         : 0xffffffffu;
}

/* A key's entry of the page table, and its slot in that page: a division by two multiplications, of which the first is short
 * by one at most. */
struct paged_key {
    uint32_t entry, slot;
};
INLINE struct paged_key paged_key_of(const struct params *p, uint32_t key, uint32_t reciprocal) {
    struct paged_key at = {__umulhi(key, reciprocal), 0};
    at.slot = key - at.entry * (uint32_t)p->cache.page_size;
    if (at.slot >= (uint32_t)p->cache.page_size) ++at.entry, at.slot -= (uint32_t)p->cache.page_size;
    return at;
}

/* Where the table has the page of this thread's key of the block at j; NULL: the thread has none, or there is no table. */
INLINE const int32_t *page_of_key(const struct params *p, const struct job *t, int j, uint32_t reciprocal) {
    const int key = j + own_key();
    if (!p->cache.page_table || threadIdx.x >= 2 * BLOCK_N || key >= t->keys) return NULL;
    const struct paged_key at = paged_key_of(p, (uint32_t)(t->first_key + key), reciprocal);
    return &p->cache.page_table[t->b * p->cache.table_stride + at.entry];
}

#if CACHE == 3
INLINE uint32_t *own_row(struct key_rows *rows) {
    return &rows->at[own_key() % ROW_STEP * ROW_COUNT + own_key() / ROW_STEP];
}
#endif

/* Asks for the page of this thread's key of the block at j, for put_rows(). Rows of 32 bits have it copied to their place,
 * in the group of copies that is closed next. */
INLINE int find_page(struct key_rows *rows, const struct params *p, const struct job *t, int j, uint32_t reciprocal) {
    const int32_t *const page = page_of_key(p, t, j, reciprocal);
#if CACHE == 3
    if (page && threadIdx.x < BLOCK_N) cp_async_4(shared_address(own_row(rows)), page);
    return 0;
#else
    return page ? *page : 0;
#endif
}

/* Writes where a key's row lies, and sends for its scale. */
INLINE void put_row(const unsigned char **row, float *to_scale, const struct view *x, const float *scale,
                    const int64_t *stride, const struct params *p, const struct job *t, int64_t batch, int64_t slot,
                    bool there) {
    const int bytes = x->dtype == ELEMENT_DTYPE ? ELEMENT_BYTES : stored_bytes(x->dtype);
    *row = there ? (const unsigned char *)x->data + (batch * x->batch + slot * x->row + t->kv * x->head) * bytes : NULL;
    if (there && scale) copy_scale(to_scale, scale, stride, p, t, batch, slot);
}

#if CACHE == 3
INLINE uint32_t units_of_16_bytes(int64_t elements) { return (uint32_t)(elements / CHUNK); }

/* Writes the places of the rows of the block at j, whose pages are there for the threads that asked for them, and which keys
 * have none. All threads. */
INLINE void put_rows(struct key_rows *rows, const struct params *p, const struct job *t, int j, uint32_t reciprocal) {
    const int thread = (int)threadIdx.x, key = j + own_key(), page = thread < BLOCK_N ? (int)*own_row(rows) : 0;
    const bool asked = key < t->keys, there = asked && page >= 0 && page < p->cache.pages;
    const uint32_t slot = paged_key_of(p, (uint32_t)(t->first_key + key), reciprocal).slot;
    const uint32_t at = (uint32_t)page * units_of_16_bytes(p->k.batch) + slot * units_of_16_bytes(p->k.row) +
                        (uint32_t)t->kv * units_of_16_bytes(p->k.head);
    if (thread < BLOCK_N) *own_row(rows) = there ? at : NO_ROW;
    const uint32_t missing = __ballot_sync(0xffffffffu, thread < BLOCK_N && asked && !there);
    if (thread % 32 == 0 && thread < BLOCK_N) rows->missing[thread / 32] = missing;
}
#else
/* Writes the rows of the block at j, whose pages have been asked for. All threads. */
INLINE void put_rows(struct key_rows *rows, const struct params *p, const struct job *t, int j, int page,
                     uint32_t reciprocal) {
    const int thread = (int)threadIdx.x, own = own_key(), key = j + own;
    const bool asked = key < t->keys;
    const bool there = asked && (!p->cache.page_table || (page >= 0 && page < p->cache.pages));
    int64_t batch = t->batch_k, slot = t->first_key + key;
    if (p->cache.page_table) batch = page, slot = paged_key_of(p, (uint32_t)slot, reciprocal).slot;
    if (thread < BLOCK_N)
        put_row(&rows->k[own], &rows->k_scale[own], &p->k, p->cache.k_scale, p->cache.k_scale_stride, p, t, batch, slot,
                there);
    if (THREADS < 2 * BLOCK_N ? thread < BLOCK_N : thread >= BLOCK_N && thread < 2 * BLOCK_N)
        put_row(&rows->v[own], &rows->v_scale[own], &p->v, p->cache.v_scale, p->cache.v_scale_stride, p, t, batch, slot,
                there);
    const uint32_t missing = __ballot_sync(0xffffffffu, thread < BLOCK_N && asked && !there);
    if (thread % 32 == 0 && thread < BLOCK_N) rows->missing[thread / 32] = missing;
}
#endif

/* Whether a key of the block has no row. */
INLINE bool any_missing(const struct key_rows *rows) {
    uint32_t any = 0;
#pragma unroll
    for (int n = 0; n < (BLOCK_N + 31) / 32; ++n) any |= rows->missing[n];
    return any != 0;
}

/* Those of a lane's bits (scores.h) whose key has no row; key: the first of them, in the block. */
SELDOM uint32_t missing_bits(const struct key_rows *rows, int key, int n_tiles) {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int at = key + 8 * n + (int)threadIdx.x % 4 * 2 + e;
            if (rows->missing[at / 32] >> at % 32 & 1) bits |= 1u << bit_of(n, e) | 1u << bit_of(n, 2 + e);
        }
    return bits;
}

/* ---------------------------------------------------------------------------------------------------------- copies -- */

#if CACHE == 3
/* Copies K and V of a block; `whole`: all rows are there. As in load_rows() a thread keeps to one chunk and steps over rows.
 */
INLINE void gather_pages(unsigned char *stage, const struct params *p, const struct key_rows *rows, bool whole) {
    const int chunk = (int)threadIdx.x % CHUNKS_OF_ROW, own = (int)threadIdx.x / CHUNKS_OF_ROW;
    const unsigned char *const k = (const unsigned char *)p->k.data + 16 * chunk;
    const unsigned char *const v = (const unsigned char *)p->v.data + 16 * chunk;
#pragma unroll
    for (int first = 0; first < ROW_COUNT; first += 4) {
        const uint4 four = *(const uint4 *)&rows->at[own * ROW_COUNT + first];
        const uint32_t at[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            unsigned char *const to = stage + chunk_at(DIM * ELEMENT_BYTES, own + (first + n) * ROW_STEP, chunk);
            if (whole) { /* a size that is known takes fewer instructions */
                cp_async_16(shared_address(to), k + (uint64_t)at[n] * 16, 16);
                cp_async_16(shared_address(to + K_BYTES), v + (uint64_t)at[n] * 16, 16);
            } else {
                const bool there = at[n] != NO_ROW;
                const uint64_t from = there ? (uint64_t)at[n] * 16 : 0;
                cp_async_16(shared_address(to), k + from, there ? 16 : 0);
                cp_async_16(shared_address(to + K_BYTES), v + from, there ? 16 : 0);
            }
        }
    }
}
#endif

/* What a tile is copied from: one tensor's rows of a block. */
struct gathered {
    const unsigned char *const *rows;
    int column, columns; /* the first of the tile, and those of the tensor */
    bool aligned;
    bool whole; /* all rows are there */
};

/* Whether a tile can be copied in whole chunks, whose size the instruction then has; a size that is worked out costs five
 * more, a chunk. */
INLINE bool is_whole(const struct gathered *from, int row_elements) {
    return from->whole && from->columns - from->column >= row_elements && (!FEATURES || from->aligned);
}

/* Reads of shared memory that are under way at a time: a copy orders them, so that each would wait for the one before. */
enum { BATCH = 4 };

/* Copies a tile [BLOCK_N][row_elements] of elements. As in load_rows() a thread keeps to one chunk and steps over rows. */
INLINE void gather_elements(unsigned char *tile, const struct gathered *from, int row_elements) {
    const int chunks = row_elements / CHUNK, step = THREADS >= chunks ? THREADS / chunks : 1, count = BLOCK_N / step;
    const int rounds = THREADS >= chunks ? 1 : chunks / THREADS;
    const bool whole = is_whole(from, row_elements);
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
        const int chunk = (int)threadIdx.x % chunks + round * THREADS, column = from->column + chunk * CHUNK;
        const int own = THREADS >= chunks ? (int)threadIdx.x / chunks : 0;
        if (whole) {
#pragma unroll
            for (int first = 0; first < count; first += BATCH) {
                const unsigned char *row[BATCH];
#pragma unroll
                for (int n = 0; n < BATCH; ++n)
                    if (first + n < count) row[n] = from->rows[own + (first + n) * step];
#pragma unroll
                for (int n = 0; n < BATCH; ++n)
                    if (first + n < count)
                        cp_async_16(
                            shared_address(tile + chunk_at(row_elements * ELEMENT_BYTES, own + (first + n) * step, chunk)),
                            row[n] + column * ELEMENT_BYTES, 16);
            }
        } else {
#pragma unroll 1
            for (int n = 0; n < count; ++n) {
                const unsigned char *row = from->rows[own + n * step];
                load_chunk(tile + chunk_at(row_elements * ELEMENT_BYTES, own + n * step, chunk),
                           (const element *)row + column, row ? from->columns - column : 0, from->aligned);
            }
        }
    }
}

/* 16 bytes of stored numbers, of which `there` are the tensor's. */
INLINE uint4 stored_chunk(const unsigned char *from, int there, bool aligned) {
    if (aligned && there >= 16) return *(const uint4 *)from;
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < 16; ++n)
        if (n < there) words[n / 4] |= (uint32_t)from[n] << (n % 4 * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Puts the elements of 16 stored bytes into the tile. */
INLINE void put_widened(unsigned char *tile, int row_elements, int bytes, int dtype, int row, int chunk, uint4 stored) {
    const int row_bytes = row_elements * ELEMENT_BYTES;
#if defined(ELEMENT_FP32)
    float4 chunks[4];
    widen_chunk(stored, dtype, chunks);
#pragma unroll
    for (int n = 0; n < 4; ++n)
        if (n * bytes < 4) *(float4 *)(tile + chunk_at(row_bytes, row, chunk * 4 / bytes + n)) = chunks[n];
#else
    uint4 chunks[2];
    widen_chunk(stored, dtype, chunks);
#pragma unroll
    for (int n = 0; n < 2; ++n) *(uint4 *)(tile + chunk_at(row_bytes, row, 2 * chunk + n)) = chunks[n];
#endif
}

/* What a thread does with its share of a tile of stored numbers, [BLOCK_N][row_elements]; it widens what it has copied. */
enum stored_step { COPY_STORED, WIDEN_COPIED, COPY_AND_WIDEN };

INLINE void gather_stored(enum stored_step step, unsigned char *tile, unsigned char *stored, const struct gathered *from,
                          int row_elements, int bytes, int dtype) {
    const uint32_t chunks = (uint32_t)(row_elements * bytes / 16), count = BLOCK_N * chunks;
    const bool whole = is_whole(from, row_elements);
    const unsigned char *const *rows = from->rows;
    if (step == COPY_STORED && whole) {
#pragma unroll
        for (uint32_t at = threadIdx.x; at < count; at += THREADS)
            cp_async_16(shared_address(stored + 16 * at), rows[at / chunks] + from->column * bytes + at % chunks * 16, 16);
        return;
    }
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < count; first += BATCH * THREADS) {
        uint4 now[BATCH];
#pragma unroll
        for (uint32_t n = 0; n < BATCH; ++n) {
            const uint32_t at = first + n * THREADS, chunk = at % chunks;
            if (at >= count) continue;
            if (step == WIDEN_COPIED) {
                now[n] = *(const uint4 *)(stored + 16 * at);
            } else {
                const unsigned char *row = rows[at / chunks];
                now[n] = stored_chunk(row + from->column * bytes + 16 * chunk,
                                      row ? (from->columns - from->column) * bytes - 16 * (int)chunk : 0,
                                      !FEATURES || from->aligned);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < BATCH; ++n) {
            const uint32_t at = first + n * THREADS;
            if (at >= count) continue;
            if (step == COPY_STORED)
                *(uint4 *)(stored + 16 * at) = now[n];
            else
                put_widened(tile, row_elements, bytes, dtype, (int)(at / chunks), (int)(at % chunks), now[n]);
        }
    }
}

/* A tile of either kind; stored: memory of the step, for numbers that are widened. */
INLINE void gather_tile(enum stored_step step, unsigned char *tile, unsigned char *stored, const struct gathered *from,
                        int row_elements, int dtype) {
    if (dtype == ELEMENT_DTYPE)
        gather_elements(tile, from, row_elements);
    else if (dtype == CUDA_INT8)
        gather_stored(step, tile, stored, from, row_elements, 1, CUDA_INT8);
    else if (dtype == CUDA_FP8)
        gather_stored(step, tile, stored, from, row_elements, 1, CUDA_FP8);
#if defined(ELEMENT_FP32)
    else
        gather_stored(step, tile, stored, from, row_elements, 2, dtype);
#endif
}

#endif
