/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_load.h: brings blocks of keys to shared memory by cp.async, of pages of any size too: a warp's lanes look up the
 * page of a key each, one block ahead, and hand them round. On an H200 such copies, of two CTAs a multiprocessor, read
 * faster than tensor copies, and in any order (docs/kernels/cuda.md). */
#ifndef STROBE_CUDA_SM80_DECODE_LOAD_H
#define STROBE_CUDA_SM80_DECODE_LOAD_H

#include "cuda/device/key_scales.h"
#include "cuda/ptx/memory.h"
#include "cuda/sm80/decode_schedule.h"
#include "cuda/sm80/load.h"

/* A stage: K, V, then with bytes the scales of K, of V. */
enum {
    LOOKUPS = BLOCK_N / 32, /* of a lane */
    ROW_BYTES = DIM * STORED_BYTES,
    ROW_CHUNK = 16 / STORED_BYTES, /* numbers of a copy */
    K_BYTES = BLOCK_N * ROW_BYTES,
    SCALE_BYTES = STORED_BYTES == 1 ? BLOCK_N * (int)sizeof(float) : 0,
    STAGE_BYTES = 2 * (K_BYTES + SCALE_BYTES),
};

/* chunk_at() of rows of a stage, of which the shortest have four chunks, so that two share the banks. */
INLINE uint32_t stage_chunk_at(int row, int chunk) {
    return ROW_BYTES >= 128 ? chunk_at(ROW_BYTES, row, chunk) : (uint32_t)(row * ROW_BYTES + ((chunk ^ (row / 2 & 3)) << 4));
}

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
INLINE void copy_row(unsigned char *to, const stored *k, const stored *v, int k_bytes, int v_bytes) {
    cp_async_16(shared_address(to), k, k_bytes);
    cp_async_16(shared_address(to) + K_BYTES, v, v_bytes);
}

/* Whether a block has all its keys and rows all their columns: sizes of copies that are constants save instructions. */
INLINE bool is_whole(const struct params *p, int keys) { return keys >= BLOCK_N && p->dim == DIM && p->dim_v == DIM; }

#if defined(STORED_DTYPE)
/* What stands for scales that are not given. */
static __device__ const float no_scale = 1;

/* Where the scales of a tensor's keys begin, and the steps from one to the next, of pages and of keys. */
struct scales {
    const float *at;
    int64_t page, key;
};
INLINE struct scales scales_of(const float *scale, const int64_t *stride, const struct params *p, const struct job *t) {
    struct scales x = {&no_scale, 0, 0};
    if (!scale) return x;
    x.at = scale + t->kv * stride[2];
    if (p->cache.scale_block == 0)
        x.at += t->b * stride[0];
    else
        x.page = stride[0], x.key = stride[1];
    return x;
}

/* Copies of the scales of the block at j0: each thread has a key, of its own warp's look-ups. Keys that are not there have
 * the scale 0. */
INLINE void load_scales(const struct params *p, const struct segment *s, const struct lookup *lookup, unsigned char *stage,
                        int j0) {
    static_assert(BLOCK_N <= THREADS && BLOCK_N % 32 == 0, "a thread has a key");
    const int key = (int)threadIdx.x;
    if (key >= BLOCK_N) return;
    const struct scales k = scales_of(p->cache.k_scale, p->cache.k_scale_stride, p, &s->t);
    const struct scales v = scales_of(p->cache.v_scale, p->cache.v_scale_stride, p, &s->t);
    float *const to = (float *)(stage + 2 * K_BYTES) + key;
    int64_t page = s->t.batch_k, slot = s->t.first_key + j0 + key;
    bool there = j0 + key < s->t.keys;
    if (p->cache.page_table) {
        int its = lookup->page[0];
#pragma unroll
        for (int n = 1; n < LOOKUPS; ++n)
            if (key / 32 == n) its = lookup->page[n];
        there = (unsigned)its < (unsigned)p->cache.pages; /* past the end it is -1 */
        page = its, slot = (unsigned)slot % (unsigned)p->cache.page_size;
    } else if (p->cache.scale_block > 1) {
        slot /= p->cache.scale_block;
    }
    if (there) {
        cp_async_4(shared_address(to), k.at + (page * k.page + slot * k.key));
        cp_async_4(shared_address(to + BLOCK_N), v.at + (page * v.page + slot * v.key));
    } else {
        to[0] = to[BLOCK_N] = 0;
    }
}
#endif

