/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c: a schedule's backward. With lse and out of the whole problem each call gives its part of dQ, dK and dV, in
 * fp32. Parts of dQ add up here; those of dK and dV go to the rank that has the keys, and add up there, in the order of the
 * steps. All are rounded once, at the end; or where one call is all there is, by that. dQ of a call that has all keys of its
 * rows is rounded by that call, where the kernel can. */
#include "describe.h"
#include "engine.h"

/* A call, and where its gradients go: into the sums where it is the first to write them, else into parts. */
struct made {
    const struct call *call;
    strobe_tensor dq, dk, dv;                /* of the sums */
    strobe_tensor part_dq, part_dk, part_dv; /* where it writes them */
};

static struct made make(const struct engine *e, const struct call *c, const struct block *gradients,
                        const struct parts *parts) {
    const strobe_attention *a = &e->s->a;
    struct made m = {.call = c, .dq = strobe__tensor_from(e->sum_dq, c->q_row, 0)};
    m.dk = strobe__tensor_from(gradients->k, c->grad_row, 0), m.dv = strobe__tensor_from(gradients->v, c->grad_row, 0);
    m.part_dq = c->rows_fresh ? m.dq : strobe__tensor_of(parts->dq, STROBE_FP32, c->rows, a->heads_q, a->dim);
    m.part_dk = c->keys_fresh ? m.dk : strobe__tensor_of(parts->dk, STROBE_FP32, c->keys, a->heads_kv, a->dim);
    m.part_dv = c->keys_fresh ? m.dv : strobe__tensor_of(parts->dv, STROBE_FP32, c->keys, a->heads_kv, a->dim_v);
    return m;
}

/* Computes the gradients of some K/V heads. */
static strobe_status compute(const struct engine *e, const struct made *m, const struct block *block, int64_t first,
                             int64_t count) {
    struct described d;
    const struct shard *s = e->s;
    const struct call *c = m->call;
    const int64_t head = first * (s->a.heads_q / s->a.heads_kv);
    strobe__dist_describe(s, c, block, &d);
    strobe__dist_take_heads(&d, first, count);
    strobe_gradients g = s->g;
    g.dout = strobe__tensor_from(g.dout, c->q_row, head), g.dlse = strobe__tensor_from(g.dlse, c->q_row, head);
    g.dsinks = NULL, g.dbias = g.dbias ? &d.dbias : NULL;
    if (!strobe__engine_is_whole(e)) {
        g.dq = strobe__engine_rounds_dq(e, c) ? strobe__tensor_from(s->g.dq, c->q_row, head)
                                              : strobe__tensor_from(m->part_dq, 0, head);
        g.dk = strobe__tensor_from(m->part_dk, 0, first), g.dv = strobe__tensor_from(m->part_dv, 0, first);
    }
    return strobe_backward(&d.a, &g, e->kernel, e->kernel_bytes, e->on->stream);
}

/* Adds dQ of some rows of a call to the sum, and rounds it where it is complete. */
static strobe_status add_rows(const struct engine *e, const struct made *m, const struct segment *rows) {
    const struct shard *s = e->s;
    const int64_t first = rows->row - m->call->q_row;
    const strobe_tensor none = {0}, sum = strobe__tensor_from(m->dq, first, 0),
                        part = strobe__tensor_from(m->part_dq, first, 0);
    struct extent extent = {.entries = s->w->entries, .rows = rows->rows, .heads = s->a.heads_q, .dim = s->a.dim};
    extent.to_step = extent.from_step = 1;
    if (rows->last)
        return strobe__round_rows(e->on, s->w, strobe__tensor_from(s->g.dq, rows->row, 0), rows->fresh ? part : sum,
                                  rows->fresh ? none : part, extent, e->zeros);
    if (!rows->fresh)
        strobe__add_rows(e->on, sum, part, extent);
    else if (!m->call->rows_fresh)
        strobe__copy_rows(e->on, sum, part, extent);
    return STROBE_OK;
}

/* Adds what the call has written to the sums, and rounds dQ of rows that are complete. */
static strobe_status add_up(const struct engine *e, const struct made *m) {
    const struct shard *s = e->s;
    const struct call *c = m->call;
    if (strobe__engine_is_whole(e)) return STROBE_OK;
    for (int64_t n = 0; n < c->segment_count && !strobe__engine_rounds_dq(e, c); ++n) TRY(add_rows(e, m, &c->segments[n]));
    if (c->keys_fresh) return STROBE_OK;
    struct extent extent = {.entries = s->w->entries, .rows = c->keys, .heads = s->a.heads_kv, .dim = s->a.dim};
    extent.to_step = extent.from_step = 1;
    strobe__add_rows(e->on, m->dk, m->part_dk, extent);
    extent.dim = s->a.dim_v;
    strobe__add_rows(e->on, m->dv, m->part_dv, extent);
    return STROBE_OK;
}

/* A call on a step's block; of the one of which some heads came early, the others. */
static strobe_status run_call(const struct engine *e, const struct call *c, const struct block *block,
                              const struct block *gradients) {
    const bool is_early = c == strobe__schedule_early(e->schedule);
    const int64_t done = is_early ? e->schedule->early_heads : 0;
    const struct made m = make(e, c, gradients, is_early ? &e->early : &e->part);
    TRY(compute(e, &m, block, done, e->s->a.heads_kv - done));
    return add_up(e, &m);
}

/* Some heads of the shard's own block, while the first K and V travel. */
static strobe_status run_early(const struct engine *e) {
    const struct call *c = strobe__schedule_early(e->schedule);
    if (!c || e->s->w->entries == 0) return STROBE_OK;
    const struct block block = strobe__engine_block(e, 0), gradients = strobe__engine_gradients(e, 0);
    const struct made m = make(e, c, &gradients, &e->early);
    return compute(e, &m, &block, 0, e->schedule->early_heads);
}

