/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile.h: which keys a CTA of backward.cu has, which rows see them, in which order it walks over these, and how rows of
 * 16-bit elements are read and written. Included after ROWS and TILE_KEYS are defined. */
#ifndef STROBE_CUDA_SM90_BACKWARD_TILE_H
#define STROBE_CUDA_SM90_BACKWARD_TILE_H

#include "cuda/device/sequence.h"
#include "cuda/sm90/backward/params.h"

/* dQ of a block of rows is computed, and its sums are kept, in tiles of 64 x 64 elements: in one row of tiles or in one
 * column of them. */
enum {
    DQ_TILE = 64 * 64,
    BLOCK_ELEMENTS = ROWS * HEAD_DIM,
    DQ_TILES = BLOCK_ELEMENTS / DQ_TILE,
    ROW_PARTS = ROWS / 64, /* 1: a tile has 64 of the columns, 2: it has 64 of the rows */
    /* Of a thread, from the first column on: those of columns that are computed. A tile's other words are not written. */
    DQ_WORDS = COLUMNS < 64 ? COLUMNS / 2 : 32,
};

/* Where what happens to a score keeps an infinity, the band is looked at once: it makes hidden scores infinite (mask_scores
 * of steps.h), and is not asked again for P and dS. */
enum {
    MASKS_SCORES = (FEATURE_CLASS == FEATURES_NONE || FEATURE_CLASS == FEATURES_ALIBI || FEATURE_CLASS == FEATURES_SINKS) &&
                   !HAS_SCORE_FUNCTION
};

/* A sequence's rows or keys in its tensor. */
struct span {
    int batch; /* index of the first axis, 0 where sequences are packed */
    int first, count;
};

INLINE struct span span_of(const void *offsets, const void *used, int index64, int batch, int all) {
    struct span span = {batch, 0, all};
    int64_t count = all;
    if (offsets) {
        span.batch = 0, span.first = (int)entry(offsets, index64, batch);
        count = entry(offsets, index64, batch + 1) - span.first;
    }
    if (used) count = entry(used, index64, batch);
    span.count = clamp(count, all);
    return span;
}

INLINE struct span rows_of(const struct sm90_backward_params *p, int batch) {
    return span_of(p->cu_seqlens_q, p->used_q, p->index64, batch, p->seq_q);
}

/* The rows and keys of a batch entry, and their band (struct band32 of math/mask.h). exact_row.h asks the functions of
 * mask.h. What the main kernel asks is the same law written out, here and in score_terms.h: with these functions ptxas
 * arranges the main loop in another way, which can cost some percent ("Luck" in docs/kernels/sm90_backward.md). */
struct pair_of_spans {
    struct span rows, keys;
    int first_shift, end_shift;
};

INLINE struct pair_of_spans spans_of(const struct sm90_backward_params *p, int batch) {
    struct pair_of_spans s;
    s.rows = rows_of(p, batch), s.keys = span_of(p->cu_seqlens_k, p->used_k, p->index64, batch, p->seq_k);
    const int diagonal = p->bottom_right ? s.keys.count - s.rows.count : 0;
    s.first_shift = p->first_shift + diagonal, s.end_shift = p->end_shift + diagonal;
    return s;
}

/* What a CTA works on; it lies in shared memory, since registers are short. */
struct tile {
    struct pair_of_spans in;
    int head_kv, batch, key;
    int head_keys;              /* whose keys the tile has: of all shares of a K/V head */
    int first_block, end_block; /* causal skip: the walk goes over these blocks of ROWS rows, some of which see some key */
    int start_block, step;      /* of these, the one that the walk starts with; 1 or -1 */
    /* One, or none: with 64 bytes a tile, ptxas spills in the main loop of masks at d 64. NVRTC takes no array of none. */
    int unused[HAS_MASKS || HAS_SCORE_FUNCTION];
};

/* The block of keys of a head's `n`th tile, of which it has `blocks`. With even_keys_first a tile is two blocks of keys
 * shorter than the one that is taken before it, and so, having waited for it at the start, is done well before it: tiles
 * that follow on these CTAs start far enough apart not to wait for each other. */
INLINE int key_block_of(const struct sm90_backward_params *p, int n, int blocks, bool last_first) {
    const int even = (blocks + 1) / 2;
    if (last_first) return blocks - 1 - n;
    return !p->even_keys_first ? n : n < even ? 2 * n : 2 * (n - even) + 1;
}

