/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pack_gradients.h: packing of the operands of amx/gradients.h that amx/pack.h does not have, and dK and dV out of their
 * tiles. Columns and rows past the end of a tensor are zero. */
#ifndef STROBE_CPU_AMX_PACK_GRADIENTS_H
#define STROBE_CPU_AMX_PACK_GRADIENTS_H

#include "cpu/amx/gradients.h"
#include "cpu/amx/pack.h"
#if defined(STROBE_AMX_fp16) || defined(STROBE_AMX_fp32)
#include "cpu/amx/pack_parts.h"
#else

enum { LARGEST_DIM = 256 };

/* Packs n <= 64 rows of K or V as operands A, [2 strips][padded / 32]. */
static inline void pack_key_tiles(uint16_t *to, const number *k, int64_t stride, int64_t n, int64_t dim, int64_t padded) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j) {
        uint16_t *row = to + j / STRIP_KEYS * STRIP_KEYS * padded * PARTS + j % STRIP_KEYS * TILE_DEPTH;
        for (int64_t c = 0; c < padded; c += TILE_DEPTH, row += OPERAND_ELEMENTS) {
            vec_words parts[PARTS];
            load_parts(parts, k + (j < n ? j : 0) * stride + c, j < n ? dim - c : 0);
            for (int part = 0; part < PARTS; ++part) w_store(row + part * PART_ELEMENTS, parts[part]);
        }
    }
}

/* Packs K^T of n <= 64 keys as operands A, [padded / 32][2 strips]; the keys of `left_out` are zero. */
static inline void pack_key_columns(uint16_t *to, const number *k, int64_t stride, int64_t n, int64_t dim, int64_t padded,
                                    uint64_t left_out) {
    const uint64_t keys = (n >= BLOCK_KEYS ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) & ~left_out;
    for (int64_t c = 0; c < padded; c += TILE_DEPTH)
        for (int64_t j = 0; j < BLOCK_KEYS; j += STRIP_KEYS, to += OPERAND_ELEMENTS)
            pack_values_square(to, k + j * stride + c, stride, dim - c, (uint32_t)(keys >> j), TILE_ELEMENTS, true);
}

/* Packs a tile's rows of x as operands B in pairs of rows r and r + 16, [padded / 32]. Rows in `left_out` are zero. */
static inline void pack_row_pairs(uint16_t *to, const struct tile_rows *t, const strobe_tensor *x, int64_t dim,
                                  int64_t padded, uint32_t left_out) {
    static const number zeros[LARGEST_DIM];
    const number *row[TILE_ROWS];
    for (int64_t r = 0; r < TILE_ROWS; ++r)
        row[r] = r < t->n && !(left_out >> r & 1) ? (const number *)x->data + tile_offset(t, x, r) : zeros;
    for (int64_t r = 0; r < TILE_SIDE; ++r)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH) {
            uint16_t *at = to + c / TILE_DEPTH * OPERAND_ELEMENTS + r * TILE_DEPTH;
            vec_words low[PARTS], high[PARTS], pairs[2];
            load_parts(low, row[r] + c, dim - c);
            load_parts(high, row[r + TILE_SIDE] + c, dim - c);
            for (int part = 0; part < PARTS; ++part, at += PART_ELEMENTS) {
                w_zip_rows(pairs, low[part], high[part]);
                w_store(at, pairs[0]);
                w_store(at + TILE_ELEMENTS, pairs[1]);
            }
        }
}

/* The packing of a tile's rows of Q or dO as operands B, in pairs of columns and of rows (pack_parts.h); one step here. */
struct row_packing {
    const struct tile_rows *t;
    const strobe_tensor *x;
    uint16_t *columns, *pairs;
    int64_t dim, c;
    uint32_t left_out;
    bool flip;
};

enum { ROW_STEPS = 1 };

static inline void start_packing_rows(struct row_packing *w, const struct tile_rows *t, const strobe_tensor *x) {
    w->t = t;
    w->x = x;
    w->c = 0;
}

static inline void pack_rows_step(struct row_packing *w) {
    pack_queries(w->columns, w->t, w->x, w->dim, w->flip);
    pack_row_pairs(w->pairs, w->t, w->x, w->dim, up_to(w->dim, TILE_DEPTH), w->left_out);
    w->c = w->dim;
}

/* Packs n <= 64 rows of K as operands A, K and K^T. */
static inline void pack_keys_twice(uint16_t *keys, uint16_t *columns, const number *k, int64_t stride, int64_t n,
                                   int64_t dim, int64_t padded, uint64_t left_out) {
    pack_key_tiles(keys, k, stride, n, dim, padded);
    pack_key_columns(columns, k, stride, n, dim, padded, left_out);
}

#endif

/* Finds the tile's rows of x that are not finite, one bit each. */
static inline uint32_t rows_not_finite(const struct tile_rows *t, const strobe_tensor *x, int64_t dim) {
    uint32_t found = 0;
    for (int64_t r = 0; r < t->n; ++r)
        if (keys_not_finite((const number *)x->data + tile_offset(t, x, r), 0, 1, dim)) found |= 1u << r;
    return found;
}

/* Writes dK or dV of n <= 64 keys, [4][padded / 16] tiles, times factor, to rows of x, of the kernel's dtype or fp32, from
 * an element on; stream: bypassing the caches. */
static inline void unpack_key_tiles(const strobe_tensor *x, int64_t element, const float *from, int64_t n, int64_t dim,
                                    int64_t padded, float factor, bool stream) {
    for (int64_t j = 0; j < n; ++j, element += x->stride[1]) {
        const float *row = from + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_SIDE;
        for (int64_t c = 0; c < dim && x->dtype == STROBE_FP32; c += TILE_SIDE)
            store_floats((float *)x->data + element + c, v_mul(v_load(row + c * TILE_SIDE), v_set(factor)), dim - c, stream);
        for (int64_t c = 0; c < dim && x->dtype != STROBE_FP32; c += TILE_DEPTH) {
            const vec low = v_mul(v_load(row + c * TILE_SIDE), v_set(factor));
            const vec high = v_mul(v_load(row + (c + TILE_SIDE) * TILE_SIDE), v_set(factor));
            store_words((number *)x->data + element + c, round_columns(low, high), dim - c, stream);
        }
    }
}

#endif
