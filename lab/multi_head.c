/* SPDX-License-Identifier: BSD-3-Clause
 *
 * multi_head.c: multi-head attention on the library; see multi_head.h. The gradients are the chain rule of
 * out = context W_O, context = Attention(Q, K, V), Q = X W_Q, K = Y W_K, V = Y W_V. */
#include "multi_head.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- matrices in fp64 -- */

/* A matrix or its transpose: element (i, j) at at[i * row + j * col]. */
typedef struct view {
    const double *at;
    int64_t row, col;
} view;

static view plain(const double *at, int64_t cols) { return (view){at, cols, 1}; }
static view transposed(const double *at, int64_t cols) { return (view){at, 1, cols}; }

/* C (+)= A B: C is m x n, A m x k, B k x n. */
static void product(double *c, view a, view b, int64_t m, int64_t k, int64_t n, bool add) {
    if (!add) memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t x = 0; x < k; ++x)
            for (int64_t j = 0; j < n; ++j) c[i * n + j] += a.at[i * a.row + x * a.col] * b.at[x * b.row + j * b.col];
}

/* ----------------------------------------------------------------------- between fp64 and the dtype of the attention -- */

static size_t element_bytes(const lab_multi_head *layer) {
    return layer->dtype == STROBE_FP64 ? sizeof(double) : sizeof(float);
}

static void narrow(const lab_multi_head *layer, void *to, const double *from, int64_t count) {
    if (layer->dtype == STROBE_FP64)
        memcpy(to, from, (size_t)count * sizeof *from);
    else
        for (int64_t e = 0; e < count; ++e) ((float *)to)[e] = (float)from[e];
}

static void widen(const lab_multi_head *layer, double *to, const void *from, int64_t count) {
    if (layer->dtype == STROBE_FP64)
        memcpy(to, from, (size_t)count * sizeof *to);
    else
        for (int64_t e = 0; e < count; ++e) to[e] = (double)((const float *)from)[e];
}

static strobe_attention attention_of(const lab_multi_head *layer, const lab_multi_head_saved *saved) {
    return (strobe_attention){.struct_size = sizeof(strobe_attention),
                              .batch = layer->batch,
                              .seq_q = layer->seq_q,
                              .seq_k = layer->seq_k,
                              .heads_q = layer->heads,
                              .dim = layer->dim,
                              .dtype = (int32_t)layer->dtype,
                              .mask = (int32_t)layer->mask,
                              .parallel = layer->parallel,
                              .q.data = saved->q,
                              .k.data = saved->k,
                              .v.data = saved->v,
                              .out.data = saved->context,
                              .lse = {.data = saved->lse, .dtype = (int32_t)layer->dtype}};
}

/* ----------------------------------------------------------------------------------------------------- the two passes -- */

strobe_status lab_multi_head_forward(const lab_multi_head *layer, double *out, lab_multi_head_saved *saved) {
    const int64_t rows_q = layer->batch * layer->seq_q, rows_k = layer->batch * layer->seq_k;
    const int64_t width = layer->width, inner = layer->heads * layer->dim, most = rows_q > rows_k ? rows_q : rows_k;
    const size_t bytes = element_bytes(layer);
    *saved = (lab_multi_head_saved){.q = calloc((size_t)(rows_q * inner), bytes),
                                    .k = calloc((size_t)(rows_k * inner), bytes),
                                    .v = calloc((size_t)(rows_k * inner), bytes),
                                    .context = calloc((size_t)(rows_q * inner), bytes),
                                    .lse = calloc((size_t)(rows_q * layer->heads), bytes)};
    double *heads = calloc((size_t)(most * inner), sizeof *heads); /* one projection */
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (heads && saved->q && saved->k && saved->v && saved->context && saved->lse) {
        product(heads, plain(layer->x, width), plain(layer->w_q, inner), rows_q, width, inner, false);
        narrow(layer, saved->q, heads, rows_q * inner);
        product(heads, plain(layer->y, width), plain(layer->w_k, inner), rows_k, width, inner, false);
        narrow(layer, saved->k, heads, rows_k * inner);
        product(heads, plain(layer->y, width), plain(layer->w_v, inner), rows_k, width, inner, false);
        narrow(layer, saved->v, heads, rows_k * inner);
        const strobe_attention attention = attention_of(layer, saved);
        status = strobe_forward(&attention, NULL, 0, NULL);
        widen(layer, heads, saved->context, rows_q * inner);
        product(out, plain(heads, inner), plain(layer->w_o, width), rows_q, inner, width, false);
    }
    free(heads);
    if (status != STROBE_OK) lab_multi_head_free(saved);
    return status;
}