/* Which keys a tile has: of which entry of the batch and head, and which block of them. */
struct tile_keys {
    int batch, head_kv, block;
    bool last_first; /* of the head, the last block of keys comes first */
};

/* Heads are taken a section at a time, the last heads in one large section. In a section the first keys come first: under a
 * causal mask most rows see them, and when long tiles come first, CTAs end together. With a fixed dQ order the last keys
 * come first in earlier sections, see struct walk. */
INLINE struct tile_keys keys_of_tile(const struct sm90_backward_params *p, int number) {
    const int all_heads = p->heads_kv * p->batch, early_heads = all_heads - p->last_heads;
    const bool is_late = number >= early_heads * p->key_blocks;
    const int section = is_late ? 0 : quotient(number, p->by_section_tiles);
    const int first_head = is_late ? early_heads : section * p->section_heads, left = early_heads - first_head;
    const bool is_whole = left >= p->section_heads;
    const int heads = is_late ? p->last_heads : is_whole ? p->section_heads : left;
    const struct divisor by_heads = is_late ? p->by_last_heads : is_whole ? p->by_section_heads : p->by_left_heads;
    const int in_section = number - first_head * p->key_blocks, n = quotient(in_section, by_heads);
    const int head = first_head + in_section - n * heads;
    struct tile_keys keys;
    keys.batch = quotient(head, p->by_heads_kv), keys.head_kv = head - keys.batch * p->heads_kv;
    keys.last_first = p->last_keys_first && !is_late;
    keys.block = key_block_of(p, n, p->key_blocks, keys.last_first);
    return keys;
}

/* The same where lengths differ: sequences one after the other, each of as many tiles as it has, in sections of its heads.
 * With a fixed dQ order they all walk as in the last section. */
INLINE struct tile_keys keys_of_ragged_tile(const struct sm90_backward_params *p, int number) {
    const struct sequence_at *at = p->sequences;
    int low = 0, high = p->batch;
#pragma unroll 1
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (at[middle].tile * p->heads_kv <= number)
            low = middle;
        else
            high = middle;
    }
    const int blocks = at[low + 1].tile - at[low].tile, in_sequence = number - at[low].tile * p->heads_kv;
    const int most = low + 1 == p->batch && p->last_heads > 0 ? p->last_heads : p->section_heads;
    const int first_head = in_sequence / (most * blocks) * most, left = p->heads_kv - first_head;
    const int heads = left < most ? left : most, in_section = in_sequence - first_head * blocks;
    struct tile_keys keys;
    keys.batch = at[low].batch, keys.head_kv = first_head + in_section % heads, keys.last_first = false;
    keys.block = key_block_of(p, in_section / heads, blocks, false);
    return keys;
}

/* How many tiles there are; p->tiles is that or more. */
INLINE int all_tiles(const struct sm90_backward_params *p) {
    return p->sequences ? p->sequences[p->batch].tile * p->heads_kv : p->tiles;
}

/* Tile `number`. */
INLINE struct tile tile_of(const struct sm90_backward_params *p, int number) {
    const struct tile_keys own = p->sequences ? keys_of_ragged_tile(p, number) : keys_of_tile(p, number);
    struct tile t;
    t.head_kv = own.head_kv, t.batch = own.batch, t.head_keys = quotient(t.head_kv, p->by_shares);
    t.key = own.block * TILE_KEYS;
    t.in = spans_of(p, t.batch);
    const int rows = t.in.rows.count, keys = t.in.keys.count,
              last = t.key + TILE_KEYS < keys ? t.key + TILE_KEYS - 1 : keys - 1;
    const int first_row = t.key - t.in.end_shift + 1, end_row = last - t.in.first_shift + 1;
    t.first_block = first_row > 0 ? first_row / ROWS : 0;
    t.end_block = end_row < 0 ? 0 : ((end_row < rows ? end_row : rows) + ROWS - 1) / ROWS;
    if (t.key >= keys || t.end_block < t.first_block) t.end_block = t.first_block;
    t.step = p->dq_semaphores && !own.last_first ? -1 : 1;
    t.start_block = t.step < 0 ? t.end_block - 1 : p->is_staggered ? t.key / ROWS % p->row_blocks : t.first_block;
    return t;
}

