/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c (reference): attention from its definition, a row at a time, in the arithmetic of arithmetic.h. It is written
 * for reading and takes every feature of the public header and head dims of any size. */
#include "core/kernel.h"
#include "core/parallel.h"
#include "reference/reference.h"
#include "reference/score.h"

/* The rows of one task: few enough to spread one long head over the threads. */
enum { ROWS_A_TASK = 16 };

struct forward {
    const struct problem *p;
    real *scratch; /* [workers][5 * seq_k + dim_v] */
};

static size_t scratch_reals(const struct problem *p) { return (size_t)(5 * p->a.seq_k + p->a.dim_v); }

static int64_t row_chunks(const struct problem *p) { return (p->a.seq_q + ROWS_A_TASK - 1) / ROWS_A_TASK; }

static void forward_row(const struct row *r, const struct softmax *softmax, real *sum) {
    const struct problem *p = r->p;
    const strobe_attention *a = &p->a;
    for (int64_t x = 0; x < a->dim_v; ++x) sum[x] = 0;
    for (int64_t j = 0; j < r->s.keys; ++j) {
        if (softmax->seen[j] == 0) continue; /* not just P = 0, since 0 * NaN is NaN */
        const int64_t value = strobe__key_offset(&a->v, &r->s, j, r->kv);
        const real p_ij = intermediate(a->q.dtype, softmax->P[j] * softmax->drop[j]);
        const real scale = (real)strobe__key_scale(p, p->scales.v, p->scales.stride_v, &r->s, j, r->kv);
        add_row(sum, p_ij * scale, &a->v, value, a->dim_v);
    }
    const int64_t out = strobe__row_offset(&a->out, &r->s, r->i, r->h);
    for (int64_t x = 0; x < a->dim_v; ++x) store(a->out.data, a->out.dtype, out + x, sum[x]);
    if (a->lse.data) store(a->lse.data, a->lse.dtype, r->lse, softmax->lse);
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    const struct problem *p = f->p;
    const int64_t chunk = index % row_chunks(p), head = index / row_chunks(p);
    const struct sequence s = strobe__sequence(p, head / p->a.heads_q);
    real *scratch = f->scratch + (size_t)worker * scratch_reals(p);
    struct softmax softmax = {.P = scratch, .slope = scratch + p->a.seq_k, .drop = scratch + 2 * p->a.seq_k};
    softmax.input = scratch + 3 * p->a.seq_k;
    softmax.seen = scratch + 4 * p->a.seq_k;
    for (int64_t i = chunk * ROWS_A_TASK; i < (chunk + 1) * ROWS_A_TASK && i < s.rows; ++i) {
        const struct row r = row_of(p, &s, head % p->a.heads_q, i);
        softmax_of(&r, &softmax);
        dropout_of(&r, softmax.drop);
        forward_row(&r, &softmax, scratch + 5 * p->a.seq_k);
    }
}

size_t KERNEL(forward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    return (size_t)strobe__workers(p->a.parallel) * scratch_reals(p) * sizeof(real);
}

strobe_status KERNEL(forward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct forward f = {.p = p, .scratch = execution->workspace};
    strobe__parallel_for(p->a.parallel, p->a.batch * p->a.heads_q * row_chunks(p), forward_task, &f);
    return STROBE_OK;
}