/* Another lane's number. */
INLINE int64_t from_lane(int64_t x, int lane) {
    const uint32_t low = __shfl_sync(0xffffffffu, (uint32_t)x, lane % 32);
    return (int64_t)((uint64_t)(uint32_t)__shfl_sync(0xffffffffu, (uint32_t)((uint64_t)x >> 32), lane % 32) << 32 | low);
}

/* Bytes of a chunk of which `left` numbers are the tensor's. */
INLINE int bytes_there(int left) { return (left < 0 ? 0 : left < ROW_CHUNK ? left : ROW_CHUNK) * STORED_BYTES; }

/* What a thread copies of a block: a chunk of rows own, own + STEP, ... */
struct share_of_block {
    int chunk, own;
    int k_bytes, v_bytes; /* of the chunk that the tensors have */
    int end;              /* keys that are there, from the block's first on */
    const stored *k, *v;  /* row 0 of the sequence or of page 0, from the chunk on */
};
enum { CHUNKS = DIM / ROW_CHUNK, STEP = THREADS / CHUNKS, ROUNDS = BLOCK_N / STEP };
static_assert(STEP % 8 == 0 || STEP == 4, "stage_chunk_at() repeats after 8 rows");

/* Copies of contiguous or packed keys, of which the block's first is `first`. */
INLINE void load_contiguous(const struct params *p, const struct segment *s, const struct share_of_block *x,
                            unsigned char *stage, int64_t first) {
    const stored *k = x->k + (first + x->own) * p->k.row, *v = x->v + (first + x->own) * p->v.row;
    if (is_whole(p, x->end)) {
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n, k += STEP * p->k.row, v += STEP * p->v.row)
            copy_row(stage + stage_chunk_at(x->own + n * STEP, x->chunk), k, v, 16, 16);
        return;
    }
#pragma unroll 1
    for (int n = 0; n < ROUNDS; ++n, k += STEP * p->k.row, v += STEP * p->v.row) {
        const bool there = x->own + n * STEP < x->end;
        copy_row(stage + stage_chunk_at(x->own + n * STEP, x->chunk), there ? k : s->k, there ? v : s->v,
                 there ? x->k_bytes : 0, there ? x->v_bytes : 0);
    }
}

/* The lane's number of those look-ups that have the thread's row of round n. */
#define OF_ROUND(numbers, n) (STEP > 32 && x->own / 32 ? (numbers)[(n)*STEP / 32 + (STEP > 32)] : (numbers)[(n)*STEP / 32])
static_assert(STEP <= 64, "rows of a round are among two look-ups");

/* Copies of keys in pages, of which the block's first is `first`, counted from the sequence's first. */
INLINE void load_pages(const struct params *p, const struct share_of_block *x, const struct lookup *lookup,
                       unsigned char *stage, bool missing, unsigned first) {
    const int lane = (int)threadIdx.x % 32;
    const unsigned size = (unsigned)p->cache.page_size;
    if (!missing && is_whole(p, x->end)) {
        int64_t k_at[LOOKUPS], v_at[LOOKUPS]; /* of the lane's keys: where their rows begin */
#pragma unroll
        for (int n = 0; n < LOOKUPS; ++n) {
            const unsigned slot = (first + (unsigned)(lane + 32 * n)) % size;
            k_at[n] = lookup->page[n] * p->k.batch + slot * p->k.row;
            v_at[n] = lookup->page[n] * p->v.batch + slot * p->v.row;
        }
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const int row = x->own + n * STEP;
            copy_row(stage + stage_chunk_at(row, x->chunk), x->k + from_lane(OF_ROUND(k_at, n), row),
                     x->v + from_lane(OF_ROUND(v_at, n), row), 16, 16);
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        const int row = x->own + n * STEP;
        int page = __shfl_sync(0xffffffffu, OF_ROUND(lookup->page, n), row % 32);
        const unsigned slot = (first + (unsigned)row) % size;
        const bool there = (unsigned)page < (unsigned)p->cache.pages;
        if (!there) page = 0;
        copy_row(stage + stage_chunk_at(row, x->chunk), x->k + (page * p->k.batch + slot * p->k.row),
                 x->v + (page * p->v.batch + slot * p->v.row), there ? x->k_bytes : 0, there ? x->v_bytes : 0);
    }
}