/* Tells the compiler that x is the same in all lanes of a warp: branches and descriptors of products are then scalar. */
INLINE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/* The blocks of rows that a CTA walks over, for each query head of its group. Where all rows see all keys, tiles start at
 * different blocks, so that they do not add to the same dQ at the same time.
 *
 * With a fixed dQ order a tile adds to a block of rows after the tiles of smaller number that see it, and follows them at
 * some distance. Under a causal mask, tiles that are taken from the last keys to the first walk from the diagonal on: each
 * comes to a block that it shares with the tile before it TILE_KEYS / ROWS blocks later than that, so that none waits. In
 * the last section long tiles have to come first, and where all rows see all keys all tiles have the same blocks: there
 * tiles are taken from the first keys on and walk from the last rows to the first, and those that start together wait for
 * each other at their first block. */
struct walk {
    int first, step, blocks; /* in blocks of rows */
};

INLINE struct walk walk_of(const struct tile *t) {
    const struct walk w = {t->start_block, t->step, t->end_block - t->first_block};
    return w;
}

/* After the last block comes the first, which is block 0 where a walk starts elsewhere. */
INLINE int next_block(const struct sm90_backward_params *p, const struct walk *walk, int m) {
    const int next = m + walk->step;
    return next == p->row_blocks ? 0 : next;
}

/* Where a consumer is: its block's first row; how many blocks of the query head, and heads of the group, are left, counting
 * the ones it is at. Blocks are counted below zero where the walk goes backwards. */
struct progress {
    int row, left, heads;
};

INLINE struct progress start(const struct sm90_backward_params *p, const struct tile *t) {
    const struct walk walk = walk_of(t);
    const struct progress at = {uniform(walk.first) * ROWS, uniform(walk.blocks * walk.step), p->group};
    return at;
}

INLINE bool is_last(const struct progress *at) { return (at->left == 1 || at->left == -1) && at->heads == 1; }

/* Goes to the next block of rows; returns whether a new query head begins. */
INLINE bool go_on(const struct sm90_backward_params *p, const struct tile *t, struct progress *at) {
    const int step = at->left > 0 ? 1 : -1;
    at->row += step * ROWS, at->left -= step;
    if (at->row == p->row_blocks * ROWS) at->row = 0;
    if (at->left != 0) return false;
    const struct walk walk = walk_of(t);
    at->row = uniform(walk.first) * ROWS, at->left = uniform(walk.blocks * walk.step), --at->heads;
    return true;
}

/* A block of ROWS rows of a query head. */
struct row_block {
    int batch, head, m;
    int64_t number; /* among all: [batch][heads_q][row_blocks] */
};

/* Among the blocks of packed sequences, the first that a sequence has: it and the next one's are far enough apart for its
 * rows, and at most a block further than that. */
INLINE int first_packed_block(const struct sm90_backward_params *p, int batch) {
    return (int)entry(p->cu_seqlens_q, p->index64, batch) / ROWS + batch;
}

/* The block that a CTA of KERNEL_prepare or KERNEL_finish has: from the last one of the last entry of the batch to the
 * first, since the main kernel begins with the first heads and ends with the last ones, which the L2 cache then has still.
 * Neighbouring CTAs have the same rows of neighbouring heads, which are neighbours in memory too. Behind a sequence's end it
 * has no rows. */
INLINE struct row_block row_block_of_cta(const struct sm90_backward_params *p) {
    const unsigned heads = (unsigned)(p->heads_kv * p->group), at = gridDim.x - 1 - blockIdx.x, block = at / heads;
    struct row_block b;
    b.head = (int)(at % heads);
    if (p->finds_rows) {
        int low = 0, high = p->batch;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (first_packed_block(p, middle) <= (int)block)
                low = middle;
            else
                high = middle;
        }
        b.batch = low, b.m = (int)block - first_packed_block(p, low);
        if (b.m < 0) b.m = p->row_blocks; /* rows in front of all sequences */
    } else {
        b.batch = (int)(block / (unsigned)p->row_blocks), b.m = (int)(block % (unsigned)p->row_blocks);
    }
    b.number = (int64_t)(b.batch * (int)heads + b.head) * p->row_blocks + b.m;
    return b;
}

/* The dQ order: how many tiles add to dQ of block m before this one. Tiles that walk backwards add in the order of their
 * keys, from the first keys that rows of the block see, with even_keys_first blocks of keys of even number before all
 * others; those that walk forwards from the last keys to the first. */
