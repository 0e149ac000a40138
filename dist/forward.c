/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c: a schedule's forward. Each call gives a part of the result, (out, lse) in fp32, which is merged into the sum of
 * those before; the first call of a row writes the sum itself. At the end sinks join, as a part without a value, and out is
 * rounded, once. */
#include <math.h>

#include "describe.h"
#include "engine.h"

static strobe_status merge_part(const struct engine *e, const struct call *c, strobe_tensor out, strobe_tensor lse) {
    const struct shard *s = e->s;
    const strobe_tensor sum_out = strobe__tensor_from(e->sum_out, c->q_row, 0);
    const strobe_tensor sum_lse = strobe__tensor_from(e->sum_lse, c->q_row, 0);
    const strobe_partial parts[2] = {{sum_out, sum_lse}, {out, lse}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = s->w->entries,
                               .seq_q = c->rows,
                               .heads_q = s->a.heads_q,
                               .dim_v = s->a.dim_v,
                               .count = 2,
                               .parts = parts,
                               .out = sum_out,
                               .lse = sum_lse,
                               .device = e->on->device,
                               .device_index = e->on->index,
                               .parallel = s->a.parallel};
    return strobe_merge(&m, e->on->stream);
}

static strobe_status run_call(const struct engine *e, const struct call *c, const struct block *block) {
    struct described d;
    const int64_t heads = e->s->a.heads_q;
    strobe__dist_describe(e->s, c, block, &d);
    if (c->rows_fresh) {
        d.a.out = strobe__tensor_from(e->sum_out, c->q_row, 0), d.a.lse = strobe__tensor_from(e->sum_lse, c->q_row, 0);
        return strobe_forward(&d.a, e->kernel, e->kernel_bytes, e->on->stream);
    }
    d.a.out = strobe__tensor_of(e->part_out.data, STROBE_FP32, c->rows, heads, e->s->a.dim_v);
    d.a.lse = strobe__lse_of(e->part_lse.data, c->rows, heads);
    const strobe_status status = strobe_forward(&d.a, e->kernel, e->kernel_bytes, e->on->stream);
    return status ? status : merge_part(e, c, d.a.out, d.a.lse);
}

/* The sum of all parts, and the sinks, into the shard's out and lse. */
static strobe_status finish(const struct engine *e) {
    const struct shard *s = e->s;
    const strobe_tensor nothing = {.data = e->zeros, .stride = {0, 0, 1}, .dtype = STROBE_FP32};
    const strobe_tensor sinks = {.data = s->a.sinks ? s->a.sinks->data : NULL, .stride = {0, 0, 1}, .dtype = STROBE_FP32};
    const strobe_partial parts[2] = {{e->sum_out, e->sum_lse}, {nothing, sinks}};
    const strobe_partials m = {.struct_size = sizeof m,
                               .batch = s->w->entries,
                               .seq_q = s->rows,
                               .heads_q = s->a.heads_q,
                               .dim_v = s->a.dim_v,
                               .count = s->a.sinks ? 2 : 1,
                               .parts = parts,
                               .out = s->a.out,
                               .lse = s->a.lse,
                               .device = e->on->device,
                               .device_index = e->on->index,
                               .parallel = s->a.parallel};
    return s->w->entries > 0 && s->rows > 0 ? strobe_merge(&m, e->on->stream) : STROBE_OK;
}

static strobe_status run_whole(const struct engine *e) {
    const struct block block = strobe__engine_block(e, 0);
    struct described d;
    strobe__dist_describe(e->s, &e->schedule->steps[0].calls.at[0], &block, &d);
    d.a.sinks = e->s->a.sinks;
    return strobe_forward(&d.a, e->kernel, e->kernel_bytes, e->on->stream);
}

strobe_status strobe__dist_run_forward(struct engine *e) {
    const struct shard *s = e->s;
    if (strobe__engine_is_one_call(e)) {
        strobe__engine_upload(e);
        strobe__engine_note(e, run_whole(e));
        return STROBE_OK;
    }
    strobe__fill(e->on, e->sum_lse.data, s->w->entries * s->rows * s->a.heads_q, -INFINITY); /* parts of no keys */
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
    strobe__engine_note(e, finish(e));
    return STROBE_OK;
}
