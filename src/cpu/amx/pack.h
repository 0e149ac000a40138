/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pack.h: packing of Q, K and V into the layouts of amx/step.h, in parts (amx/operand.h), and O^T back into rows. A
 * transpose of data in memory loads rows into the four 128-bit lanes of a register and then shuffles within the lanes. A
 * transpose of data in registers takes 64 shuffles for 512 bf16. Columns and rows past the end of a tensor are zero. */
#ifndef STROBE_CPU_AMX_PACK_H
#define STROBE_CPU_AMX_PACK_H

#include "cpu/amx/operand.h"
#include "cpu/vector/rows.h"

static inline int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Transposes eight columns of 16 rows, at row[.] + c, into four rows of Q^T, where a pair of columns is one word. The loads
 * put four rows into the lanes of a register, so that the transpose stays within lanes and takes two shuffles a row. */
static inline void pack_pairs(uint16_t *to, const uint16_t *const row[TILE_SIDE], int64_t c, vec_words sign) {
    vec_words r[4], t[4];
    for (int i = 0; i < 4; ++i)
        r[i] = w_xor(sign, w_load_lanes(row[i] + c, row[4 + i] + c, row[8 + i] + c, row[12 + i] + c));
    for (int i = 0; i < 2; ++i) {
        t[2 * i] = w_zip_low_32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = w_zip_high_32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        w_store(to + 2 * i * TILE_DEPTH, w_zip_low_64(t[i], t[2 + i]));
        w_store(to + (2 * i + 1) * TILE_DEPTH, w_zip_high_64(t[i], t[2 + i]));
    }
}

/* Packs Q^T of a tile, [dim / 32][PARTS][2][16 pairs of columns][16 queries]; flip: with all signs changed. */
static inline void pack_queries(uint16_t *to, const struct tile_rows *t, const strobe_tensor *x, int64_t dim, bool flip) {
    const vec_words sign = w_set(flip ? 0x80008000u : 0);
    _Alignas(64) uint16_t square[PARTS][TILE_SIDE][TILE_DEPTH];
    int64_t offset[TILE_ROWS];
    tile_offsets(offset, t, x);
    for (int64_t half = 0; half < VECTORS; ++half)
        for (int64_t c = 0; c * TILE_DEPTH < dim; ++c) {
            const bool in_place = PARTS == 1 && t->n == TILE_ROWS && dim - c * TILE_DEPTH >= TILE_DEPTH;
            const uint16_t *row[PARTS][TILE_SIDE];
            for (int64_t i = 0; i < TILE_SIDE; ++i) {
                const int64_t r = half * TILE_SIDE + i;
                const number *at = r < t->n ? (const number *)x->data + offset[r] + c * TILE_DEPTH : NULL;
                vec_words parts[PARTS];
                if (!in_place) load_parts(parts, at, at ? dim - c * TILE_DEPTH : 0);
                for (int n = 0; n < PARTS; ++n) {
                    if (!in_place) w_store(square[n][i], parts[n]);
                    row[n][i] = in_place ? (const uint16_t *)(const void *)at : square[n][i];
                }
            }
            for (int n = 0; n < PARTS; ++n)
                for (int64_t pairs = 0; pairs < TILE_SIDE; pairs += 4)
                    pack_pairs(to + ((c * PARTS + n) * VECTORS + half) * TILE_ELEMENTS + pairs * TILE_DEPTH, row[n],
                               2 * pairs, sign);
        }
}

/* Keeps the greatest magnitudes among first parts. The first part of an infinity or a NaN is an infinity or a NaN too. */
static inline void note_size(vec_words *greatest, vec_words part) {
    *greatest = w_largest(*greatest, w_and(part, w_set(0x7fff7fffu)));
}

static inline bool is_finite(vec_words greatest) { return w_all_below(greatest, 0x7f80); }

/* Packs n rows of K, [PARTS][64 keys][padded]. Returns whether all are finite. */
static inline bool pack_keys(uint16_t *to, const number *k, int64_t stride, int64_t n, int64_t dim, int64_t padded) {
    vec_words parts[PARTS], greatest = w_set(0);
    for (int64_t j = 0; j < BLOCK_KEYS; ++j)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH) {
            load_parts(parts, k + (j < n ? j : 0) * stride + c, j < n ? dim - c : 0);
            note_size(&greatest, parts[0]);
            for (int64_t part = 0; part < PARTS; ++part) w_store(to + (part * BLOCK_KEYS + j) * padded + c, parts[part]);
        }
    return is_finite(greatest);
}

/* Rows [j0, j0 + n) of K or V of a head where they lie, or, of keys in several pages, copied to `copy` [n][columns]; those
 * of keys that do not exist are 0 there. */
static inline const number *rows_together(number *copy, const strobe_tensor *x, const struct sequence *s, int64_t kv,
                                          int64_t j0, int64_t n, int64_t columns, int64_t *stride) {
    *stride = x->stride[1];
    if (strobe__keys_in_place(s, j0, n)) return (const number *)x->data + strobe__key_offset(x, s, j0, kv);
    *stride = columns;
    for (int64_t j = 0, count; j < n; j += count) {
        count = strobe__keys_together(s, j0 + j, n - j);
        number *to = copy + j * columns;
        if (!strobe__key_exists(s, j0 + j)) {
            memset(to, 0, (size_t)(count * columns) * sizeof *to);
            continue;
        }
        const number *from = (const number *)x->data + strobe__key_offset(x, s, j0 + j, kv);
        for (int64_t i = 0; i < count; ++i) memcpy(to + i * columns, from + i * x->stride[1], (size_t)columns * sizeof *to);
    }
    return copy;
}

