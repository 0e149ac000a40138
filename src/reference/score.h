/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score.h: one row of scores, in the order that the public header fixes, dot * scale -> softcap -> + bias + ALiBi -> mask,
 * then its softmax with an optional sink, and dropout. The forward and the backward of this folder share it. */
#ifndef STROBE_REFERENCE_SCORE_H
#define STROBE_REFERENCE_SCORE_H

#include "reference/arithmetic.h"
#include "reference/tensor_core.h"

/* A row of one head, and where its operands are. */
struct row {
    const struct problem *p;
    struct sequence s;
    int64_t h, kv, i;
    int64_t first, end; /* the keys inside the band */
    int64_t q;          /* offset of its query in a.q */
    int64_t lse;        /* offset of its element in lse and of the same row in dlse */
};

/* The softmax of a row. */
struct softmax {
    real *P;     /* [seq_k] exp(score - lse), 0 for hidden keys */
    real *slope; /* [seq_k] d score / d (dot * scale): 1 without softcap */
    real *drop;  /* [seq_k] the factor of dropout: 0, or 1 / (1 - p); 1 without dropout */
    real *input; /* [seq_k] what the user's function was given; only where there is one */
    real *seen;  /* [seq_k] 1 for visible keys, 0 for hidden ones */
    real lse;
    real P_sink; /* exp(sink - lse), 0 without a sink */
};

static inline struct row row_of(const struct problem *p, const struct sequence *s, int64_t h, int64_t i) {
    struct row r = {.p = p, .s = *s, .h = h, .kv = h / p->group, .i = i};
    r.first = band_first(&s->band, i);
    r.end = band_end(&s->band, i);
    r.q = strobe__row_offset(&p->a.q, s, i, h);
    r.lse = strobe__row_offset(&p->a.lse, s, i, h);
    return r;
}

static inline real bias_of(const struct row *r, int64_t j) {
    const strobe_bias *bias = &r->p->bias;
    const int64_t row = r->s.b * bias->stride[0] + r->h * bias->stride[1] + r->i * bias->stride[2];
    return load(bias->data, bias->dtype, row + j);
}

/* What a program of the user's function gives for a score: the value of one of its nodes. All of it is in value. */
static inline double function_value(const struct row *r, int64_t j, double score, const struct score_program *program,
                                    uint16_t node, double value[SCORE_MOST_NODES]) {
    const struct score_place place = strobe__score_place(r->p, &r->s, r->h, r->i, j);
    strobe__score_evaluate(&r->p->score_call, program, &place, score, sizeof(real) == sizeof(float), value);
    return value[node];
}

static inline bool is_visible_by_function(const struct row *r, int64_t j) {
    const struct strobe_score *f = r->p->score_call.function;
    double value[SCORE_MOST_NODES];
    return function_value(r, j, 0, &f->of_visible, f->visible, value) != 0;
}

static inline bool is_visible(const struct row *r, int64_t j) {
    const struct problem *p = r->p;
    if (j < r->first || j >= r->end || !strobe__key_exists(&r->s, j)) return false;
    if (p->a.bool_mask) {
        const int64_t *stride = p->bool_mask.stride;
        if (!p->bool_mask.data[r->s.b * stride[0] + r->h * stride[1] + r->i * stride[2] + j]) return false;
    }
    if (p->a.block_mask) {
        const strobe_block_mask *m = &p->block_mask;
        const int64_t row = r->s.b * m->stride[0] + r->h * m->stride[1] + r->i / m->block_q * m->stride[2];
        if (!m->data[row + j / m->block_k]) return false;
    }
    if (p->a.bias && bias_of(r, j) == -(real)INFINITY) return false;
    return !(p->features & FEATURE(VISIBLE)) || is_visible_by_function(r, j);
}

/* The dot product of a row of `left` and a row of `right`. In float64 the order of the sum is of no matter, and one sum
 * alone would wait for itself; the error of standard attention is that of one sum. */
#if defined(STROBE_STANDARD)
enum { SUMS = 1 };
#else
enum { SUMS = 8 };
#endif
static inline real dot(const strobe_tensor *left, int64_t left_row, const strobe_tensor *right, int64_t right_row,
                       int64_t n) {
    real sum[SUMS] = {0}, left_room[ROW_PART], right_room[ROW_PART];
    for (int64_t x0 = 0; x0 < n; x0 += ROW_PART) {
        const int64_t count = part_of(n, x0), even = count - count % SUMS;
        const real *a = load_part(left_room, left->data, left->dtype, left_row + x0, count);
        const real *b = load_part(right_room, right->data, right->dtype, right_row + x0, count);
        for (int64_t x = 0; x < even; x += SUMS)
            for (int64_t lane = 0; lane < SUMS; ++lane) sum[lane] += a[x + lane] * b[x + lane];
        for (int64_t x = even; x < count; ++x) sum[0] += a[x] * b[x];
    }
    for (int64_t lane = 1; lane < SUMS; ++lane) sum[0] += sum[lane];
    return sum[0];
}

