/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pack_parts.h: packing of the backward's operands whose numbers are split (amx/operand.h). A number is split once for both
 * of the layouts that Q, dO and K are wanted in. Which columns make a pair is free as long as A and B agree: here columns c
 * and c + 16 of 32, so that v_pair_cut joins two vectors of a row as they were loaded. Columns, rows and keys past the end
 * of a tensor are zero. */
#ifndef STROBE_CPU_AMX_PACK_PARTS_H
#define STROBE_CPU_AMX_PACK_PARTS_H

#include "cpu/amx/gradients.h"
#include "cpu/amx/pack.h"

/* 32 columns of a row in parts, each in the upper half of a word: columns 0 to 15 and 16 to 31. */
struct split_row {
    vec_words low[PARTS], high[PARTS];
};

/* Two tiles in parts before they are transposed, a row after the other. */
struct split_square {
    _Alignas(64) uint16_t row[PARTS][2][TILE_SIDE][TILE_DEPTH];
};

/* x: NULL for a row of zeros. */
ALWAYS_INLINE struct split_row split_row(const number *x, int64_t columns) {
    struct split_row s;
    for (int n = 0; n < PARTS; ++n) s.low[n] = s.high[n] = w_set(0);
    if (x) split_words(s.low, s.high, x, columns);
    return s;
}

/* Stores a row of an operand whose pairs are columns, for each part. */
ALWAYS_INLINE void store_column_pairs(uint16_t *to, int64_t apart, const struct split_row *x) {
    for (int n = 0; n < PARTS; ++n) w_store(to + n * apart, v_pair_cut(x->low[n], x->high[n]));
}

/* Stores a row of an operand whose pairs are the rows a and b: 16 columns of it in each of two tiles. */
ALWAYS_INLINE void store_row_pairs(uint16_t *to, const struct split_row *a, const struct split_row *b) {
    for (int n = 0; n < PARTS; ++n, to += PART_ELEMENTS) {
        w_store(to, v_pair_cut(a->low[n], b->low[n]));
        w_store(to + TILE_ELEMENTS, v_pair_cut(a->high[n], b->high[n]));
    }
}

/* Transposes the words of the n-th of a square's tiles. */
static inline void transpose_tile(uint16_t *to, const struct split_square *square, int64_t n, vec_words sign) {
    const uint16_t *row[TILE_SIDE];
    for (int i = 0; i < TILE_SIDE; ++i) row[i] = square->row[n / 2][n % 2][i];
    for (int64_t pairs = 0; pairs < TILE_SIDE; pairs += 4) pack_pairs(to + pairs * TILE_DEPTH, row, 2 * pairs, sign);
}

/* The packing of a tile's rows of Q or dO as operands B: `columns`, in pairs of columns, with all signs changed if `flip`,
 * and `pairs`, in pairs of rows r and r + 16, in which the rows of `left_out` are zero; each [dim / 32]. It is done in small
 * steps, which tile products may cover. */
struct row_packing {
    const number *row[TILE_ROWS]; /* NULL: does not exist */
    uint16_t *columns, *pairs;
    int64_t dim, c, step; /* the column where the next step works, and which step it is there */
    uint32_t left_out;
    bool flip;
    struct split_square square;
};

enum {
    SPLIT_STEPS = 8, /* of two pairs of rows each */
    ROW_STEPS = SPLIT_STEPS + 2 * PARTS,
};

static inline void start_packing_rows(struct row_packing *w, const struct tile_rows *t, const strobe_tensor *x) {
    int64_t offset[TILE_ROWS];
    tile_offsets(offset, t, x);
    for (int64_t r = 0; r < TILE_ROWS; ++r) w->row[r] = r < t->n ? (const number *)x->data + offset[r] : NULL;
    w->c = w->step = 0;
}

static inline void pack_rows_step(struct row_packing *w) {
    for (int64_t r = 2 * w->step; r < 2 * w->step + 2 && r < TILE_SIDE; ++r) {
        const number *first = w->row[r], *second = w->row[r + TILE_SIDE];
        struct split_row a = split_row(first ? first + w->c : NULL, w->dim - w->c);
        struct split_row b = split_row(second ? second + w->c : NULL, w->dim - w->c);
        store_column_pairs(w->square.row[0][0][r], PART_ELEMENTS, &a);
        store_column_pairs(w->square.row[0][1][r], PART_ELEMENTS, &b);
        if (w->left_out >> r & 1) a = split_row(NULL, 0);
        if (w->left_out >> (r + TILE_SIDE) & 1) b = split_row(NULL, 0);
        store_row_pairs(w->pairs + r * TILE_DEPTH, &a, &b);
    }
    const int64_t n = w->step++ - SPLIT_STEPS;
    if (n >= 0) {
        transpose_tile(w->columns, &w->square, n, w_set(w->flip ? 0x80008000u : 0));
        w->columns += TILE_ELEMENTS;
    }
    if (w->step < ROW_STEPS) return;
    w->pairs += OPERAND_ELEMENTS;
    w->c += TILE_DEPTH;
    w->step = 0;
}

/* Packs n <= 64 rows of V as operands A, [2 strips][padded / 32]. */
static inline void pack_key_tiles(uint16_t *to, const number *v, int64_t stride, int64_t n, int64_t dim, int64_t padded) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j) {
        uint16_t *row = to + j / STRIP_KEYS * STRIP_KEYS * padded * PARTS + j % STRIP_KEYS * TILE_DEPTH;
        for (int64_t c = 0; c < padded; c += TILE_DEPTH, row += OPERAND_ELEMENTS) {
            const struct split_row x = split_row(j < n ? v + j * stride + c : NULL, dim - c);
            store_column_pairs(row, PART_ELEMENTS, &x);
        }
    }
}

/* Packs n <= 64 rows of K as operands A, [2 strips][padded / 32], and K^T as operands A, [padded / 32][2 strips], in which
 * the keys of `left_out` are zero. */
static inline void pack_keys_twice(uint16_t *keys, uint16_t *columns, const number *k, int64_t stride, int64_t n,
                                   int64_t dim, int64_t padded, uint64_t left_out) {
    for (int64_t j0 = 0; j0 < BLOCK_KEYS; j0 += STRIP_KEYS)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH, keys += OPERAND_ELEMENTS) {
            struct split_square square;
            for (int64_t j = 0; j < STRIP_KEYS; j += 2) {
                const int64_t first = j0 + j, second = first + 1;
                struct split_row a = split_row(first < n ? k + first * stride + c : NULL, dim - c);
                struct split_row b = split_row(second < n ? k + second * stride + c : NULL, dim - c);
                store_column_pairs(keys + j * TILE_DEPTH, PART_ELEMENTS, &a);
                store_column_pairs(keys + (j + 1) * TILE_DEPTH, PART_ELEMENTS, &b);
                if (left_out >> first & 1) a = split_row(NULL, 0);
                if (left_out >> second & 1) b = split_row(NULL, 0);
                store_row_pairs(square.row[0][0][j / 2], &a, &b);
            }
            uint16_t *const to = columns + (2 * c + j0) * TILE_DEPTH * PARTS;
            for (int64_t i = 0; i < 2 * PARTS; ++i) transpose_tile(to + i * TILE_ELEMENTS, &square, i, w_set(0));
        }
}

#endif
