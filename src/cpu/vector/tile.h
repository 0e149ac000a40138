/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile.h: a tile of query rows, and the products that it takes part in. Query rows lie across the lanes: an operand of a
 * tile is stored transposed, [column][TILE_ROWS], so that the softmax has no horizontal step. K and V are read as they lie
 * in memory, one element broadcast to all lanes. Forward and backward need three products, made of two register tiles:
 *
 *     tile_scores      S[j][row]  = sum_x    A[j][x] Q[x][row]                      S^T = K Q^T,     dP^T = V dO^T
 *     tile_outer       G[j][x]   += sum_row  P[j][row] Y[row][x]                    dV += P^T dO,    dK += dS^T Q
 *     tile_accumulate  O[x][row]  = c[row] O[x][row] + sum_j  A[j][x] P[j][row]     O^T += V^T P^T,  dQ^T += K^T dS^T
 *
 * A register tile is UNROLL x VECTORS vectors of sums. Rows left over from UNROLL are done one by one, and tiles with few
 * rows use fewer vectors. The order of each sum depends on shapes alone. Loops over the depth take four steps at a time:
 * that is an instruction in ten less, where another thread of the core takes its share of what the processor can issue. */
#ifndef STROBE_CPU_TILE_H
#define STROBE_CPU_TILE_H

#include <stdbool.h>

#include "core/element.h"
#include "cpu/level.h"

enum { TILE_ROWS = LANES * VECTORS, BLOCK_KEYS = 64, LINE_FLOATS = 16 /* of a line of a cache */ };

/* Rows of K or V as fp32: the tensor itself, a converted block, or panels (panels.h), in which a product walks through
 * memory in order. */
struct rows32 {
    const float *data;
    int64_t stride;
    bool panels; /* of keys for tile_scores(), of columns for tile_accumulate(); stride is not used */
};

/* What the sums of a product are: new, or added to C when they are made, so that no product waits for it, while what the
 * next call adds to is brought into L1. */
enum sums { SUMS_NEW, SUMS_ADDED };

/* C[i][column] (+)= sum_x A[i][x] B[x][column], i < rows, column < vectors * LANES; a_step: from one x to the next. */
ALWAYS_INLINE void product_kernel(float *c, int64_t c_stride, const float *a, int64_t a_stride, int64_t a_step,
                                  const float *b, int64_t b_stride, int64_t depth, enum sums sums, int rows, int vectors) {
    const bool at_end = sums == SUMS_ADDED;
    vec sum[UNROLL][VECTORS];
    for (int i = 0; i < rows; ++i)
        for (int n = 0; n < vectors; ++n) sum[i][n] = v_set(0);
    for (int i = 0; at_end && i < rows; ++i)
        for (int at = 0; at < vectors * LANES; at += LINE_FLOATS) __builtin_prefetch(c + (rows + i) * c_stride + at, 1, 3);
#pragma GCC unroll 4
    for (int64_t x = 0; x < depth; ++x) {
        vec row[VECTORS];
        for (int n = 0; n < vectors; ++n) row[n] = v_load(b + x * b_stride + n * LANES);
        for (int i = 0; i < rows; ++i) {
            const vec element = v_set(a[i * a_stride + x * a_step]);
            for (int n = 0; n < vectors; ++n) sum[i][n] = v_fma(element, row[n], sum[i][n]);
        }
    }
    for (int i = 0; i < rows; ++i)
        for (int n = 0; n < vectors; ++n) {
            float *at = c + i * c_stride + n * LANES;
            v_store(at, at_end ? v_add(v_load(at), sum[i][n]) : sum[i][n]);
        }
}

ALWAYS_INLINE void product_of_width(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                                    int64_t b_stride, int64_t depth, int64_t rows, enum sums sums, int vectors) {
    int64_t i = 0;
    for (; i + UNROLL <= rows; i += UNROLL)
        product_kernel(c + i * c_stride, c_stride, a + i * a_stride, a_stride, 1, b, b_stride, depth, sums, UNROLL, vectors);
    for (; i < rows; ++i)
        product_kernel(c + i * c_stride, c_stride, a + i * a_stride, a_stride, 1, b, b_stride, depth, sums, 1, vectors);
}

/* Scores of keys in panels; those without a panel lie as they are. */
ALWAYS_INLINE void panels_of_width(float *s, const float *a, const float *q, int64_t columns, int64_t keys, int vectors) {
    int64_t j = 0;
    for (; j + UNROLL <= keys; j += UNROLL)
        product_kernel(s + j * TILE_ROWS, TILE_ROWS, a + j * columns, 1, UNROLL, q, TILE_ROWS, columns, SUMS_NEW, UNROLL,
                       vectors);
    for (; j < keys; ++j)
        product_kernel(s + j * TILE_ROWS, TILE_ROWS, a + j * columns, 0, 1, q, TILE_ROWS, columns, SUMS_NEW, 1, vectors);
}

