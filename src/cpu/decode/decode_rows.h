/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_rows.h: the products of a few query rows with keys as they lie in memory. Columns lie across the lanes, and a row
 * of K or V is read once for up to four query rows:
 *
 *     key_products    s[r][j]  = q_r . k_j               LANES sums at a time, made one vector by v_sums
 *     value_products  o[r]     = a[r] o[r] + sum_j p[r][j] v_j
 *
 * Rows of K and V are read PAIR columns at a time. With AVX-512 and 16 bits that is a whole cache line; loads of half a line
 * reach three quarters of the bandwidth. A load of bf16 comes apart into even and odd columns, by a shift and a mask, and q
 * and o are kept in that lane order (to_lane_order, from_lane_order). The last pair of a row ends with the row and so
 * overlaps the pair before it: no load passes the end and none needs a mask. Where the pairs overlap, q holds zeros and o
 * holds the columns twice. A row shorter than a pair is copied first. The order of each sum depends on the number of columns
 * alone. */
#ifndef STROBE_CPU_DECODE_ROWS_H
#define STROBE_CPU_DECODE_ROWS_H

#include "cpu/vector/tile.h"

enum {
    PAIR = 2 * LANES,
    ROWS_AT_ONCE = 4,               /* query rows that share one reading of K and V */
    ABREAST = 4,                    /* keys that are read together: with 16 their addresses did not fit the registers */
    MOST_KEYS = 512,                /* keys between two softmaxes of a row: 8 times BLOCK_KEYS was 1.06 times as fast */
    ROW_SCORES = MOST_KEYS + LANES, /* of a row; whole vectors are stored from any key on, so one vector more */
};

/* Rows of K or V of one head: one stride apart, or, of keys in pages, each where `row` says. */
struct keys_in_memory {
    const char *data; /* the first row */
    int64_t stride;   /* elements to the next row */
    int64_t columns;
    size_t prefetch;      /* bytes from an element that is read to the line that is prefetched then */
    const uintptr_t *row; /* NULL: not in pages; addresses of the rows of the task's first head */
    size_t head;          /* bytes from there to this head */
    int64_t ahead;        /* in pages: the row that is prefetched is so many further on, and then `prefetch` bytes */
    bool into_l2;         /* and no further */
};

ALWAYS_INLINE const char *key_row(const struct keys_in_memory *x, int64_t j, int64_t bytes) {
    return x->row ? (const char *)(x->row[j] + x->head) : x->data + j * x->stride * bytes;
}

/* Addresses wrap around, as nothing has to be there. */
ALWAYS_INLINE size_t prefetch_distance_of(const struct keys_in_memory *x, int64_t j) {
    return x->row ? (size_t)(x->row[j + x->ahead] - x->row[j]) + x->prefetch : x->prefetch;
}

/* The columns of q or o in whole pairs. */
static inline int64_t padded_columns(int64_t columns) { return (columns + PAIR - 1) / PAIR * PAIR; }

/* Where the pair that starts at padded column c starts in memory. */
ALWAYS_INLINE int64_t pair_start(int64_t c, int64_t columns) {
    return c + PAIR <= columns ? c : columns > PAIR ? columns - PAIR : 0;
}

/* What load_pair() gives, times this, are the elements. */
ALWAYS_INLINE float loaded_unit(int32_t dtype) { return dtype == STROBE_FP8_E4M3 ? 256 : 1; }

/* A row times factor into the lane order of q, for products with K of a dtype. What a pair repeats, or holds past the end of
 * the row, is zero. */
static inline void to_lane_order(float *q, const float *row, int32_t dtype, int64_t columns, float factor) {
    for (int64_t c = 0; c < columns; c += PAIR) {
        const int64_t start = pair_start(c, columns);
        const float each = factor * loaded_unit(dtype);
        float pair[PAIR];
        for (int64_t i = 0; i < PAIR; ++i) pair[i] = start + i >= c && start + i < columns ? row[start + i] * each : 0;
        for (int64_t i = 0; i < PAIR; ++i) q[c + i] = pair[dtype == STROBE_BF16 ? i % LANES * 2 + i / LANES : i];
    }
}

/* The inverse, from o, a sum of rows of V. */
static inline void from_lane_order(float *row, const float *o, int32_t dtype, int64_t columns, float factor) {
    for (int64_t c = 0; c < columns; c += PAIR) {
        const int64_t start = pair_start(c, columns);
        const float each = factor * loaded_unit(dtype);
        float pair[PAIR];
        for (int64_t i = 0; i < PAIR; ++i) pair[dtype == STROBE_BF16 ? i % LANES * 2 + i / LANES : i] = o[c + i] * each;
        memcpy(row + c, pair + (c - start), (size_t)((columns < c + PAIR ? columns : c + PAIR) - c) * sizeof *row);
    }
}

