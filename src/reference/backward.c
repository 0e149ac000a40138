/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (reference): the gradients of attention from their definition. out and lse are not read: P and delta are
 * computed again, so that the result carries no rounding of an earlier forward. For a row i, with Z the factors of dropout
 * and s the scale (FlashAttention-2, section 3.2.2, with the derivatives of softcap and bias):
 *
 *   dV_j += P_ij Z_ij dO_i      dP_ij = Z_ij dO_i . V_j      delta_i = sum_j P_ij dP_ij = rowsum(dO_i * O_i)
 *   dS_ij = P_ij (dP_ij - delta_i + dlse_i)                  dbias_ij += dS_ij
 *   dS_ij *= f'_ij, the slope of the user's function of a score, before it is part of dbias
 *   dX_ij = dS_ij softcap'_ij                                dQ_i += s dX_ij K_j     dK_j += s dX_ij Q_i
 *   dsink += P_sink (dlse_i - delta_i)
 *
 * and to each element of an array that the function reads dS_ij times its adjoint is added. A task owns a K/V head and so
 * its dK and dV. With dbias or such gradients, whose sums may cross heads, one task owns everything. */
#include <string.h>

#include "core/parallel.h"
#include "reference/reference.h"
#include "reference/score.h"

struct backward {
    const struct problem *p;
    real *scratch; /* [workers] of struct scratch */
    real *dsinks;  /* [batch][heads_q], where asked */
    real *dbias;   /* the bias's own shape, contiguous, where asked */
    int64_t dbias_extent[3], dbias_stride[3];
    real *of_array[SCORE_MOST_ARRAYS]; /* gradients of the function's arrays, contiguous, where asked */
};

/* Whether sums cross heads: then there is one task, and one worker's memory. */
static bool is_one_task(const struct problem *p) { return p->g.dbias || p->score_call.wants_gradients; }

/* Elements of an array of the user's function. */
static int64_t elements_of(const strobe_score_elements *x) {
    return x->extent[0] * x->extent[1] * x->extent[2] * x->extent[3];
}

/* One worker's memory. */
struct scratch {
    struct softmax softmax;
    real *ds;      /* [seq_k] */
    real *dq;      /* [dim] */
    real *dk, *dv; /* [seq_k][dim], [seq_k][dim_v] */
};

static size_t scratch_reals(const struct problem *p) {
    const strobe_attention *a = &p->a;
    return (size_t)(a->seq_k * (6 + a->dim + a->dim_v) + a->dim);
}

static struct scratch scratch_of(const struct backward *w, int32_t worker) {
    const strobe_attention *a = &w->p->a;
    real *base = w->scratch + (size_t)worker * scratch_reals(w->p);
    struct scratch s = {.softmax = {.P = base, .slope = base + a->seq_k, .drop = base + 2 * a->seq_k}};
    s.softmax.input = base + 3 * a->seq_k;
    s.softmax.seen = base + 4 * a->seq_k;
    s.ds = base + 5 * a->seq_k;
    s.dk = base + 6 * a->seq_k;
    s.dv = s.dk + a->seq_k * a->dim;
    s.dq = s.dv + a->seq_k * a->dim_v;
    return s;
}

/* Finds the extents of dbias, 1 where it is broadcast, and the strides of a contiguous array of them. Returns its size. */
static int64_t dbias_shape(const struct problem *p, int64_t extent[3], int64_t stride[3]) {
    int64_t elements = p->a.seq_k;
    strobe__dbias_extent(p, extent);
    for (int axis = 2; axis >= 0; --axis) {
        stride[axis] = extent[axis] > 1 ? elements : 0;
        elements *= extent[axis];
    }
    return elements;
}

/* The place of the element that a load reads, in a contiguous array of the same extents. */
static int64_t contiguous_place(const struct score_call *call, const struct score_load *load, const double *value) {
    int64_t place = 0;
    for (int axis = 0; axis < call->function->array_rank[load->array]; ++axis)
        place = place * call->array[load->array].extent[axis] + (int64_t)value[load->index[axis]];
    return place;
}

/* dS times the slope of the user's function; its part of the gradients of arrays is added. A zero stays zero. */
static real function_gradient(const struct backward *w, const struct row *r, int64_t j, real input, real ds) {
    const struct score_call *call = &r->p->score_call;
    const struct strobe_score *f = call->function;
    const struct score_program *program = call->wants_gradients ? &f->of_gradients : &f->of_slope;
    double value[SCORE_MOST_NODES];
    if (ds == 0) return 0;
    const real slope = (real)function_value(r, j, (double)input, program, f->slope, value);
    for (int n = 0; n < f->load_count && call->wants_gradients; ++n) {
        const struct score_load *load = &f->load[n];
        if (f->adjoint[n] != NO_NODE && call->wants_gradient[load->array])
            w->of_array[load->array][contiguous_place(call, load, value)] += ds * (real)value[f->adjoint[n]];
    }
    return intermediate(r->p->a.q.dtype, ds * slope);
}