INLINE int dq_order_of(const struct sm90_backward_params *p, const struct tile *t, int m) {
    const int first_key = m * ROWS + t->in.first_shift, last_key = (m + 1) * ROWS + t->in.end_shift - 2;
    const int last = (last_key < t->in.keys.count ? last_key : t->in.keys.count - 1) / TILE_KEYS, own = t->key / TILE_KEYS;
    if (t->step > 0) return last - own;
    if (p->even_keys_first) return own % 2 ? last / 2 + 1 + own / 2 : own / 2;
    return own - (first_key > 0 ? first_key / TILE_KEYS : 0);
}

/* How many tiles the semaphore of dQ of block m has to count before this one may add. */
INLINE int order_of_adding(const struct sm90_backward_params *p, const struct tile *t, int m) {
    const int order = dq_order_of(p, t, m);
    return p->first_alone && order > 0 ? 1 : order;
}

/* A block of rows sees all of a warp's sixteen keys if its first row is from low to high. Uniform. Rows past a sequence's
 * end are zeros, and with MASKS_SCORES their lse makes P = 0; what a NaN or an infinity of a key does to them is found in
 * the sums, where these are searched. */
struct full_rows {
    int low, high;
};

INLINE struct full_rows full_rows_of(const struct sm90_backward_params *p, const struct tile *t, int key) {
    const struct pair_of_spans *in = &t->in;
    const int end = key - in->first_shift + 1, rows = in->rows.count;
    const struct full_rows full = {
        uniform(key + 16 - in->end_shift),
        uniform(key + 16 <= in->keys.count ? ((MASKS_SCORES && p->may_hide) || end < rows ? end : rows) - ROWS : -1)};
    return full;
}

/* Elements from a tensor's data to row `row` of a sequence. */
INLINE int64_t row_start(const struct sm90_rows *rows, const struct span *in, int row, int head) {
    return in->batch * rows->stride[0] + (int64_t)(in->first + row) * rows->stride[1] + head * rows->stride[2];
}

/* Loads eight elements of a row, zeros past its end. */
INLINE uint4 load_piece(const struct sm90_rows *rows, int64_t start, int column) {
    const uint16_t *from = (const uint16_t *)rows->data + start + column;
    if (column + 8 <= rows->columns && rows->aligned) return *(const uint4 *)from;
    uint32_t piece[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < 8; ++x)
        if (column + x < rows->columns) piece[x / 2] |= (uint32_t)from[x] << (x % 2 * 16);
    return make_uint4(piece[0], piece[1], piece[2], piece[3]);
}

/* Stores eight elements of a row, of those that it has. */
INLINE void store_piece(const struct sm90_rows *rows, int64_t start, int column, uint4 piece) {
    uint16_t *to = (uint16_t *)rows->data + start + column;
    if (column + 8 <= rows->columns && rows->aligned) {
        *(uint4 *)to = piece;
        return;
    }
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int x = 0; x < 8; ++x)
        if (column + x < rows->columns) to[x] = (uint16_t)(words[x / 2] >> (x % 2 * 16));
}

/* Four lanes, neighbours, hold a word each of four pieces of 16 bytes; returns the whole piece of the lane's number. */
INLINE uint4 gather_piece(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
    const uint32_t ab = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1), cd = __shfl_xor_sync(0xffffffffu, odd ? c : d, 1);
    const uint32_t low[2] = {odd ? ab : a, odd ? b : ab}, up[2] = {odd ? cd : c, odd ? d : cd};
    const uint32_t x = __shfl_xor_sync(0xffffffffu, high ? low[0] : up[0], 2);
    const uint32_t y = __shfl_xor_sync(0xffffffffu, high ? low[1] : up[1], 2);
    return high ? make_uint4(x, y, up[0], up[1]) : make_uint4(low[0], low[1], x, y);
}

/* Stores eight columns of a row of dK or dV, of those that it has. */
INLINE void store_gradients(const struct sm90_rows *to, int64_t start, int column, const float (&x)[8]) {
#if defined(GRADIENTS_FP32)
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (column + n < to->columns) ((float *)to->data)[start + column + n] = x[n];
#else
    store_piece(to, start, column, make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])));
#endif
}

#if defined(GRADIENTS_FP32)
#include "cuda/sm90/backward/store_fp32.h"
#endif

#endif