/* Whether a key of the block has no page although the sequence has it; *shown says which. Every warp has looked up all. */
INLINE bool note_missing(struct shown *shown, const struct params *p, const struct lookup *lookup, int end) {
    const int lane = (int)threadIdx.x % 32;
    bool missing = false;
#pragma unroll
    for (int n = 0; n < LOOKUPS; ++n)
        missing = missing || ((unsigned)lookup->page[n] >= (unsigned)p->cache.pages && lane + 32 * n < end);
    missing = __any_sync(0xffffffffu, missing);
    shown->missing = missing;
    if (missing)
#pragma unroll
        for (int n = 0; n < LOOKUPS; ++n) shown->key[lane + 32 * n] = (unsigned)lookup->page[n] < (unsigned)p->cache.pages;
    return missing;
}

/* Sends for what the boolean mask has of the block at j0, to L2. */
INLINE void send_for_mask(const struct params *p, const struct job *t, int j0) {
    const int last = (j0 + BLOCK_N < t->keys ? j0 + BLOCK_N : t->keys) - 1;
    static_assert(BLOCK_N <= 128, "a row's bytes touch two lines at most");
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < 2 * t->rows * p->group; at += THREADS) {
        const int64_t row = score_offset(&p->bool_mask, t, place_of(p, t, at / 2));
        prefetch_line((const uint8_t *)p->bool_mask.data + row + (at % 2 ? last : j0));
    }
}

/* Copies of K and V of the block at j0, with numbers of a byte also of their scales. */
INLINE void load_block(const struct params *p, const struct segment *s, const struct lookup *lookup, unsigned char *stage,
                       struct shown *shown, int j0) {
    struct share_of_block x = {(int)threadIdx.x % CHUNKS, (int)threadIdx.x / CHUNKS};
    x.k_bytes = bytes_there(p->dim - x.chunk * ROW_CHUNK), x.v_bytes = bytes_there(p->dim_v - x.chunk * ROW_CHUNK);
    x.k = s->k + x.chunk * ROW_CHUNK, x.v = s->v + x.chunk * ROW_CHUNK, x.end = s->t.keys - j0;
#if defined(STORED_DTYPE)
    load_scales(p, s, lookup, stage, j0);
#endif
    if (p->cache.page_table)
        load_pages(p, &x, lookup, stage, note_missing(shown, p, lookup, x.end), (unsigned)(s->t.first_key + j0));
    else
        load_contiguous(p, s, &x, stage, s->t.first_key + j0);
    if (p->bool_mask.data) send_for_mask(p, &s->t, j0);
}

/* Segments that are described when one is entered; with pages one more, whose page is looked up. */
INLINE int described_ahead(const struct params *p) { return p->cache.page_table ? 2 : 1; }

/* Asks for the CTA's next block, if there is one, and looks ahead to the one after it. One thread describes segments, as
 * they are entered. Closes a group of copies in any case. */
INLINE void load_next(struct loader *l, const struct decode_params *d, struct segment *segments, struct walk *walk,
                      unsigned char *stage, struct shown *shown) {
    const struct params *p = &d->p;
    if (l->left > 0) {
        const struct segment *s = &segments[l->segment % SEGMENTS];
        load_block(p, s, &l->lookup, stage, shown, s->first + l->block * BLOCK_N);
        if (l->block == 0 && threadIdx.x == 0)
            next_segment(&segments[(l->segment + described_ahead(p)) % SEGMENTS], walk, d);
        --l->left;
        if (++l->block == s->blocks) ++l->segment, l->block = 0;
        if (l->left > 0 && p->cache.page_table) {
            const struct segment *next = &segments[l->segment % SEGMENTS];
            look_up(&l->lookup, p, next, next->first + l->block * BLOCK_N);
        }
    }
    cp_async_commit();
}

