/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c: a schedule's forward. A call that has all keys of its rows writes the caller's out and lse. Else each gives a
 * part of the result, (out, lse) in fp32, which is merged into the sum of those before: the first of a row writes the sum
 * itself, the last merges into the caller's tensors, where sinks join, as a part without a value, and out is rounded, once.
 */
#include <math.h>

#include "describe.h"
#include "engine.h"

/* Merges the sum of some rows, but where they are fresh, the part where there is one, and at last the sinks, into the sum or
 * the caller's tensors. */
static strobe_status merge(const struct engine *e, const struct segment *rows, const strobe_partial *part) {
    const struct shard *s = e->s;
    const bool sinks = rows->last && s->a.sinks;
    const int64_t row = rows->row;
    const strobe_partial sum = {strobe__tensor_from(e->sum_out, row, 0), strobe__tensor_from(e->sum_lse, row, 0)};
    strobe_partial parts[3];
    int64_t count = 0;
    if (!part || !rows->fresh) parts[count++] = sum;
    if (part) parts[count++] = *part;
    if (sinks)
        parts[count++] = (strobe_partial){.out = {.data = e->zeros, .stride = {0, 0, 1}, .dtype = STROBE_FP32},
                                          .lse = {.data = s->a.sinks->data, .stride = {0, 0, 1}, .dtype = STROBE_FP32}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = s->w->entries,
                               .seq_q = rows->rows,
                               .heads_q = s->a.heads_q,
                               .dim_v = s->a.dim_v,
                               .count = count,
                               .parts = parts,
                               .out = rows->last ? strobe__tensor_from(s->a.out, row, 0) : sum.out,
                               .lse = rows->last ? strobe__tensor_from(s->a.lse, row, 0) : sum.lse,
                               .device = e->on->device,
                               .device_index = e->on->index,
                               .parallel = s->a.parallel};
    return strobe_merge(&m, e->on->stream);
}

/* The call's rows, of which a fresh call has written the sum itself; what is complete there goes to the caller's tensors. */
static strobe_status merge_all(const struct engine *e, const struct call *c, const strobe_partial *part) {
    for (int64_t n = 0; n < c->segment_count; ++n) {
        const struct segment *rows = &c->segments[n];
        const int64_t first = rows->row - c->q_row;
        const strobe_partial own = {strobe__tensor_from(part->out, first, 0), strobe__tensor_from(part->lse, first, 0)};
        if (!c->rows_fresh || rows->last) TRY(merge(e, rows, c->rows_fresh ? NULL : &own));
    }
    return STROBE_OK;
}

static strobe_status run_call(const struct engine *e, const struct call *c, const struct block *block) {
    struct described d;
    const struct shard *s = e->s;
    const strobe_partial part = {strobe__tensor_of(e->part_out.data, STROBE_FP32, c->rows, s->a.heads_q, s->a.dim_v),
                                 strobe__lse_of(e->part_lse.data, c->rows, s->a.heads_q)};
    strobe__dist_describe(s, c, block, &d);
    if (strobe__engine_is_direct(c))
        d.a.sinks = s->a.sinks;
    else if (c->rows_fresh)
        d.a.out = strobe__tensor_from(e->sum_out, c->q_row, 0), d.a.lse = strobe__tensor_from(e->sum_lse, c->q_row, 0);
    else
        d.a.out = part.out, d.a.lse = part.lse;
    TRY(strobe_forward(&d.a, e->kernel, e->kernel_bytes, e->on->stream));
    return strobe__engine_is_direct(c) ? STROBE_OK : merge_all(e, c, &part);
}

strobe_status strobe__dist_run_forward(struct engine *e) {
    const struct shard *s = e->s;
    const struct runs *rest = &e->schedule->rest;
    if (rest->count > 0) /* parts of no keys */
        strobe__fill(e->on, e->sum_lse.data, s->w->entries * s->rows * s->a.heads_q, -INFINITY);
    if (e->has_sums && s->a.sinks)
        strobe__zero(e->on, e->zeros, (size_t)(s->a.heads_q + s->a.heads_kv + s->a.dim_v) * sizeof *e->zeros);
    strobe__engine_upload(e);
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct block block = strobe__engine_block(e, t);
        const struct calls *calls = &e->schedule->steps[t].calls;
        TRY(strobe__engine_start(e, t));
        for (int64_t c = 0; c < calls->count && s->w->entries > 0; ++c)
            strobe__engine_note(e, run_call(e, &calls->at[c], &block));
        TRY(strobe__engine_finish(e, t));
    }
    for (int64_t r = 0; r < rest->count && s->w->entries > 0; ++r) {
        const struct segment rows = {.row = rest->at[r].row, .rows = rest->at[r].count, .last = true};
        strobe__engine_note(e, merge(e, &rows, NULL));
    }
    return STROBE_OK;
}
