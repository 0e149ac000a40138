/* SPDX-License-Identifier: BSD-3-Clause
 *
 * prefetch.h: software prefetching for decoding on tiles. The kernels read K and V in the order of memory, 16 keys with all
 * of their columns at a time, page by page. While one page is read, what is read about a page later is prefetched. Without
 * this both kernels are slower, most of all while tile products are slow (docs/kernels/cpu.md, "Decode"). */
#ifndef STROBE_CPU_AMX_PREFETCH_H
#define STROBE_CPU_AMX_PREFETCH_H

#include "cpu/vector/rows.h"

/* The work on a block of keys has nine slots: four products with 16 keys of K, the exponentials, four products with 16 keys
 * of V. Each slot prefetches 16 rows. */
enum { KEY_TILES = BLOCK_KEYS / TILE_SIDE, SLOT_EXPONENTIALS = KEY_TILES, SLOT_VALUES, SLOTS = SLOT_VALUES + KEY_TILES };

enum {
    LINE = 64,            /* bytes of a cache line */
    SHORT_ROW = 2 * LINE, /* bytes; in rows up to so long a page holds 32 keys or more, and slots prefetch 32 keys ahead */
    NEAR_BYTES = 1 << 20, /* of K and V: they may be in L2 (2 MiB), from where prefetching was measured to be a loss */
};

/* What each slot prefetches: 16 rows of V, of this block's K or of the next one's. Addresses wrap around, as nothing has to
 * be there. */
struct prefetch {
    uintptr_t tile[SLOTS], row[SLOTS]; /* address of the first row, 0: no prefetch; bytes to the next row */
    uintptr_t bytes;                   /* of a row of V */
};

/* Prefetches one line of each of a slot's rows, at byte `byte`. */
static inline void prefetch_line(const struct prefetch *prefetch, int64_t slot, int64_t byte) {
    for (uintptr_t j = 0; prefetch->tile[slot] && j < TILE_SIDE; ++j)
        __builtin_prefetch((const void *)(prefetch->tile[slot] + (uintptr_t)byte + j * prefetch->row[slot]));
}

/* Prefetches rows [first, end) of a slot, row by row in the order of memory, which is faster under the exponentials than
 * line by line. */
static inline void prefetch_rows(const struct prefetch *prefetch, int64_t slot, int64_t first, int64_t end) {
    for (int64_t j = first; prefetch->tile[slot] && j < end; ++j)
        for (uintptr_t byte = 0; byte < prefetch->bytes; byte += LINE)
            __builtin_prefetch((const void *)(prefetch->tile[slot] + (uintptr_t)j * prefetch->row[slot] + byte));
}

/* What head h of `heads` prefetches, with k and v the block that it reads. After it the next head reads the same block of
 * its own K and V, or after the last head the first one reads the next block. */
static inline struct prefetch plan_prefetch(const strobe_attention *a, const void *k, const void *v, int64_t h,
                                            int64_t heads) {
    enum { NONE = -1 };
    /* The 16 rows of each slot: 0 to 3 are this block's K, 4 to 7 its V, 8 and 9 the next K. Long rows, then short ones. */
    static const int8_t rows_16[2][SLOTS] = {{1, 2, 3, NONE, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9, NONE}};
    const uintptr_t bytes = strobe__dtype_bytes(a->k.dtype), head = (uintptr_t)a->k.stride[2] * bytes;
    const uintptr_t k_row = (uintptr_t)a->k.stride[1] * bytes, v_row = (uintptr_t)a->v.stride[1] * bytes;
    const uintptr_t next = (uintptr_t)k + (h + 1 < heads ? head : BLOCK_KEYS * k_row - (uintptr_t)h * head);
    struct prefetch prefetch = {.bytes = (uintptr_t)a->dim_v * bytes};
    for (int64_t slot = 0; slot < SLOTS; ++slot) {
        const int64_t n = rows_16[(uintptr_t)a->dim * bytes <= SHORT_ROW][slot];
        const bool value = n / KEY_TILES == 1;
        prefetch.row[slot] = value ? v_row : k_row;
        if (n == NONE) continue;
        const uintptr_t first = value ? (uintptr_t)v : n < KEY_TILES ? (uintptr_t)k : next;
        prefetch.tile[slot] = first + (uintptr_t)(n % KEY_TILES * TILE_SIDE) * prefetch.row[slot];
    }
    return prefetch;
}

/* Whether K and V, of up to `keys` keys, are too large for L2. */
static inline bool worth_prefetching(const strobe_attention *a, int64_t keys) {
    const double columns = (double)(a->batch * a->heads_kv) * (double)(a->dim + a->dim_v);
    return columns * (double)keys * (double)strobe__dtype_bytes(a->k.dtype) > NEAR_BYTES;
}

#endif