/* Adds the n elements of a row, times factor, to sum. */
static inline void add_row(real *restrict sum, real factor, const strobe_tensor *row, int64_t at, int64_t n) {
    real room[ROW_PART];
    for (int64_t x0 = 0; x0 < n; x0 += ROW_PART) {
        const int64_t count = part_of(n, x0);
        const real *restrict part = load_part(room, row->data, row->dtype, at + x0, count);
        for (int64_t x = 0; x < count; ++x) sum[x0 + x] += factor * part[x];
    }
}

/* The dot product of a query and a key. */
static inline real product(const struct problem *p, int64_t query, int64_t key) {
    const strobe_tensor *q = &p->a.q, *k = &p->a.k;
#if defined(STROBE_TENSOR_CORE)
    float sum = 0;
    for (int64_t x0 = 0; x0 < p->a.dim; x0 += TENSOR_CORE_STEP) {
        const int64_t n = p->a.dim - x0 < TENSOR_CORE_STEP ? p->a.dim - x0 : TENSOR_CORE_STEP;
        float left[TENSOR_CORE_STEP], right[TENSOR_CORE_STEP];
        for (int64_t x = 0; x < n; ++x)
            left[x] = load(q->data, q->dtype, query + x0 + x), right[x] = load(k->data, k->dtype, key + x0 + x);
        sum = tensor_core_step(sum, left, right, n);
    }
    return sum;
#else
    return dot(q, query, k, key, p->a.dim);
#endif
}

/* The score of a visible key, and its derivative by dot * scale, in slope. */
static inline real score(const struct row *r, int64_t j, real *slope) {
    const struct problem *p = r->p;
    const strobe_attention *a = &p->a;
    const int64_t key = strobe__key_offset(&a->k, &r->s, j, r->kv);
    const real key_scale = (real)strobe__key_scale(p, p->scales.k, p->scales.stride_k, &r->s, j, r->kv);
    const real row_scale = (real)strobe__row_scale(p, &r->s, r->i, r->h);
    real x = intermediate(a->q.dtype, product(p, r->q, key) * row_scale * key_scale * (real)a->scale);
    *slope = 1;
    if (a->softcap > 0) {
        const real t = REAL(tanh)(x / (real)a->softcap);
        x = intermediate(a->q.dtype, (real)a->softcap * t);
        *slope = 1 - t * t;
    }
    if (a->bias) x = intermediate(a->q.dtype, x + bias_of(r, j));
    if (a->alibi) {
        const int64_t distance = r->i + strobe__alibi_diagonal(p, &r->s) - j;
        const real alibi = (real)p->alibi.slopes[r->s.b * p->alibi.stride_batch + r->h];
        x = intermediate(a->q.dtype, x - alibi * (real)(distance < 0 ? -distance : distance));
    }
    return x;
}

/* The score after the user's function, of what it is given. */
static inline real score_by_function(const struct row *r, int64_t j, real input) {
    const struct strobe_score *f = r->p->score_call.function;
    double value[SCORE_MOST_NODES];
    return intermediate(r->p->a.q.dtype, (real)function_value(r, j, (double)input, &f->of_score, f->score, value));
}

/* Safe softmax in three loops over the row: maximum, sum, P. */
static inline void softmax_of(const struct row *r, struct softmax *out) {
    const struct problem *p = r->p;
    const int64_t keys = r->s.keys;
    const real sink = p->a.sinks ? load(p->sinks.data, p->sinks.dtype, r->h) : -(real)INFINITY;
    real maximum = sink, sum = 0;
    for (int64_t j = 0; j < keys; ++j) {
        out->P[j] = -(real)INFINITY;
        out->slope[j] = 0;
        out->seen[j] = is_visible(r, j);
        if (out->seen[j] == 0) continue;
        out->P[j] = score(r, j, &out->slope[j]);
        if (p->features & FEATURE(SCORE)) {
            out->input[j] = out->P[j];
            out->P[j] = score_by_function(r, j, out->P[j]);
            if (out->P[j] == -(real)INFINITY) out->seen[j] = 0;
        }
        if (!(out->P[j] <= maximum)) maximum = out->P[j]; /* true of a NaN too, which then stays */
    }
    const real shift = maximum == -(real)INFINITY ? 0 : maximum;
    for (int64_t j = 0; j < keys; ++j) sum += REAL(exp)(out->P[j] - shift);
    sum += REAL(exp)(sink - shift);
    out->lse = shift + REAL(log)(sum);
    out->P_sink = sum > 0 ? REAL(exp)(sink - shift) / sum : 0;
    for (int64_t j = 0; j < keys; ++j)
        out->P[j] = out->P[j] == -(real)INFINITY ? 0 : weight_of(p->a.q.dtype, REAL(exp)(out->P[j] - shift), sum);
}

/* The factor of dropout for each key of the row. */
static inline void dropout_of(const struct row *r, real *drop) {
    const struct problem *p = r->p;
    for (int64_t j = 0; j < r->s.keys; ++j) drop[j] = 1;
    if (!p->a.dropout) return;
    const struct dropout_place place = strobe__dropout_place(p);
    const uint64_t row = dropout_row(&place, r->s.b, r->h, r->i);
    const real keep = (real)(1 / (1 - p->dropout.p));
    for (int64_t j = 0; j < r->s.keys; ++j) drop[j] = dropout_keeps(&place, row, j) ? keep : 0;
}

#endif