ALWAYS_INLINE void scores_of_width(float *s, struct rows32 a, const float *q, int64_t columns, int64_t keys, int vectors) {
    if (a.panels)
        panels_of_width(s, a.data, q, columns, keys, vectors);
    else
        product_of_width(s, TILE_ROWS, a.data, a.stride, q, TILE_ROWS, columns, keys, SUMS_NEW, vectors);
}

/* C[x][column] = rescale[column] C[x][column] + sum_j A[j][x] B[j][column], x < rows; B and C are [.][TILE_ROWS]. rescale:
 * NULL: C is new. The sum over j is made first, and then added: terms added to C one by one would lose as much as C has
 * grown. ahead: the columns of A that come a line later are brought into L1. Rows of A lie apart, so no processor guesses
 * that. */
ALWAYS_INLINE void transposed_kernel(float *c, const float *a, int64_t a_stride, const float *b, const float *rescale,
                                     int64_t depth, int rows, int vectors, bool ahead) {
    vec sum[UNROLL][VECTORS];
    for (int x = 0; x < rows; ++x)
        for (int n = 0; n < vectors; ++n) sum[x][n] = v_set(0);
#pragma GCC unroll 4
    for (int64_t j = 0; j < depth; ++j) {
        vec row[VECTORS];
        for (int n = 0; n < vectors; ++n) row[n] = v_load(b + j * TILE_ROWS + n * LANES);
        if (ahead) __builtin_prefetch(a + j * a_stride + LINE_FLOATS, 0, 3);
        for (int x = 0; x < rows; ++x) {
            const vec element = v_set(a[j * a_stride + x]);
            for (int n = 0; n < vectors; ++n) sum[x][n] = v_fma(element, row[n], sum[x][n]);
        }
    }
    for (int x = 0; x < rows; ++x)
        for (int n = 0; n < vectors; ++n) {
            float *at = c + x * TILE_ROWS + n * LANES;
            v_store(at, rescale ? v_fma(v_load(at), v_load(rescale + n * LANES), sum[x][n]) : sum[x][n]);
        }
}

ALWAYS_INLINE void transposed_of_width(float *c, struct rows32 a, const float *b, const float *rescale, int64_t depth,
                                       int64_t rows, int vectors) {
    int64_t x = 0;
    for (; a.panels && x + UNROLL <= rows; x += UNROLL)
        transposed_kernel(c + x * TILE_ROWS, a.data + x * depth, UNROLL, b, rescale, depth, UNROLL, vectors, false);
    for (; a.panels && x < rows; ++x)
        transposed_kernel(c + x * TILE_ROWS, a.data + x * depth, 1, b, rescale, depth, 1, vectors, false);
    for (; x + UNROLL <= rows; x += UNROLL)
        if (SMALL_CACHES && x % LINE_FLOATS == 0)
            transposed_kernel(c + x * TILE_ROWS, a.data + x, a.stride, b, rescale, depth, UNROLL, vectors, true);
        else
            transposed_kernel(c + x * TILE_ROWS, a.data + x, a.stride, b, rescale, depth, UNROLL, vectors, false);
    for (; x < rows; ++x) transposed_kernel(c + x * TILE_ROWS, a.data + x, a.stride, b, rescale, depth, 1, vectors, false);
}

/* The number of vectors that n elements fill; for the rows of a tile at most VECTORS, which is at most 4. */
static inline int vectors_of(int64_t n) { return (int)((n + LANES - 1) / LANES); }

static inline void tile_scores(float *s, struct rows32 a, const float *q, int64_t columns, int64_t keys, int vectors) {
    if (vectors == 1)
        scores_of_width(s, a, q, columns, keys, 1);
    else if (vectors == 2)
        scores_of_width(s, a, q, columns, keys, 2);
    else if (VECTORS == 4 && vectors == 3)
        scores_of_width(s, a, q, columns, keys, 3);
    else
        scores_of_width(s, a, q, columns, keys, VECTORS);
}

static inline void tile_accumulate(float *o, struct rows32 a, const float *p, const float *rescale, int64_t keys,
                                   int64_t columns, int vectors) {
    if (vectors == 1)
        transposed_of_width(o, a, p, rescale, keys, columns, 1);
    else if (vectors == 2)
        transposed_of_width(o, a, p, rescale, keys, columns, 2);
    else if (VECTORS == 4 && vectors == 3)
        transposed_of_width(o, a, p, rescale, keys, columns, 3);
    else
        transposed_of_width(o, a, p, rescale, keys, columns, VECTORS);
}