/* A call of all rows of the shard and no keys: of its gradients those of the sinks are left. */
static void describe_sinks(const struct engine *e, strobe_attention *a, strobe_gradients *g) {
    const struct shard *s = e->s;
    const strobe_tensor fp32 = {.dtype = STROBE_FP32};
    *a = s->a, *g = s->g;
    a->batch = s->w->entries, a->seq_q = s->rows, a->seq_k = 0, a->mask = STROBE_MASK_NONE;
    a->k = a->v = (strobe_tensor){.dtype = s->a.k.dtype};
    a->varlen = NULL, a->bias = NULL, a->bool_mask = NULL, a->alibi = NULL, a->dropout = NULL;
    g->dbias = NULL, g->dk = g->dv = fp32;
    g->dq = strobe__tensor_of(e->part.dq, STROBE_FP32, s->rows, s->a.heads_q, s->a.dim);
}

strobe_status strobe__dist_sinks_workspace(const struct engine *e, size_t *bytes) {
    strobe_attention a;
    strobe_gradients g;
    describe_sinks(e, &a, &g);
    return strobe__dist_core(strobe_workspace(&a, &g, bytes));
}

static strobe_status run_sinks(const struct engine *e) {
    strobe_attention a;
    strobe_gradients g;
    describe_sinks(e, &a, &g);
    return strobe_backward(&a, &g, e->kernel, e->kernel_bytes, e->on->stream);
}

/* Scores that no call has computed have no gradient. */
static void zero_dbias(const struct engine *e) {
    const struct whole *w = e->s->w;
    const strobe_bias *b = w->g.dbias;
    if (!b || !b->data) return;
    const int64_t bytes = b->dtype == STROBE_FP64 ? 8 : (int64_t)strobe__dist_bytes(b->dtype);
    const int64_t entries = b->stride[0] ? w->a.batch : 1, heads = b->stride[1] ? w->a.heads_q : 1,
                  rows = b->stride[2] ? w->d.rows_q : 1;
    for (int64_t n = 0; n < entries; ++n)
        for (int64_t h = 0; h < heads; ++h)
            strobe__zero_rows(e->on, (char *)b->data + (n * b->stride[0] + h * b->stride[1]) * bytes, b->stride[2] * bytes,
                              rows, w->total_k * bytes);
}

/* Rows of a sum or part in memory of its own. */
static void zero_runs(const struct engine *e, const strobe_tensor *t, const struct runs *runs) {
    for (int64_t r = 0; r < runs->count; ++r)
        strobe__zero_rows(e->on, strobe__tensor_from(*t, runs->at[r].row, 0).data, t->stride[0] * (int64_t)sizeof(float),
                          e->s->w->entries, runs->at[r].count * t->stride[1] * (int64_t)sizeof(float));
}

static void zero_sums(const struct engine *e) {
    const struct shard *s = e->s;
    if (e->on->device == STROBE_CPU) /* on a GPU what rounds wants none */
        strobe__zero(e->on, e->zeros, (size_t)(s->a.heads_q + s->a.heads_kv + s->a.dim_v) * sizeof *e->zeros);
    zero_runs(e, &e->sum_dq, &e->schedule->rest);
    zero_dbias(e);
}

/* Rounds what no last call and no last transfer has. */
static strobe_status round_runs(const struct engine *e, strobe_tensor to, strobe_tensor sum, const struct runs *runs,
                                int64_t heads, int64_t dim) {
    const strobe_tensor none = {0};
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        const struct extent extent = {.entries = e->s->w->entries, .rows = run->count, .heads = heads, .dim = dim};
        TRY(strobe__round_rows(e->on, e->s->w, strobe__tensor_from(to, run->row, 0), strobe__tensor_from(sum, run->row, 0),
                               none, extent, e->zeros));
    }
    return STROBE_OK;
}

static strobe_status finish(const struct engine *e) {
    const struct shard *s = e->s;
    const struct runs *keys = &e->schedule->keys_rest;
    if (strobe__engine_is_whole(e)) return STROBE_OK;
    TRY(round_runs(e, s->g.dq, e->sum_dq, &e->schedule->rest, s->a.heads_q, s->a.dim));
    if (e->keys_are_rounded) return STROBE_OK;
    TRY(round_runs(e, s->g.dk, e->sum_dk, keys, s->a.heads_kv, s->a.dim));
    return round_runs(e, s->g.dv, e->sum_dv, keys, s->a.heads_kv, s->a.dim_v);
}

strobe_status strobe__dist_run_backward(struct engine *e) {
    const struct shard *s = e->s;
    zero_sums(e);
    strobe__engine_upload(e);
    for (int64_t t = 0; t <= e->schedule->count; ++t) {
        TRY(strobe__engine_start(e, t));
        if (t < e->schedule->count) {
            const struct step *step = &e->schedule->steps[t];
            const struct block block = strobe__engine_block(e, t), gradients = strobe__engine_gradients(e, t);
            zero_runs(e, &gradients.k, &step->unwritten), zero_runs(e, &gradients.v, &step->unwritten);
            if (t == 0) strobe__engine_note(e, run_early(e));
            for (int64_t c = 0; c < step->calls.count && s->w->entries > 0; ++c)
                strobe__engine_note(e, run_call(e, &step->calls.at[c], &block, &gradients));
        }
        TRY(strobe__engine_finish(e, t));
    }
    if (s->g.dsinks) strobe__engine_note(e, run_sinks(e));
    strobe__engine_note(e, finish(e));
    return STROBE_OK;
}
