/* SPDX-License-Identifier: BSD-3-Clause
 *
 * prefetch.h: what decoding on tiles asks memory for ahead of time. K and V are read as they lie, 16 keys at a time with
 * all their columns, so that memory is walked page by page; what is read about a page later is asked for on the way. Without
 * it amx/decode.c takes 1.1 times as long, and 1.45 times where tile products are slow (docs/kernels/cpu.md, "What
 * disturbs"). */
#ifndef STROBE_CPU_AMX_AHEAD_H
#define STROBE_CPU_AMX_AHEAD_H

#include "cpu/vector/rows.h"

/* The order of a block: 16 keys of K at a time, exponentials, 16 keys of V at a time. Each has a slot. */
enum { KEY_TILES = BLOCK_KEYS / TILE_SIDE, OF_EXPONENTIALS = KEY_TILES, OF_VALUES, SLOTS = OF_VALUES + KEY_TILES };

enum {
    LINE = 64,            /* bytes */
    SHORT_ROW = 2 * LINE, /* bytes: a page is 32 keys or more */
    NEAR_BYTES = 1 << 20, /* of K and V: they may be in L2, where asking is a loss */
};

/* What is asked for in each slot: 16 rows of V, this block's K or the next one's. Addresses wrap: nothing need be there. */
struct ahead {
    uintptr_t tile[SLOTS], row[SLOTS]; /* the first row, 0 where nothing is asked for; bytes to the next */
    uintptr_t bytes;                   /* of a row of V */
};

/* Asks for a line of each row of a slot. */
static inline void ask_line(const struct ahead *ahead, int64_t slot, int64_t byte) {
    for (uintptr_t j = 0; ahead->tile[slot] && j < TILE_SIDE; ++j)
        __builtin_prefetch((const void *)(ahead->tile[slot] + (uintptr_t)byte + j * ahead->row[slot]));
}

/* Asks for rows [first, end) of a slot, as they lie in memory: a line of all rows loses what this gains under the
 * exponentials. */
static inline void ask_rows(const struct ahead *ahead, int64_t slot, int64_t first, int64_t end) {
    for (int64_t j = first; ahead->tile[slot] && j < end; ++j)
        for (uintptr_t byte = 0; byte < ahead->bytes; byte += LINE)
            __builtin_prefetch((const void *)(ahead->tile[slot] + (uintptr_t)j * ahead->row[slot] + byte));
}

/* Head number h of `heads` reads k and v; then the next head its own, or the first one the next block. */
static inline struct ahead look_ahead(const strobe_attention *a, const void *k, const void *v, int64_t h, int64_t heads) {
    enum { NONE = -1 };
    static const int8_t rows_16[2][SLOTS] = {{1, 2, 3, NONE, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9, NONE}};
    const uintptr_t bytes = strobe__dtype_bytes(a->k.dtype), head = (uintptr_t)a->k.stride[2] * bytes;
    const uintptr_t k_row = (uintptr_t)a->k.stride[1] * bytes, v_row = (uintptr_t)a->v.stride[1] * bytes;
    const uintptr_t next = (uintptr_t)k + (h + 1 < heads ? head : BLOCK_KEYS * k_row - (uintptr_t)h * head);
    struct ahead ahead = {.bytes = (uintptr_t)a->dim_v * bytes};
    for (int64_t slot = 0; slot < SLOTS; ++slot) {
        const int64_t n = rows_16[(uintptr_t)a->dim * bytes <= SHORT_ROW][slot];
        const bool value = n / KEY_TILES == 1;
        ahead.row[slot] = value ? v_row : k_row;
        if (n == NONE) continue;
        const uintptr_t first = value ? (uintptr_t)v : n < KEY_TILES ? (uintptr_t)k : next;
        ahead.tile[slot] = first + (uintptr_t)(n % KEY_TILES * TILE_SIDE) * ahead.row[slot];
    }
    return ahead;
}

/* Whether K and V, of up to `keys` keys, are too much for L2. */
static inline bool worth_asking(const strobe_attention *a, int64_t keys) {
    const double columns = (double)(a->batch * a->heads_kv) * (double)(a->dim + a->dim_v);
    return columns * (double)keys * (double)strobe__dtype_bytes(a->k.dtype) > NEAR_BYTES;
}

#endif
