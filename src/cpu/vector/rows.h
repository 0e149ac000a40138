/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rows.h: the query rows of a tile. The query heads of a group share a K/V head, so they share tiles: packed row n of a K/V
 * head is row n / group of the group's head n % group. Without groups that is the row itself. With them one row of a decode
 * step fills a vector, K and V are read once for all heads of the group, and the rows of a tile stay neighbours under a
 * mask. */
#ifndef STROBE_CPU_ROWS_H
#define STROBE_CPU_ROWS_H

#include "core/problem.h"
#include "cpu/vector/tile.h"

struct tile_rows {
    const struct problem *p;
    struct sequence s;
    int64_t kv;       /* the K/V head */
    int64_t first, n; /* packed rows [first, first + n), n <= TILE_ROWS */
};

static inline int64_t packed_row(const struct tile_rows *t, int64_t r) { return (t->first + r) / t->p->group; }

static inline int64_t packed_head(const struct tile_rows *t, int64_t r) {
    return t->kv * t->p->group + (t->first + r) % t->p->group;
}

/* The packed rows of a K/V head of a sequence. */
static inline int64_t packed_rows(const struct problem *p, const struct sequence *s) { return s->rows * p->group; }

/* The tile that starts at packed row `first`. */
static inline struct tile_rows tile_rows_at(const struct problem *p, const struct sequence *s, int64_t kv, int64_t first) {
    const int64_t left = packed_rows(p, s) - first;
    return (struct tile_rows){.p = p, .s = *s, .kv = kv, .first = first, .n = left < TILE_ROWS ? left : TILE_ROWS};
}

/* The keys inside the band of some row of the tile: [first, end). */
static inline int64_t tile_first_key(const struct tile_rows *t) { return band_first(&t->s.band, packed_row(t, 0)); }
static inline int64_t tile_end_key(const struct tile_rows *t) { return band_end(&t->s.band, packed_row(t, t->n - 1)); }

/* The keys of the block [j0, j0 + keys) that row i sees, counted from j0: [first, end), empty when end <= first. */
struct block_keys {
    int64_t first, end;
};

static inline struct block_keys keys_seen(const struct band *band, int64_t i, int64_t j0, int64_t keys) {
    const int64_t first = band_first(band, i) - j0, end = band_end(band, i) - j0;
    return (struct block_keys){first < 0 ? 0 : first < keys ? first : keys, end < 0 ? 0 : end < keys ? end : keys};
}

static inline enum coverage tile_covers(const struct tile_rows *t, int64_t j0, int64_t j1) {
    return band_covers(&t->s.band, packed_row(t, 0), packed_row(t, t->n - 1) + 1, j0, j1);
}

static inline int64_t tile_offset(const struct tile_rows *t, const strobe_tensor *x, int64_t r) {
    return strobe__row_offset(x, &t->s, packed_row(t, r), packed_head(t, r));
}

/* true_rows() of keys that follow each other in memory. */
static inline struct rows32 adjacent_rows(float *block, const struct problem *p, const strobe_tensor *x,
                                          const struct sequence *s, int64_t kv, int64_t j0, int64_t n, int64_t columns) {
    const int64_t at = strobe__key_offset(x, s, j0, kv);
    const bool values = x == &p->a.v;
    const float *scale = values ? p->scales.v : p->scales.k;
    if (!p->a.scales || !scale) return widen_rows(block, x, at, n, columns);
    const int64_t *stride = values ? p->scales.stride_v : p->scales.stride_k, block_k = p->scales.block_k;
    const float *factor = strobe__key_scale_at(p, scale, stride, s, j0, kv);
    for (int64_t j = 0; j < n; ++j) {
        float *row = block + j * columns;
        if (block_k > 1) factor = strobe__key_scale_at(p, scale, stride, s, j0 + j, kv);
        widen_row(row, x->data, x->dtype, at + j * x->stride[1], columns);
        const float scale_of_key = *factor;
        for (int64_t c = 0; c < columns; ++c) row[c] *= scale_of_key;
        if (block_k == 1) factor += stride[1];
    }
    return (struct rows32){block, columns, false};
}

/* Keys [j0, j0 + n) of x, which is K or V, as fp32: in place, or converted into block [n][columns], times their scales. A
 * key that does not exist is 0. */