ALWAYS_INLINE int64_t bytes_of(int32_t dtype) {
    return dtype == STROBE_FP32 ? 4 : dtype == STROBE_INT8 || dtype == STROBE_FP8_E4M3 ? 1 : 2;
}

ALWAYS_INLINE struct vec2 load_pair(const char *at, int32_t dtype) {
    if (dtype == STROBE_BF16) return v_load2_bf16(at);
    if (dtype == STROBE_FP16) return v_load2_fp16(at);
    if (dtype == STROBE_INT8) return v_load2_int8(at);
    if (dtype == STROBE_FP8_E4M3) return v_load2_e4m3(at);
    const float *x = (const float *)(const void *)at;
    return (struct vec2){v_load(x), v_load(x + LANES)};
}

/* Loads the pair at padded column c of a row and prefetches. */
ALWAYS_INLINE struct vec2 row_pair(const char *row, int32_t dtype, int64_t c, int64_t columns, size_t prefetch,
                                   bool into_l2) {
    if (columns >= PAIR) {
        const char *at = row + pair_start(c, columns) * bytes_of(dtype);
        for (int64_t line = 0; line < PAIR * bytes_of(dtype); line += 64) {
            const void *next = (const void *)((uintptr_t)at + prefetch + (size_t)line);
            if (into_l2)
                __builtin_prefetch(next, 0, 2);
            else
                __builtin_prefetch(next);
        }
        return load_pair(at, dtype);
    }
    float copy[PAIR] = {0}; /* large enough for any dtype */
    memcpy(copy, row, (size_t)(columns * bytes_of(dtype)));
    return load_pair((const char *)copy, dtype);
}

/* The products of the rows with `abreast` keys from j on, lane by lane, not yet summed over the lanes. */
ALWAYS_INLINE void keys_abreast(vec sum[ROWS_AT_ONCE][ABREAST], const float *q, int64_t q_stride,
                                const struct keys_in_memory *k, int64_t j, int64_t keys, int32_t dtype, int rows,
                                int abreast, bool into_l2) {
    const char *key[ABREAST];
    size_t prefetch[ABREAST];
    for (int i = 0; i < abreast; ++i) { /* past the end the last key is read again, and its product not used */
        const int64_t at = j + i < keys ? j + i : keys - 1;
        key[i] = key_row(k, at, bytes_of(dtype));
        prefetch[i] = prefetch_distance_of(k, at);
        for (int r = 0; r < rows; ++r) sum[r][i] = v_set(0);
    }
    for (int64_t c = 0; c < k->columns; c += PAIR)
        for (int i = 0; i < abreast; ++i) {
            const struct vec2 x = row_pair(key[i], dtype, c, k->columns, prefetch[i], into_l2);
            for (int r = 0; r < rows; ++r) {
                sum[r][i] = v_fma(x.a, v_load(q + r * q_stride + c), sum[r][i]);
                sum[r][i] = v_fma(x.b, v_load(q + r * q_stride + c + LANES), sum[r][i]);
            }
        }
}

ALWAYS_INLINE void key_products(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k, int64_t keys,
                                int32_t dtype, int rows, bool into_l2) {
    const int many = LANES / rows, abreast = many < ABREAST ? many : ABREAST;
    for (int64_t j = 0; j < keys; j += many) {
        vec all[LANES];
        for (int i = 0; i < many; i += abreast) {
            vec sum[ROWS_AT_ONCE][ABREAST];
            keys_abreast(sum, q, q_stride, k, j + i, keys, dtype, rows, abreast, into_l2);
            for (int r = 0; r < rows; ++r)
                for (int n = 0; n < abreast; ++n) all[r * many + i + n] = sum[r][n];
        }
        float found[LANES];
        v_store(found, v_sums(all));
        for (int r = 0; r < rows; ++r) memcpy(s + r * ROW_SCORES + j, found + r * many, (size_t)many * sizeof *s);
    }
}

