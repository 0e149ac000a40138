/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pack_gradients.h: packing of the operands of amx/gradients.h that amx/pack.h does not have, and dK and dV out of their
 * tiles. Columns and rows past the end of a tensor are zero. */
#ifndef STROBE_CPU_AMX_PACK_GRADIENTS_H
#define STROBE_CPU_AMX_PACK_GRADIENTS_H

#include "cpu/amx/gradients.h"
#include "cpu/amx/pack.h"

enum { LARGEST_DIM = 256 };

/* Packs n <= 64 rows of K or V as operands A, [4][padded / 32] tiles. */
static inline void pack_key_tiles(uint16_t *to, const uint16_t *k, int64_t stride, int64_t n, int64_t dim, int64_t padded) {
    for (int64_t j = 0; j < BLOCK_KEYS; ++j) {
        uint16_t *row = to + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_DEPTH;
        for (int64_t c = 0; c < padded; c += TILE_DEPTH)
            w_store(row + c * TILE_SIDE, j < n ? w_load_some(k + j * stride + c, dim - c) : w_set(0));
    }
}

/* Packs a tile's rows of x as operand B in pairs of rows r and r + 16, [padded / 16] tiles. Rows in `left_out` are zero. */
static inline void pack_row_pairs(uint16_t *to, const struct tile_rows *t, const strobe_tensor *x, int64_t dim,
                                  int64_t padded, uint32_t left_out) {
    static const uint16_t zeros[LARGEST_DIM];
    const uint16_t *row[TILE_ROWS];
    for (int64_t r = 0; r < TILE_ROWS; ++r)
        row[r] = r < t->n && !(left_out >> r & 1) ? (const uint16_t *)x->data + tile_offset(t, x, r) : zeros;
    for (int64_t r = 0; r < TILE_SIDE; ++r)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH) {
            vec_words pairs[2];
            w_zip_rows(pairs, w_load_some(row[r] + c, dim - c), w_load_some(row[r + TILE_SIDE] + c, dim - c));
            w_store(to + c * TILE_DEPTH + r * TILE_DEPTH, pairs[0]);
            w_store(to + c * TILE_DEPTH + TILE_ELEMENTS + r * TILE_DEPTH, pairs[1]);
        }
}

/* Finds the tile's rows of x that are not finite, one bit each. */
static inline uint32_t rows_not_finite(const struct tile_rows *t, const strobe_tensor *x, int64_t dim) {
    uint32_t found = 0;
    for (int64_t r = 0; r < t->n; ++r)
        if (keys_not_finite((const uint16_t *)x->data + tile_offset(t, x, r), 0, 1, dim)) found |= 1u << r;
    return found;
}

/* Writes dK or dV of n <= 64 keys, [4][padded / 16] tiles, times factor, to rows of x, bf16 or fp32, from an element on;
 * stream: bypassing the caches. */
static inline void unpack_key_tiles(const strobe_tensor *x, int64_t element, const float *from, int64_t n, int64_t dim,
                                    int64_t padded, float factor, bool stream) {
    for (int64_t j = 0; j < n; ++j, element += x->stride[1]) {
        const float *row = from + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_SIDE;
        for (int64_t c = 0; c < dim && x->dtype == STROBE_FP32; c += TILE_SIDE)
            store_floats((float *)x->data + element + c, v_mul(v_load(row + c * TILE_SIDE), v_set(factor)), dim - c, stream);
        for (int64_t c = 0; c < dim && x->dtype != STROBE_FP32; c += TILE_DEPTH) {
            const vec low = v_mul(v_load(row + c * TILE_SIDE), v_set(factor));
            const vec high = v_mul(v_load(row + (c + TILE_SIDE) * TILE_SIDE), v_set(factor));
            store_words((uint16_t *)x->data + element + c, w_round_bf16(low, high), dim - c, stream);
        }
    }
}

#endif
