/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_gradients.h: dbias, the sum of dS over the axes along which the bias is broadcast, dsinks, and the gradients of the
 * arrays of the user's score function (array_gradients.h). dbias is summed in fp32, in the caller's tensor if that is fp32
 * and else in the workspace; the others in float64. All are rounded once. */
#ifndef STROBE_CPU_SCORE_GRADIENTS_H
#define STROBE_CPU_SCORE_GRADIENTS_H

#include <math.h>

#include "cpu/scratch.h"
#include "cpu/vector/array_gradients.h"
#include "cpu/vector/visible.h"

struct score_gradients {
    const struct problem *p;
    bool across_batch, across_heads; /* dbias is summed over batch entries, over heads */
    int64_t batch, heads, rows;      /* extents of the bias, 1 where it is broadcast */
    float *dbias;                    /* the sums; NULL when dbias is not wanted */
    int64_t stride[3];               /* of the sums: batch, head, row */
    double *dsinks;                  /* [batch][heads_q] one sum for each batch entry; NULL when dsinks is not wanted */
    struct array_gradients arrays;
};

/* Lays out the sums in the workspace at `base`; with NULL only counts. Returns bytes. */
static inline size_t score_gradients_lay_out(struct score_gradients *g, void *base, const struct problem *p) {
    const strobe_attention *a = &p->a;
    size_t floats = 0;
    *g = (struct score_gradients){.p = p};
    if (p->g.dsinks) g->dsinks = (double *)(void *)take(base, &floats, 2 * strobe__product(a->batch, a->heads_q));
    array_gradients_lay_out(&g->arrays, base, &floats, p);
    if (!p->g.dbias) return floats * sizeof(float);
    int64_t extent[3];
    strobe__dbias_extent(p, extent);
    g->batch = extent[0];
    g->heads = extent[1];
    g->rows = extent[2];
    g->across_batch = g->batch < a->batch;
    g->across_heads = g->heads < a->heads_q;
    if (g->arrays.slots && (g->across_batch || g->across_heads)) g->arrays.slots = 1;
    if (p->dbias.dtype == STROBE_FP32) {
        g->dbias = p->dbias.data;
        memcpy(g->stride, p->dbias.stride, sizeof g->stride);
        return floats * sizeof(float);
    }
    g->stride[2] = g->rows > 1 ? a->seq_k : 0;
    g->stride[1] = g->heads > 1 ? g->rows * a->seq_k : 0;
    g->stride[0] = g->batch > 1 ? g->heads * g->rows * a->seq_k : 0;
    g->dbias = take(base, &floats, strobe__product(g->batch * g->heads, strobe__product(g->rows, a->seq_k)));
    return floats * sizeof(float);
}

/* Clears the sums. */
static inline void score_gradients_start(const struct score_gradients *g) {
    const strobe_attention *a = &g->p->a;
    if (g->dsinks) memset(g->dsinks, 0, (size_t)(a->batch * a->heads_q) * sizeof *g->dsinks);
    array_gradients_start(&g->arrays);
    if (!g->dbias) return;
    for (int64_t b = 0; b < g->batch; ++b)
        for (int64_t h = 0; h < g->heads; ++h)
            for (int64_t i = 0; i < g->rows; ++i)
                memset(g->dbias + b * g->stride[0] + h * g->stride[1] + i * g->stride[2], 0,
                       (size_t)a->seq_k * sizeof *g->dbias);
}

/* Adds dS of a tile and the keys [j0, j0 + keys) to dbias, LANES rows of LANES keys at a time. Rows that share a sum add to
 * it one after the other. */
static inline void add_to_dbias(const struct score_gradients *g, const struct tile_rows *t, const struct visible_block *v,
                                const float *ds, int64_t j0, int64_t keys) {
    int64_t at[TILE_ROWS];
    find_rows(at, t, g->stride, 1);
    for (int64_t r = v->first * LANES; r < v->end * LANES; r += LANES)
        for (int64_t j = 0; j < keys; j += LANES) {
            float row[LANES];
            vec x[LANES];
            for (int n = 0; n < LANES; ++n) x[n] = j + n < keys ? v_load(ds + (j + n) * TILE_ROWS + r) : v_set(0);
            v_transpose_floats(x);
            for (int64_t lane = 0; lane < LANES && r + lane < t->n; ++lane) {
                float *sum = g->dbias + at[r + lane] + j0 + j;
                if (keys - j >= LANES) {
                    v_store(sum, v_add(v_load(sum), x[lane]));
                    continue;
                }
                v_store(row, x[lane]);
                for (int64_t n = 0; j + n < keys; ++n) sum[n] += row[n];
            }
        }
}

/* Rounds the sums into the caller's tensors, after all tasks. */
static inline void score_gradients_finish(const struct score_gradients *g) {
    const strobe_attention *a = &g->p->a;
    for (int64_t h = 0; g->dsinks && h < a->heads_q; ++h) {
        double sum = 0;
        for (int64_t b = 0; b < a->batch; ++b) sum += g->dsinks[b * a->heads_q + h];
        element_store(g->p->dsinks.data, g->p->dsinks.dtype, h, sum);
    }
    array_gradients_finish(&g->arrays);
    const strobe_bias *to = &g->p->dbias;
    if (!g->dbias || g->dbias == to->data) return;
    for (int64_t b = 0; b < g->batch; ++b)
        for (int64_t h = 0; h < g->heads; ++h)
            for (int64_t i = 0; i < g->rows; ++i)
                for (int64_t j = 0; j < a->seq_k; ++j)
                    element_store(to->data, to->dtype, b * to->stride[0] + h * to->stride[1] + i * to->stride[2] + j,
                                  (double)g->dbias[b * g->stride[0] + h * g->stride[1] + i * g->stride[2] + j]);
}

#endif