static inline struct rows32 true_rows(float *block, const struct problem *p, const strobe_tensor *x,
                                      const struct sequence *s, int64_t kv, int64_t j0, int64_t n, int64_t columns) {
    if (strobe__keys_in_place(s, j0, n)) return adjacent_rows(block, p, x, s, kv, j0, n, columns);
    for (int64_t j = 0, count; j < n; j += count) {
        float *to = block + j * columns;
        count = strobe__keys_together(s, j0 + j, n - j);
        if (!strobe__key_exists(s, j0 + j)) {
            memset(to, 0, (size_t)(count * columns) * sizeof *to);
            continue;
        }
        const struct rows32 rows = adjacent_rows(to, p, x, s, kv, j0 + j, count, columns);
        for (int64_t r = 0; rows.data != to && r < count; ++r)
            memcpy(to + r * columns, rows.data + r * rows.stride, (size_t)columns * sizeof *to);
    }
    return (struct rows32){block, columns, false};
}

/* tile_offset() of all rows. Stepping from row to row saves the divisions. */
static inline void tile_offsets(int64_t offset[TILE_ROWS], const struct tile_rows *t, const strobe_tensor *x) {
    int64_t i = packed_row(t, 0), h = packed_head(t, 0);
    for (int64_t r = 0; r < t->n; ++r) {
        offset[r] = strobe__row_offset(x, &t->s, i, h);
        if (++h == (t->kv + 1) * t->p->group) {
            h = t->kv * t->p->group;
            ++i;
        }
    }
}

/* Row r of x, which is q or a gradient, as fp32; a quantised q times its scale. */
static inline void true_row(float *to, const struct tile_rows *t, const strobe_tensor *x, int64_t r, int64_t columns) {
    widen_row(to, x->data, x->dtype, tile_offset(t, x, r), columns);
    if (x != &t->p->a.q || !t->p->a.scales || !t->p->scales.q) return;
    const float scale = strobe__row_scale(t->p, &t->s, packed_row(t, r), packed_head(t, r));
    for (int64_t c = 0; c < columns; ++c) to[c] *= scale;
}

/* Transposes the tile's rows of x into `to` [columns][TILE_ROWS], times factor; lanes without a row are 0. memory:
 * [LANES][columns] of scratch. */
static inline void tile_pack(float *to, const struct tile_rows *t, const strobe_tensor *x, int64_t columns, float factor,
                             float *memory) {
    for (int64_t r = 0; r < TILE_ROWS; r += LANES) {
        for (int64_t lane = 0; lane < LANES; ++lane) {
            if (r + lane < t->n)
                true_row(memory + lane * columns, t, x, r + lane, columns);
            else
                memset(memory + lane * columns, 0, (size_t)columns * sizeof *memory);
        }
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) {
            vec rows[LANES];
            for (int lane = 0; lane < LANES; ++lane) rows[lane] = v_load(memory + lane * columns + c);
            v_transpose_floats(rows);
            for (int n = 0; n < LANES; ++n) v_store(to + (c + n) * TILE_ROWS + r, v_mul(rows[n], v_set(factor)));
        }
        for (; c < columns; ++c)
            for (int64_t lane = 0; lane < LANES; ++lane) to[c * TILE_ROWS + r + lane] = memory[lane * columns + c] * factor;
    }
}

/* The inverse: column r of `from` [columns][TILE_ROWS], times factor[r], goes to the tile's row r of x, rounded to its
 * dtype. */
static inline void tile_unpack(const struct tile_rows *t, const strobe_tensor *x, const float *from, int64_t columns,
                               const float *factor) {
    int64_t offset[TILE_ROWS];
    tile_offsets(offset, t, x);
    for (int64_t r = 0; r < t->n; r += LANES) {
        const int64_t lanes = t->n - r < LANES ? t->n - r : LANES;
        const vec factors = v_load(factor + r);
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) {
            vec columns_of[LANES];
            for (int n = 0; n < LANES; ++n) columns_of[n] = v_mul(v_load(from + (c + n) * TILE_ROWS + r), factors);
            v_transpose_floats(columns_of);
            for (int64_t lane = 0; lane < lanes; ++lane)
                narrow_vector(x->data, x->dtype, offset[r + lane] + c, columns_of[lane]);
        }
        for (int64_t lane = 0; lane < lanes && c < columns; ++lane)
            for (int64_t n = c; n < columns; ++n)
                element_store(x->data, x->dtype, offset[r + lane] + n, from[n * TILE_ROWS + r + lane] * factor[r + lane]);
    }
}

#endif
