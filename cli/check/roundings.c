/* SPDX-License-Identifier: BSD-3-Clause
 *
 * roundings.c: attention in float64 but for the roundings that FlashAttention-2 has; see roundings.h. */
#include "check/roundings.h"

#include "problem/element.h"

#include <math.h>
#include <stdlib.h>

/* Two samples of n errors: their norms differ by some 1 / sqrt(n). */
static const double most_over = 1.03, deviations = 8;
enum { LEAST_ELEMENTS = 16384, MOST_PRODUCTS = 1 << 28 };

bool roundings_apply(const problem *p) {
    const bool half = p->dtype == STROBE_FP16 || p->dtype == STROBE_BF16,
               causal = p->mask == STROBE_MASK_CAUSAL_TOP_LEFT || p->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    const bool beside = p->kv_dtype || p->softcap != 0 || p->dropout != 0 || p->varlen || p->bool_mask || p->bias ||
                        p->block_q || p->alibi || p->sinks || p->dlse || p->nan || p->scales || p->q_scales ||
                        p->scale != 0 || p->split_keys || p->score[0] || p->visible[0] ||
                        p->layout == LAYOUT_OVERLAPPING; /* of keys that are one dQ is 0, and its error has no measure */
    const bool usual = p->values == VALUES_NORMAL || p->values == VALUES_OUTLIERS;
    const bool is_square = p->seq_q == p->seq_k && p->q_start == p->k_start;
    const int64_t queries = p->batch * p->heads_q * p->seq_q, keys = p->batch * p->heads_kv * p->seq_k;
    const int64_t fewest = queries < keys ? queries : keys, columns = p->dim < p->dim_v ? p->dim : p->dim_v;
    return p->device == STROBE_CUDA && half && usual && !beside && (p->mask == STROBE_MASK_NONE || (causal && is_square)) &&
           fewest * columns >= LEAST_ELEMENTS && queries * p->seq_k * (p->dim + p->dim_v) <= MOST_PRODUCTS;
}

/* A head of a batch entry: its tensors in float64, and sums over keys, which the query heads of a group share. */
typedef struct part {
    const inputs *in;
    int64_t batch, head, head_kv, queries, keys, dim, dim_v;
    double *k, *v, *dk, *dv, *row; /* row: P, or dS */
} part;

static void load(double *to, const inputs *in, tensor_id id, int64_t batch, int64_t row, int64_t head) {
    const buffer *b = &in->tensor[id];
    const unsigned char *from = inputs_row(in, id, b, batch, row, head);
    for (int64_t c = 0; c < b->extent[3]; ++c) to[c] = element_load(from + (size_t)c * element_bytes(b->dtype), b->dtype);
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t c = 0; c < count; ++c) sum += a[c] * b[c];
    return sum;
}

static void add(double *to, double weight, const double *row, int64_t count) {
    for (int64_t c = 0; c < count; ++c) to[c] += weight * row[c];
}

static double rounded(const part *t, double x) { return element_round(t->in->problem.dtype, x); }

static int64_t visible_keys(const part *t, int64_t i) { return t->in->problem.mask == STROBE_MASK_NONE ? t->keys : i + 1; }

static double scale_of(const part *t) { return t->in->problem.scale != 0 ? t->in->problem.scale : 1 / sqrt((double)t->dim); }

/* The squares of the errors of a row, once it is rounded, and of the row. */
static void count_error(const part *t, const double *row, tensor_id id, const buffer *reference, int64_t i, int64_t head,
                        double squares[2]) {
    const double *right = (const double *)(const void *)inputs_row(t->in, id, reference, t->batch, i, head);
    for (int64_t c = 0; c < reference->extent[3]; ++c) {
        const double error = rounded(t, row[c]) - right[c];
        squares[0] += error * error, squares[1] += right[c] * right[c];
    }
}

/* O of row i, from q. */
static void forward_row(const part *t, int64_t i, const double *q, double *out) {
    const int64_t keys = visible_keys(t, i);
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; ++j) most = fmax(most, t->row[j] = scale_of(t) * dot(q, t->k + j * t->dim, t->dim));
    for (int64_t c = 0; c < t->dim_v; ++c) out[c] = 0;
    for (int64_t j = 0; j < keys; ++j) {
        const double weight = exp(t->row[j] - most);
        sum += weight;
        add(out, rounded(t, weight), t->v + j * t->dim_v, t->dim_v);
    }
    for (int64_t c = 0; c < t->dim_v; ++c) out[c] /= sum;
}