/* The vectors of columns that tile_outer() takes next, of `left`. With four rows a single vector has too few sums to keep
 * the units busy, and four vectors are taken two by two; with eight it has not, and that lost 2 %. */
static inline int64_t outer_vectors(int64_t left) {
    const bool pairs = UNROLL < 8;
    if (left >= VECTORS && !(pairs && VECTORS == 3 && left == 4)) return VECTORS;
    return pairs && left >= 2 ? 2 : 1;
}

/* G and Y are [.][padded], padded a multiple of LANES. */
static inline void tile_outer(float *g, const float *p, const float *y, int64_t padded, int64_t keys, int64_t rows) {
    for (int64_t x = 0, vectors; x < padded; x += vectors * LANES) {
        vectors = outer_vectors((padded - x) / LANES);
        if (vectors == VECTORS)
            product_of_width(g + x, padded, p, TILE_ROWS, y + x, padded, rows, keys, SUMS_ADDED, VECTORS);
        else if (vectors == 2)
            product_of_width(g + x, padded, p, TILE_ROWS, y + x, padded, rows, keys, SUMS_ADDED, 2);
        else
            product_of_width(g + x, padded, p, TILE_ROWS, y + x, padded, rows, keys, SUMS_ADDED, 1);
    }
}

/* Copies one row of a tensor, as fp32. */
static inline void widen_row(float *to, const void *data, int32_t dtype, int64_t at, int64_t columns) {
    int64_t x = 0;
    if (dtype == STROBE_FP32) {
        memcpy(to, (const float *)data + at, (size_t)columns * sizeof *to);
        return;
    }
    if (dtype == STROBE_FP64) {
        for (; x < columns; ++x) to[x] = (float)((const double *)data)[at + x];
        return;
    }
    if (dtype == STROBE_INT8) {
        for (; x < columns; ++x) to[x] = ((const int8_t *)data)[at + x];
        return;
    }
    if (dtype == STROBE_FP8_E4M3) {
        const uint8_t *bytes = (const uint8_t *)data + at;
        for (; x + 2 * LANES <= columns; x += 2 * LANES) {
            const struct vec2 part = v_load2_e4m3(bytes + x);
            v_store(to + x, v_mul(part.a, v_set(256))), v_store(to + x + LANES, v_mul(part.b, v_set(256)));
        }
        for (; x < columns; ++x) to[x] = e4m3_to_float(bytes[x]);
        return;
    }
    const uint16_t *from = (const uint16_t *)data + at;
    if (dtype == STROBE_BF16)
        for (; x + LANES <= columns; x += LANES) v_store(to + x, v_load_bf16(from + x));
    else
        for (; x + LANES <= columns; x += LANES) v_store(to + x, v_load_fp16(from + x));
    for (; x < columns; ++x) to[x] = dtype == STROBE_BF16 ? bf16_to_float(from[x]) : fp16_to_float(from[x]);
}

/* The inverse, rounded to dtype: of a vector, and of a row. */
ALWAYS_INLINE void narrow_vector(void *to, int32_t dtype, int64_t at, vec x) {
    if (dtype == STROBE_FP32)
        v_store((float *)to + at, x);
    else if (dtype == STROBE_BF16)
        v_store_bf16((uint16_t *)to + at, x);
    else if (dtype == STROBE_FP16)
        v_store_fp16((uint16_t *)to + at, x);
    else {
        float row[LANES];
        v_store(row, x);
        for (int64_t n = 0; n < LANES; ++n) element_store(to, dtype, at + n, (double)row[n]);
    }
}

static inline void narrow_row(void *to, int32_t dtype, int64_t at, const float *row, int64_t columns) {
    int64_t x = 0;
    if (dtype == STROBE_FP32) {
        memcpy((float *)to + at, row, (size_t)columns * sizeof *row);
        return;
    }
    for (; x + LANES <= columns; x += LANES) narrow_vector(to, dtype, at + x, v_load(row + x));
    for (; x < columns; ++x) element_store(to, dtype, at + x, (double)row[x]);
}

/* n rows of K or V from element offset `at` on, as fp32: in place, or converted into block [n][columns]. */
static inline struct rows32 widen_rows(float *block, const strobe_tensor *t, int64_t at, int64_t n, int64_t columns) {
    if (t->dtype == STROBE_FP32) return (struct rows32){(const float *)t->data + at, t->stride[1], false};
    for (int64_t j = 0; j < n; ++j) widen_row(block + j * columns, t->data, t->dtype, at + j * t->stride[1], columns);
    return (struct rows32){block, columns, false};
}

#endif
