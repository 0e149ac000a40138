/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.h: where strobe_append writes the keys of new tokens, and at which positions they stand: the same text for the CPU
 * and the GPU. Lengths, slots and page tables are read where they lie; what they name outside of the cache is nowhere,
 * whatever numbers they hold: sums of them wrap around. */
#ifndef STROBE_MATH_APPEND_H
#define STROBE_MATH_APPEND_H

#include "math/quantise.h"

/* One of q, k, v: as for strobe_quantise, but that `to` and its strides are the cache's for k and v, pages or batch entries
 * first, and may be of any dtype; block is 1, or 0 where scales are given. */
struct append_tensor {
    struct quantise_tensor t;
    int32_t to_dtype;
    int32_t cached; /* k or v */
};

/* The new tokens of a call, and the cache. */
struct append_cache {
    const void *cu_seqlens, *used, *lengths, *positions; /* of index_bits; NULL: none */
    const void *cache_used, *cache_cu;                   /* lengths after the call, of cache_bits; NULL: none */
    const int64_t *slots;
    const int32_t *page_table; /* NULL: not in pages, or keys are named by slots */
    int64_t table_stride, page_size;
    int64_t seq_new;          /* tokens of a sequence, where neither array says it */
    int64_t longest;          /* keys of a sequence at most; all of it where no array says a length */
    int64_t entries, rows;    /* of the cache: pages and their slots, or batch entries and keys, or one and packed keys */
    int64_t q_start, k_start; /* positions of row 0 and key 0 */
    int32_t index_bits, cache_bits;
    int32_t q_at_length;
};

struct append_place {
    int64_t entry, row; /* entry -1: nowhere */
};

STROBE_INLINE int64_t append_entry(const void *entries, int32_t bits, int64_t at) {
    return bits == 64 ? ((const int64_t *)entries)[at] : ((const int32_t *)entries)[at];
}

STROBE_INLINE int64_t append_sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
STROBE_INLINE int64_t append_difference(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

/* Of numbers that are not negative: 32 bits where they suffice, since a GPU takes much longer over 64. */
STROBE_INLINE int64_t append_quotient(int64_t a, int64_t b) {
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* The new tokens of a sequence. */
STROBE_INLINE int64_t append_tokens(const struct append_cache *c, int64_t sequence) {
    if (c->used) return append_entry(c->used, c->index_bits, sequence);
    if (!c->cu_seqlens) return c->seq_new;
    return append_difference(append_entry(c->cu_seqlens, c->index_bits, sequence + 1),
                             append_entry(c->cu_seqlens, c->index_bits, sequence));
}

/* The keys that a sequence has room for. */
STROBE_INLINE int64_t append_room(const struct append_cache *c, int64_t sequence) {
    if (!c->cache_cu) return c->longest;
    return append_difference(append_entry(c->cache_cu, c->cache_bits, sequence + 1),
                             append_entry(c->cache_cu, c->cache_bits, sequence));
}

/* Its length before the call. */
STROBE_INLINE int64_t append_length(const struct append_cache *c, int64_t sequence) {
    if (c->lengths) return append_entry(c->lengths, c->index_bits, sequence);
    const int64_t after = c->cache_used ? append_entry(c->cache_used, c->cache_bits, sequence) : append_room(c, sequence);
    return append_difference(after, append_tokens(c, sequence));
}

/* The position of row `row` of a sequence of q, k or v. */
STROBE_INLINE int64_t append_position(const struct append_cache *c, const struct append_tensor *t, int64_t sequence,
                                      int64_t row) {
    const int64_t first = c->positions ? append_entry(c->positions, c->index_bits, sequence) : append_length(c, sequence);
    if (t->cached) return append_sum(append_sum(c->k_start, first), row);
    return append_sum(append_sum(c->q_start, first), c->q_at_length ? 0 : row);
}

/* Where the key of token `row` of a sequence goes; at: the token's number in memory, with which its slot is found. */
STROBE_INLINE struct append_place append_place_of(const struct append_cache *c, int64_t sequence, int64_t row, int64_t at) {
    const struct append_place nowhere = {-1, 0};
    struct append_place place;
    if (c->slots) {
        const int64_t slot = c->slots[at];
        if (slot < 0) return nowhere;
        place.entry = append_quotient(slot, c->rows), place.row = slot - place.entry * c->rows;
        return place.entry < c->entries ? place : nowhere;
    }
    const int64_t length = append_length(c, sequence), room = append_room(c, sequence), key = append_sum(length, row);
    if (row < 0 || length < 0 || key < 0 || key >= room) return nowhere;
    place.entry = sequence, place.row = key;
    if (c->cache_cu) {
        place.entry = 0, place.row = append_sum(append_entry(c->cache_cu, c->cache_bits, sequence), key);
        return place.row >= 0 && place.row < c->rows ? place : nowhere;
    }
    if (!c->page_table) return place;
    const int64_t page = append_quotient(key, c->page_size);
    place.entry = c->page_table[sequence * c->table_stride + page], place.row = key - page * c->page_size;
    return place.entry >= 0 && place.entry < c->entries ? place : nowhere;
}

#endif