/* Eight columns of a row of q, of which `left` are there. */
INLINE uint4 query_chunk(const struct params *p, const element *from, int left) {
    if (left >= CHUNK && p->q.aligned) return *(const uint4 *)from;
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
        if (e < left) words[e / 2] |= (uint32_t)from[e] << e % 2 * 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

#if defined(STORED_DTYPE)
/* A pair of elements of q, of either type. */
INLINE float2 query_pair(const struct params *p, uint32_t pair) {
    return p->q.dtype == CUDA_BF16 ? make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u))
                                   : make_float2(f16_to_float((uint16_t)pair), f16_to_float((uint16_t)(pair >> 16)));
}

/* Sixteen columns of a row of q, its PAIRS lanes together: to fp16, relative to the power of two that is returned, in the
 * order of the columns of K (decode_bytes.h). */
INLINE float order_as_bytes(const struct params *p, uint4 *low, uint4 *high) {
    const uint32_t pairs[8] = {low->x, low->y, low->z, low->w, high->x, high->y, high->z, high->w};
    uint32_t to[8];
    float most = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float2 x = query_pair(p, pairs[n]);
        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
    }
#pragma unroll
    for (int w = DIM / 32; w > 0; w /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
    const int exponent = (int)(__float_as_uint(most) >> 23); /* of zeros and denormals 0, of an infinity 255 */
    const int shift = exponent < 27 ? 114 : exponent < 255 ? 141 - exponent : 0; /* the largest: from 2^14 to 2^15 */
    const float factor = __uint_as_float((uint32_t)(127 + shift) << 23);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float2 x = query_pair(p, pairs[n]);
        to[n] = pack(x.x * factor, x.y * factor);
    }
#if defined(STORED_INT8) /* columns 4 t, 4 t + 2, then 4 t + 1, 4 t + 3 */
    *low = make_uint4(__byte_perm(to[0], to[1], 0x5410), __byte_perm(to[2], to[3], 0x5410),
                      __byte_perm(to[4], to[5], 0x5410), __byte_perm(to[6], to[7], 0x5410));
    *high = make_uint4(__byte_perm(to[0], to[1], 0x7632), __byte_perm(to[2], to[3], 0x7632),
                       __byte_perm(to[4], to[5], 0x7632), __byte_perm(to[6], to[7], 0x7632));
#else /* 4 t, 4 t + 1, then 4 t + 2, 4 t + 3 */
    *low = make_uint4(to[0], to[2], to[4], to[6]);
    *high = make_uint4(to[1], to[3], to[5], to[7]);
#endif
    return __uint_as_float((uint32_t)(127 - shift) << 23);
}
#endif

/* Q's packed rows, as load_packed() lays them, but by plain loads: copies of K and V are on their way, in groups of their
 * own. scales: [BLOCK_M], with numbers of a byte. */
INLINE void load_query(unsigned char *tile, float *scales, const struct params *p, const struct job *t) {
    enum { PAIRS = DIM / (2 * CHUNK) };
    const int end = t->rows * p->group;
    static_assert(BLOCK_M * PAIRS % 32 == 0, "a warp has whole rows");
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < BLOCK_M * PAIRS; at += THREADS) {
        const int row = at / PAIRS, chunk = at % PAIRS * 2, left = row < end ? p->dim - chunk * CHUNK : 0;
        const int i = row / p->group;
        const element *from = t->q + i * p->q.row + (row - i * p->group) * p->q.head + chunk * CHUNK;
        uint4 low = query_chunk(p, from, left), high = query_chunk(p, from + CHUNK, left - CHUNK);
#if defined(STORED_DTYPE)
        const float scale = order_as_bytes(p, &low, &high);
        if (chunk == 0) scales[row] = scale;
#else
        (void)scales;
#endif
        *(uint4 *)(tile + chunk_at(DIM * ELEMENT_BYTES, row, chunk)) = low;
        *(uint4 *)(tile + chunk_at(DIM * ELEMENT_BYTES, row, chunk + 1)) = high;
    }
}

#endif