/* dQ of row i, from q, dO and O; adds to dK and dV. */
static void backward_row(const part *t, int64_t i, const double *q, const double *dout, const double *out, double *dq) {
    double lse;
    load(&lse, t->in, T_LSE, t->batch, i, t->head);
    const double delta = dot(dout, out, t->dim_v);
    for (int64_t c = 0; c < t->dim; ++c) dq[c] = 0;
    for (int64_t j = 0; j < visible_keys(t, i); ++j) {
        const double *k = t->k + j * t->dim, weight = exp(scale_of(t) * dot(q, k, t->dim) - lse);
        const double ds = rounded(t, weight * (dot(dout, t->v + j * t->dim_v, t->dim_v) - delta));
        add(t->dv + j * t->dim_v, rounded(t, weight), dout, t->dim_v);
        add(t->dk + j * t->dim, scale_of(t) * ds, q, t->dim);
        add(dq, scale_of(t) * ds, k, t->dim);
    }
}

/* All rows of a query head. room: for q, dO, O and a result. */
static void process_head(const part *t, tensor_id id, const buffer *reference, double *const room[4], double squares[2]) {
    for (int64_t i = 0; i < t->queries; ++i) {
        load(room[0], t->in, T_Q, t->batch, i, t->head);
        if (id == T_OUT) {
            forward_row(t, i, room[0], room[3]);
        } else {
            load(room[1], t->in, T_DOUT, t->batch, i, t->head), load(room[2], t->in, T_OUT, t->batch, i, t->head);
            backward_row(t, i, room[0], room[1], room[2], room[3]);
        }
        if (id == T_OUT || id == T_DQ) count_error(t, room[3], id, reference, i, t->head, squares);
    }
}

static void process_group(part *t, tensor_id id, const buffer *reference, double *const room[4], double squares[2]) {
    const int64_t group = t->in->problem.heads_q / t->in->problem.heads_kv;
    for (int64_t j = 0; j < t->keys; ++j) {
        load(t->k + j * t->dim, t->in, T_K, t->batch, j, t->head_kv);
        load(t->v + j * t->dim_v, t->in, T_V, t->batch, j, t->head_kv);
    }
    for (int64_t n = 0; n < t->keys * t->dim; ++n) t->dk[n] = 0;
    for (int64_t n = 0; n < t->keys * t->dim_v; ++n) t->dv[n] = 0;
    for (t->head = t->head_kv * group; t->head < (t->head_kv + 1) * group; ++t->head)
        process_head(t, id, reference, room, squares);
    for (int64_t j = 0; j < t->keys && (id == T_DK || id == T_DV); ++j)
        count_error(t, id == T_DK ? t->dk + j * t->dim : t->dv + j * t->dim_v, id, reference, j, t->head_kv, squares);
}

double roundings_allow(const inputs *in, tensor_id id, const buffer *reference) {
    const problem *p = &in->problem;
    const int64_t columns = p->dim > p->dim_v ? p->dim : p->dim_v;
    if (id != T_OUT && id != T_DQ && id != T_DK && id != T_DV) return INFINITY;
    part t = {.in = in, .queries = p->seq_q, .keys = p->seq_k, .dim = p->dim, .dim_v = p->dim_v};
    double *memory = malloc((size_t)(2 * t.keys * (t.dim + t.dim_v) + t.keys + 4 * columns) * sizeof *memory);
    if (!memory) return INFINITY;
    t.k = memory, t.v = t.k + t.keys * t.dim, t.dk = t.v + t.keys * t.dim_v, t.dv = t.dk + t.keys * t.dim;
    t.row = t.dv + t.keys * t.dim_v;
    double *const room[4] = {t.row + t.keys, t.row + t.keys + columns, t.row + t.keys + 2 * columns,
                             t.row + t.keys + 3 * columns};
    double squares[2] = {0, 0};
    for (t.batch = 0; t.batch < p->batch; ++t.batch)
        for (t.head_kv = 0; t.head_kv < p->heads_kv; ++t.head_kv) process_group(&t, id, reference, room, squares);
    free(memory);
    const bool of_keys = id == T_DK || id == T_DV;
    const int64_t count = p->batch * (of_keys ? p->heads_kv * t.keys : p->heads_q * t.queries) * reference->extent[3];
    return sqrt(squares[0] / squares[1]) * (most_over + deviations / sqrt((double)count));
}