/* The keys among n rows of K or V that are not finite, as bits. */
static inline uint64_t keys_not_finite(const number *x, int64_t stride, int64_t n, int64_t dim) {
    uint64_t found = 0;
    for (int64_t j = 0; j < n; ++j)
        for (int64_t c = 0; c < dim; c += TILE_DEPTH)
            if (!columns_are_finite(x + j * stride + c, dim - c)) found |= (uint64_t)1 << j;
    return found;
}

/* Transposes eight columns of 32 keys, at v, into eight rows of V^T. The loads put eight keys into each 128-bit lane, so
 * that the transpose stays within lanes and takes three shuffles a row; from whole rows it would take five. */
static inline void pack_columns(uint16_t *to, const uint16_t *v, int64_t stride, vec_words *greatest) {
    vec_words r[8], t[8], u[8];
    for (int i = 0; i < 8; ++i) {
        const uint16_t *key = v + i * stride;
        r[i] = w_load_lanes(key, key + 8 * stride, key + 16 * stride, key + 24 * stride);
        note_size(greatest, r[i]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = w_zip_low_16(r[2 * i], r[2 * i + 1]); /* columns 0 to 3 of keys 2i and 2i + 1 */
        t[4 + i] = w_zip_high_16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) { /* u[2 i + n]: columns 2 i and 2 i + 1 of the keys 4 n to 4 n + 3 */
        const vec_words *pair = t + i / 2 * 4;
        for (int n = 0; n < 2; ++n)
            u[2 * i + n] = i % 2 ? w_zip_high_32(pair[2 * n], pair[2 * n + 1]) : w_zip_low_32(pair[2 * n], pair[2 * n + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        w_store(to + 2 * i * TILE_DEPTH, w_zip_low_64(u[2 * i], u[2 * i + 1]));
        w_store(to + (2 * i + 1) * TILE_DEPTH, w_zip_high_64(u[2 * i], u[2 * i + 1]));
    }
}

/* Packs 32 keys x 32 columns of V into two tiles of V^T, 16 columns each and `apart` elements apart; only into the first one
 * unless `both`. Parts lie 2 TILE_ELEMENTS apart. keys: one bit for each key that exists; columns: how many exist. Returns
 * whether all of them are finite. */
static inline bool pack_values_square(uint16_t *to, const number *v, int64_t stride, int64_t columns, uint32_t keys,
                                      int64_t apart, bool both) {
    vec_words greatest = w_set(0), other, parts[PARTS];
    _Alignas(64) uint16_t square[PARTS][TILE_DEPTH][TILE_DEPTH];
    const bool in_place = PARTS == 1 && columns >= TILE_DEPTH && keys == 0xffffffffu;
    for (int j = 0; j < TILE_DEPTH && !in_place; ++j) {
        const bool there = keys >> j & 1;
        load_parts(parts, there ? v + j * stride : NULL, there ? columns : 0);
        for (int n = 0; n < PARTS; ++n) w_store(square[n][j], parts[n]);
    }
    for (int n = 0; n < PARTS; ++n)
        for (int x = 0; x < (both ? TILE_DEPTH : TILE_SIDE); x += 8)
            pack_columns(to + n * 2 * TILE_ELEMENTS + x / TILE_SIDE * apart + x % TILE_SIDE * TILE_DEPTH,
                         in_place ? (const uint16_t *)v + x : square[n][0] + x, in_place ? stride : TILE_DEPTH,
                         n ? &other : &greatest);
    return is_finite(greatest);
}

/* Packs V^T of n keys, [padded / 16][PARTS][2][16 columns][32 keys]; the keys of `left_out` are zero. Returns whether the
 * others are finite. */
static inline bool pack_values(uint16_t *to, const number *v, int64_t stride, int64_t n, int64_t dim, int64_t padded,
                               uint64_t left_out) {
    const uint64_t keys = (n >= BLOCK_KEYS ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) & ~left_out;
    const int64_t apart = PARTS * 2 * TILE_ELEMENTS;
    bool finite = true;
    for (int64_t half = 0; half < 2; ++half)
        for (int64_t c = 0; c < padded; c += TILE_DEPTH)
            finite &= pack_values_square(to + c / TILE_SIDE * apart + half * TILE_ELEMENTS,
                                         v + half * TILE_DEPTH * stride + c, stride, dim - c,
                                         (uint32_t)(keys >> half * TILE_DEPTH), apart, padded - c > TILE_SIDE);
    return finite;
}

/* Writes O^T [dim][TILE_ROWS] times factor [TILE_ROWS] to the tile's rows of x; stream: bypassing the caches. */
static inline void unpack_rows(const struct tile_rows *t, const strobe_tensor *x, const float *o, int64_t dim,
                               const float *factor, bool stream) {
    int64_t offset[TILE_ROWS];
    tile_offsets(offset, t, x);
    for (int64_t half = 0; half * TILE_SIDE < t->n; ++half) {
        const vec f = v_load(factor + half * TILE_SIDE);
        for (int64_t c = 0; c < dim; c += TILE_SIDE * COLUMNS_A_WORD) {
            vec_words words[TILE_SIDE];
            for (int64_t i = 0; i < TILE_SIDE; ++i) {
                const int64_t first = c + i * COLUMNS_A_WORD, second = first + COLUMNS_A_WORD - 1;
                const float *at = o + half * TILE_SIDE;
                words[i] = round_word(first < dim ? v_mul(v_load(at + first * TILE_ROWS), f) : v_set(0),
                                      second < dim ? v_mul(v_load(at + second * TILE_ROWS), f) : v_set(0));
            }
            v_transpose(words);
            for (int64_t i = 0; i < TILE_SIDE && half * TILE_SIDE + i < t->n; ++i)
                store_words((number *)x->data + offset[half * TILE_SIDE + i] + c, words[i], dim - c, stream);
        }
    }
}

#endif