/* Computes dS of the row into t->ds, 0 for hidden keys, and adds the row's part of dbias and dsink. */
static void row_gradient(const struct backward *w, const struct row *r, const struct scratch *t) {
    const struct problem *p = r->p;
    const strobe_attention *a = &p->a;
    const int64_t dout = strobe__row_offset(&p->g.dout, &r->s, r->i, r->h);
    real delta = 0;
    for (int64_t j = 0; j < r->s.keys; ++j) {
        t->ds[j] = 0;
        if (t->softmax.seen[j] == 0) continue;
        const int64_t value = strobe__key_offset(&a->v, &r->s, j, r->kv);
        t->ds[j] = intermediate(a->q.dtype, t->softmax.drop[j] * dot(&p->g.dout, dout, &a->v, value, a->dim_v));
        delta += t->softmax.P[j] * t->ds[j];
    }
    const real dlse = p->g.dlse.data
                          ? load(p->g.dlse.data, p->g.dlse.dtype, strobe__row_offset(&p->g.dlse, &r->s, r->i, r->h))
                          : 0;
    real *dbias = w->dbias + r->s.b * w->dbias_stride[0] + r->h * w->dbias_stride[1] + r->i * w->dbias_stride[2];
    for (int64_t j = 0; j < r->s.keys; ++j) {
        if (t->softmax.seen[j] == 0) continue;
        t->ds[j] = intermediate(a->q.dtype, t->softmax.P[j] * (t->ds[j] - delta + dlse));
        if (p->features & FEATURE(SCORE)) t->ds[j] = function_gradient(w, r, j, t->softmax.input[j], t->ds[j]);
        if (p->g.dbias) dbias[j] += t->ds[j];
        t->ds[j] = intermediate(a->q.dtype, t->ds[j] * t->softmax.slope[j]);
    }
    if (p->g.dsinks) w->dsinks[r->s.b * a->heads_q + r->h] += t->softmax.P_sink * (dlse - delta);
}

/* Computes and stores the row's dQ, and adds its part of dK and dV. */
static void row_products(const struct row *r, const struct scratch *t) {
    const struct problem *p = r->p;
    const strobe_attention *a = &p->a;
    const real scale = (real)a->scale;
    const int64_t dout = strobe__row_offset(&p->g.dout, &r->s, r->i, r->h);
    memset(t->dq, 0, (size_t)a->dim * sizeof(real));
    for (int64_t j = 0; j < r->s.keys; ++j) {
        if (t->softmax.seen[j] == 0) continue;
        const int64_t key = strobe__key_offset(&a->k, &r->s, j, r->kv);
        const real p_ij = intermediate(a->q.dtype, t->softmax.P[j] * t->softmax.drop[j]);
        add_row(t->dv + j * a->dim_v, p_ij, &p->g.dout, dout, a->dim_v);
        add_row(t->dq, scale * t->ds[j], &a->k, key, a->dim);
        add_row(t->dk + j * a->dim, scale * t->ds[j], &a->q, r->q, a->dim);
    }
    const int64_t dq = strobe__row_offset(&p->g.dq, &r->s, r->i, r->h);
    for (int64_t x = 0; x < a->dim; ++x) store(p->g.dq.data, p->g.dq.dtype, dq + x, t->dq[x]);
}

static void backward_head(const struct backward *w, struct scratch *t, int64_t b, int64_t kv) {
    const struct problem *p = w->p;
    const strobe_attention *a = &p->a;
    const struct sequence s = strobe__sequence(p, b);
    memset(t->dk, 0, (size_t)(s.keys * a->dim) * sizeof(real));
    memset(t->dv, 0, (size_t)(s.keys * a->dim_v) * sizeof(real));
    for (int64_t h = kv * p->group; h < (kv + 1) * p->group; ++h)
        for (int64_t i = 0; i < s.rows; ++i) {
            const struct row r = row_of(p, &s, h, i);
            softmax_of(&r, &t->softmax);
            dropout_of(&r, t->softmax.drop);
            row_gradient(w, &r, t);
            row_products(&r, t);
        }
    for (int64_t j = 0; j < s.keys; ++j) {
        const int64_t dk = strobe__key_offset(&p->g.dk, &s, j, kv), dv = strobe__key_offset(&p->g.dv, &s, j, kv);
        for (int64_t x = 0; x < a->dim; ++x) store(p->g.dk.data, p->g.dk.dtype, dk + x, t->dk[j * a->dim + x]);
        for (int64_t x = 0; x < a->dim_v; ++x) store(p->g.dv.data, p->g.dv.dtype, dv + x, t->dv[j * a->dim_v + x]);
    }
}