/* value_products() for `pairs` pairs of o from padded column c on. */
ALWAYS_INLINE void value_columns(float *o, int64_t o_stride, const float *a, const float *p, const struct keys_in_memory *v,
                                 int64_t keys, int64_t c, int32_t dtype, int rows, int pairs, bool into_l2) {
    struct vec2 sum[ROWS_AT_ONCE][4];
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < pairs; ++i) {
            const float *at = o + r * o_stride + c + i * PAIR;
            sum[r][i] = (struct vec2){v_mul(v_load(at), v_set(a[r])), v_mul(v_load(at + LANES), v_set(a[r]))};
        }
    for (int64_t j = 0; j < keys; ++j) {
        const char *row = key_row(v, j, bytes_of(dtype));
        const size_t prefetch = prefetch_distance_of(v, j);
        for (int i = 0; i < pairs; ++i) {
            const struct vec2 x = row_pair(row, dtype, c + i * PAIR, v->columns, prefetch, into_l2);
            for (int r = 0; r < rows; ++r) {
                const vec p_ij = v_set(p[r * ROW_SCORES + j]);
                sum[r][i] = (struct vec2){v_fma(x.a, p_ij, sum[r][i].a), v_fma(x.b, p_ij, sum[r][i].b)};
            }
        }
    }
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < pairs; ++i) {
            v_store(o + r * o_stride + c + i * PAIR, sum[r][i].a);
            v_store(o + r * o_stride + c + i * PAIR + LANES, sum[r][i].b);
        }
}

ALWAYS_INLINE void value_products(float *o, int64_t o_stride, const float *a, const float *p, const struct keys_in_memory *v,
                                  int64_t keys, int32_t dtype, int rows, bool into_l2) {
    const int most = REGISTERS / 2; /* vectors of sums */
    int64_t c = 0;
    if (8 * rows <= most)
        for (; c + 3 * PAIR < v->columns; c += 4 * PAIR)
            value_columns(o, o_stride, a, p, v, keys, c, dtype, rows, 4, into_l2);
    if (4 * rows <= most)
        for (; c + PAIR < v->columns; c += 2 * PAIR) value_columns(o, o_stride, a, p, v, keys, c, dtype, rows, 2, into_l2);
    for (; c < v->columns; c += PAIR) value_columns(o, o_stride, a, p, v, keys, c, dtype, rows, 1, into_l2);
}

/* The two products for a dtype and a number of rows. */
struct row_products {
    void (*keys)(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k, int64_t keys);
    void (*values)(float *o, int64_t o_stride, const float *a, const float *p, const struct keys_in_memory *v, int64_t keys);
};

/* Where prefetching ends is asked once a call: a branch a line cost 12 % of bf16 at d 64. */
#define ROW_PRODUCTS(dtype, rows)                                                                                         \
    static void key_products_##dtype##_##rows(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k, \
                                              int64_t keys) {                                                             \
        if (k->into_l2)                                                                                                   \
            key_products(s, q, q_stride, k, keys, STROBE_##dtype, rows, true);                                            \
        else                                                                                                              \
            key_products(s, q, q_stride, k, keys, STROBE_##dtype, rows, false);                                           \
    }                                                                                                                     \
    static void value_products_##dtype##_##rows(float *o, int64_t o_stride, const float *a, const float *p,               \
                                                const struct keys_in_memory *v, int64_t keys) {                           \
        if (v->into_l2)                                                                                                   \
            value_products(o, o_stride, a, p, v, keys, STROBE_##dtype, rows, true);                                       \
        else                                                                                                              \
            value_products(o, o_stride, a, p, v, keys, STROBE_##dtype, rows, false);                                      \
    }
#define ROW_PRODUCTS_OF(dtype) ROW_PRODUCTS(dtype, 1) ROW_PRODUCTS(dtype, 2) ROW_PRODUCTS(dtype, 4)
#define ROW_PRODUCTS_ENTRY(dtype, rows) \
    { key_products_##dtype##_##rows, value_products_##dtype##_##rows }
#define ROW_PRODUCTS_ENTRIES(dtype) \
    [STROBE_##dtype] = {ROW_PRODUCTS_ENTRY(dtype, 1), ROW_PRODUCTS_ENTRY(dtype, 2), ROW_PRODUCTS_ENTRY(dtype, 4)}

ROW_PRODUCTS_OF(FP32)
ROW_PRODUCTS_OF(FP16)
ROW_PRODUCTS_OF(BF16)
ROW_PRODUCTS_OF(FP8_E4M3)
ROW_PRODUCTS_OF(INT8)

/* The products for 1, 2 or 4 rows. */
static inline const struct row_products *products_for(int32_t dtype, int rows) {
    static const struct row_products table[][3] = {ROW_PRODUCTS_ENTRIES(FP32), ROW_PRODUCTS_ENTRIES(FP16),
                                                   ROW_PRODUCTS_ENTRIES(BF16), ROW_PRODUCTS_ENTRIES(FP8_E4M3),
                                                   ROW_PRODUCTS_ENTRIES(INT8)};
    return &table[dtype][rows / 2];
}

#endif