/* Gradients inside the layer: of the context, and of q, k, v, in the attention's dtype and in fp64. */
typedef struct inside {
    void *dcontext, *dq, *dk, *dv;
    double *wide;
} inside;

static void free_inside(inside *g) {
    free(g->dcontext);
    free(g->dq);
    free(g->dk);
    free(g->dv);
    free(g->wide);
}

/* One projection's gradients: head gradients h [rows][inner] give the weight's, x^T h, and the input's, h W^T. */
static void project_back(const lab_multi_head *layer, const double *h, const double *x, const double *w, int64_t rows,
                         double *dw, double *dx, bool add) {
    const int64_t inner = layer->heads * layer->dim;
    product(dw, transposed(x, layer->width), plain(h, inner), layer->width, rows, inner, false);
    product(dx, plain(h, inner), transposed(w, inner), rows, inner, layer->width, add);
}

strobe_status lab_multi_head_backward(const lab_multi_head *layer, const lab_multi_head_saved *saved, const double *dout,
                                      const lab_multi_head_gradients *gradients) {
    const int64_t rows_q = layer->batch * layer->seq_q, rows_k = layer->batch * layer->seq_k;
    const int64_t width = layer->width, inner = layer->heads * layer->dim, most = rows_q > rows_k ? rows_q : rows_k;
    const size_t bytes = element_bytes(layer);
    inside g = {calloc((size_t)(rows_q * inner), bytes), calloc((size_t)(rows_q * inner), bytes),
                calloc((size_t)(rows_k * inner), bytes), calloc((size_t)(rows_k * inner), bytes),
                calloc((size_t)(most * inner), sizeof(double))};
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (g.dcontext && g.dq && g.dk && g.dv && g.wide) {
        widen(layer, g.wide, saved->context, rows_q * inner);
        product(gradients->dw_o, transposed(g.wide, inner), plain(dout, width), inner, rows_q, width, false);
        product(g.wide, plain(dout, width), transposed(layer->w_o, width), rows_q, width, inner, false);
        narrow(layer, g.dcontext, g.wide, rows_q * inner);

        const strobe_attention attention = attention_of(layer, saved);
        const strobe_gradients through = {
            .struct_size = sizeof through, .dout.data = g.dcontext, .dq.data = g.dq, .dk.data = g.dk, .dv.data = g.dv};
        status = strobe_backward(&attention, &through, NULL, 0, NULL);

        widen(layer, g.wide, g.dq, rows_q * inner);
        project_back(layer, g.wide, layer->x, layer->w_q, rows_q, gradients->dw_q, gradients->dx, false);
        widen(layer, g.wide, g.dk, rows_k * inner);
        project_back(layer, g.wide, layer->y, layer->w_k, rows_k, gradients->dw_k, gradients->dy,
                     gradients->dy == gradients->dx);
        widen(layer, g.wide, g.dv, rows_k * inner);
        project_back(layer, g.wide, layer->y, layer->w_v, rows_k, gradients->dw_v, gradients->dy, true);
    }
    free_inside(&g);
    return status;
}

void lab_multi_head_free(lab_multi_head_saved *saved) {
    free(saved->q);
    free(saved->k);
    free(saved->v);
    free(saved->context);
    free(saved->lse);
    *saved = (lab_multi_head_saved){0};
}
