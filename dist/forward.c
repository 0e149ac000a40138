/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c: a schedule's forward. A call that has all keys of its rows writes the caller's out and lse. Else each gives a
 * part of the result, (out, lse) in fp32, which is merged into the sum of those before: the first of a row writes the sum
 * itself, the last merges into the caller's tensors, where sinks join, as a part without a value, and out is rounded, once.
 */
#include <math.h>

#include "describe.h"
#include "engine.h"

/* Merges the sum of `rows` rows, the part where there is one, and at last the sinks, into the sum or the caller's tensors.
 */
static strobe_status merge(const struct engine *e, int64_t row, int64_t rows, const strobe_partial *part, bool is_last) {
    const struct shard *s = e->s;
    const bool sinks = is_last && s->a.sinks;
    strobe_partial parts[3] = {{strobe__tensor_from(e->sum_out, row, 0), strobe__tensor_from(e->sum_lse, row, 0)}};
    int64_t count = 1;
    if (part) parts[count++] = *part;
    if (sinks)
        parts[count++] = (strobe_partial){.out = {.data = e->zeros, .stride = {0, 0, 1}, .dtype = STROBE_FP32},
                                          .lse = {.data = s->a.sinks->data, .stride = {0, 0, 1}, .dtype = STROBE_FP32}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = s->w->entries,
                               .seq_q = rows,
                               .heads_q = s->a.heads_q,
                               .dim_v = s->a.dim_v,
                               .count = count,
                               .parts = parts,
                               .out = is_last ? strobe__tensor_from(s->a.out, row, 0) : parts[0].out,
                               .lse = is_last ? strobe__tensor_from(s->a.lse, row, 0) : parts[0].lse,
                               .device = e->on->device,
                               .device_index = e->on->index,
                               .parallel = s->a.parallel};
    return strobe_merge(&m, e->on->stream);
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
    const strobe_status status = strobe_forward(&d.a, e->kernel, e->kernel_bytes, e->on->stream);
    return status || c->rows_fresh ? status : merge(e, c->q_row, c->rows, &part, c->rows_last);
}

strobe_status strobe__dist_run_forward(struct engine *e) {
    const struct shard *s = e->s;
    const struct runs *rest = &e->schedule->rest;
    if (e->has_sums) {
        strobe__fill(e->on, e->sum_lse.data, s->w->entries * s->rows * s->a.heads_q, -INFINITY); /* parts of no keys */
        strobe__zero(e->on, e->zeros, (size_t)(s->a.heads_q + s->a.heads_kv + s->a.dim_v) * sizeof *e->zeros);
    }
    strobe__engine_upload(e);
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct block block = strobe__engine_block(e, t);
        const struct calls *calls = &e->schedule->steps[t].calls;
        TRY(strobe__engine_start(e, t));
        for (int64_t c = 0; c < calls->count && s->w->entries > 0; ++c)
            strobe__engine_note(e, run_call(e, &calls->at[c], &block));
        TRY(strobe__engine_finish(e, t));
    }
    for (int64_t r = 0; r < rest->count && s->w->entries > 0; ++r)
        strobe__engine_note(e, merge(e, rest->at[r].row, rest->at[r].count, NULL, true));
    return STROBE_OK;
}