static void backward_task(void *context, int64_t index, int32_t worker) {
    const struct backward *w = context;
    const strobe_attention *a = &w->p->a;
    struct scratch t = scratch_of(w, is_one_task(w->p) ? 0 : worker); /* one task has one scratch */
    const int64_t heads = is_one_task(w->p) ? a->batch * a->heads_kv : 1;
    for (int64_t head = index * heads; head < (index + 1) * heads; ++head)
        backward_head(w, &t, head / a->heads_kv, head % a->heads_kv);
}

static void store_dsinks(const struct backward *w) {
    const strobe_attention *a = &w->p->a;
    for (int64_t h = 0; h < a->heads_q; ++h) {
        real sum = 0;
        for (int64_t b = 0; b < a->batch; ++b) sum += w->dsinks[b * a->heads_q + h];
        store(w->p->dsinks.data, w->p->dsinks.dtype, h, sum);
    }
}

static void store_dbias(const struct backward *w) {
    const strobe_attention *a = &w->p->a;
    const int64_t *to = w->p->dbias.stride, *from = w->dbias_stride;
    for (int64_t b = 0; b < w->dbias_extent[0]; ++b)
        for (int64_t h = 0; h < w->dbias_extent[1]; ++h)
            for (int64_t i = 0; i < w->dbias_extent[2]; ++i)
                for (int64_t j = 0; j < a->seq_k; ++j)
                    store(w->p->dbias.data, w->p->dbias.dtype, b * to[0] + h * to[1] + i * to[2] + j,
                          w->dbias[b * from[0] + h * from[1] + i * from[2] + j]);
}

/* Stores the gradient of an array, whose sums are contiguous. */
static void store_array(const struct backward *w, int n) {
    const strobe_score_elements *to = &w->p->score_call.gradient[n];
    const int64_t elements = elements_of(to);
    for (int64_t e = 0; e < elements; ++e) {
        int64_t rest = e, at = 0;
        for (int axis = SCORE_MOST_RANK - 1; axis >= 0; --axis) {
            at += rest % to->extent[axis] * to->stride[axis];
            rest /= to->extent[axis];
        }
        store(to->data, to->dtype, at, w->of_array[n][e]);
    }
}

/* Lays out the gradients of arrays from `base` on. Returns their size. */
static size_t arrays_lay_out(struct backward *w, real *base) {
    const struct score_call *call = &w->p->score_call;
    size_t used = 0;
    for (int n = 0; call->wants_gradients && n < call->function->array_count; ++n) {
        if (!call->wants_gradient[n]) continue;
        w->of_array[n] = base ? base + used : NULL;
        used += (size_t)elements_of(&call->array[n]);
    }
    return used;
}

size_t KERNEL(backward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    int64_t extent[3], stride[3];
    struct backward w = {.p = p};
    size_t reals = (size_t)(is_one_task(p) ? 1 : strobe__workers(p->a.parallel)) * scratch_reals(p) +
                   arrays_lay_out(&w, NULL);
    if (p->g.dsinks) reals += (size_t)(p->a.batch * p->a.heads_q);
    if (p->g.dbias) reals += (size_t)dbias_shape(p, extent, stride);
    return reals * sizeof(real);
}

strobe_status KERNEL(backward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct backward w = {.p = p, .scratch = execution->workspace};
    w.dsinks = w.scratch + (size_t)(is_one_task(p) ? 1 : strobe__workers(p->a.parallel)) * scratch_reals(p);
    w.dbias = w.dsinks + (p->g.dsinks ? p->a.batch * p->a.heads_q : 0);
    if (p->g.dsinks) memset(w.dsinks, 0, (size_t)(p->a.batch * p->a.heads_q) * sizeof(real));
    if (p->g.dbias) memset(w.dbias, 0, (size_t)dbias_shape(p, w.dbias_extent, w.dbias_stride) * sizeof(real));
    real *const arrays = w.dbias + (p->g.dbias ? dbias_shape(p, w.dbias_extent, w.dbias_stride) : 0);
    memset(arrays, 0, arrays_lay_out(&w, arrays) * sizeof(real));
    strobe__parallel_for(p->a.parallel, is_one_task(p) ? 1 : p->a.batch * p->a.heads_kv, backward_task, &w);
    if (p->g.dsinks) store_dsinks(&w);
    if (p->g.dbias) store_dbias(&w);
    for (int n = 0; n < SCORE_MOST_ARRAYS; ++n)
        if (w.of_array[n]) store_array(&w, n);
    return STROBE_OK;
}
