/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.c: see engine.h. */
#include "engine.h"

#include "describe.h"

void strobe__engine_note(struct engine *e, strobe_status status) {
    if (status && !e->status) e->status = strobe__dist_core(status);
}

static size_t bytes_of(const struct engine *e, int64_t rows, int32_t dtype) {
    return strobe__block_bytes(&e->s->a, e->s->w->entries, rows, dtype);
}

static size_t bytes_of_all(const struct engine *e, const struct transfer *list, int64_t count, int32_t dtype) {
    size_t bytes = 0;
    for (int64_t n = 0; n < count; ++n) bytes += bytes_of(e, strobe__runs_rows(&list[n].runs), dtype);
    return bytes;
}

/* The most that steps want of each kind of memory. */
struct sizes {
    size_t block[2], staging, landing, grad_block[2], grad_staging, grad_landing;
    int64_t rows, keys; /* of one call whose results are merged or added */
};

static void keep_larger(size_t *most, size_t bytes) {
    if (bytes > *most) *most = bytes;
}

static struct sizes measure(const struct engine *e) {
    struct sizes z = {0};
    const int32_t dtype = e->s->a.k.dtype;
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct step *step = &e->schedule->steps[t];
        if (!step->own) keep_larger(&z.block[t % 2], bytes_of(e, step->rows, dtype));
        if (!step->own) keep_larger(&z.grad_block[t % 2], bytes_of(e, step->grad_rows, STROBE_FP32));
        keep_larger(&z.staging, bytes_of_all(e, step->sends, step->send_count, dtype));
        if (step->scatters) keep_larger(&z.landing, bytes_of_all(e, step->receives, step->receive_count, dtype));
        keep_larger(&z.grad_staging, bytes_of_all(e, step->grad_sends, step->grad_send_count, STROBE_FP32));
        keep_larger(&z.grad_landing, bytes_of_all(e, step->grad_receives, step->grad_receive_count, STROBE_FP32));
        for (int64_t c = 0; c < step->calls.count; ++c) {
            const struct call *call = &step->calls.at[c];
            if (!call->rows_fresh && call->rows > z.rows) z.rows = call->rows;
            if (!call->keys_fresh && call->keys > z.keys) z.keys = call->keys;
        }
    }
    return z;
}

static void *take_rows(const struct engine *e, struct room *room, int64_t rows, int64_t heads, int64_t dim) {
    const int64_t elements = e->s->w->entries * rows * heads * dim;
    return strobe__room_take(room, (size_t)elements * sizeof(float));
}

bool strobe__engine_is_one_call(const struct engine *e) {
    const struct calls *calls = &e->schedule->steps[0].calls;
    return e->schedule->count == 1 && calls->count == 1 && calls->at[0].whole && calls->at[0].rows == e->s->rows;
}

static void take_forward(struct engine *e, struct room *room, const struct sizes *z) {
    const struct shard *s = e->s;
    if (strobe__engine_is_one_call(e)) return;
    const int64_t heads = s->a.heads_q;
    e->sum_out = strobe__tensor_of(take_rows(e, room, s->rows, heads, s->a.dim_v), STROBE_FP32, s->rows, heads, s->a.dim_v);
    e->sum_lse = strobe__lse_of(take_rows(e, room, s->rows, heads, 1), s->rows, heads);
    e->part_out.data = take_rows(e, room, z->rows, heads, s->a.dim_v);
    e->part_lse.data = take_rows(e, room, z->rows, heads, 1);
}

static void take_backward(struct engine *e, struct room *room, const struct sizes *z) {
    const struct shard *s = e->s;
    const int64_t heads = s->a.heads_q, heads_kv = s->a.heads_kv, dim = s->a.dim, dim_v = s->a.dim_v;
    for (int n = 0; n < 2; ++n) e->grad_block[n] = strobe__room_take(room, z->grad_block[n]);
    e->grad_staging = strobe__room_take(room, z->grad_staging);
    e->grad_landing = strobe__room_take(room, z->grad_landing);
    e->sum_dq = strobe__tensor_of(take_rows(e, room, s->rows, heads, dim), STROBE_FP32, s->rows, heads, dim);
    e->sum_dk = strobe__tensor_of(take_rows(e, room, s->keys, heads_kv, dim), STROBE_FP32, s->keys, heads_kv, dim);
    e->sum_dv = strobe__tensor_of(take_rows(e, room, s->keys, heads_kv, dim_v), STROBE_FP32, s->keys, heads_kv, dim_v);
    /* Of dsinks alone nothing is merged, but a call wants room for dq all the same. */
    e->part_dq.data = take_rows(e, room, s->w->g.dsinks ? s->rows : z->rows, heads, dim);
    e->part.k.data = take_rows(e, room, z->keys, heads_kv, dim),
    e->part.v.data = take_rows(e, room, z->keys, heads_kv, dim_v);
}

/* The workspace that the core library wants for the call that wants most. */
static strobe_status measure_calls(struct engine *e) {
    const strobe_tensor fp32 = {.dtype = STROBE_FP32};
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct block block = strobe__engine_block(e, t);
        const struct calls *calls = &e->schedule->steps[t].calls;
        for (int64_t c = 0; c < calls->count; ++c) {
            struct described d;
            size_t bytes;
            strobe__dist_describe(e->s, &calls->at[c], &block, &d);
            strobe_gradients g = e->s->g;
            g.dq = g.dk = g.dv = fp32, g.dsinks = NULL;
            if (g.dbias) g.dbias = &d.dbias;
            if (!e->s->w->backward && strobe__engine_is_one_call(e))
                d.a.sinks = e->s->a.sinks;
            else if (!e->s->w->backward)
                d.a.out = d.a.lse = fp32;
            TRY(strobe__dist_core(strobe_workspace(&d.a, e->s->w->backward ? &g : NULL, &bytes)));
            keep_larger(&e->kernel_bytes, bytes);
        }
    }
    return STROBE_OK;
}

/* Offsets of packed sequences, which a GPU's kernels read from its memory. */
static void take_offsets(struct schedule *schedule, struct room *room) {
    for (int64_t t = 0; t < schedule->count; ++t)
        for (int64_t c = 0; c < schedule->steps[t].calls.count; ++c) {
            struct call *call = &schedule->steps[t].calls.at[c];
            if (call->cu_q)
                call->device_cu = strobe__room_take(room, (size_t)(2 * call->documents + 2) * sizeof *call->cu_q);
        }
}

void strobe__engine_upload(const struct engine *e) {
    for (int64_t t = 0; t < e->schedule->count && e->on->device == STROBE_CUDA; ++t)
        for (int64_t c = 0; c < e->schedule->steps[t].calls.count; ++c) {
            const struct call *call = &e->schedule->steps[t].calls.at[c];
            if (call->cu_q) strobe__upload(e->on, call->device_cu, call->cu_q, 2 * call->documents + 2);
        }
}

strobe_status strobe__engine_make(struct engine *e, const struct shard *s, struct place *on, struct schedule *schedule,
                                  struct exchange *x, struct room *room) {
    *e = (struct engine){.s = s, .on = on, .schedule = schedule, .x = x};
    if (on->device == STROBE_CUDA) take_offsets(schedule, room);
    const struct sizes z = measure(e);
    for (int n = 0; n < 2; ++n) e->block[n] = strobe__room_take(room, z.block[n]);
    e->staging = strobe__room_take(room, z.staging), e->landing = strobe__room_take(room, z.landing);
    e->zeros = strobe__room_take(room, (size_t)(s->a.heads_q + s->a.heads_kv + s->a.dim_v) * sizeof(float));
    if (s->w->backward)
        take_backward(e, room, &z);
    else
        take_forward(e, room, &z);
    TRY(measure_calls(e));
    if (s->w->backward && s->w->g.dsinks) { /* one more call, of no keys */
        size_t bytes;
        TRY(strobe__dist_sinks_workspace(e, &bytes));
        keep_larger(&e->kernel_bytes, bytes);
    }
    e->kernel = strobe__room_take(room, e->kernel_bytes);
    return STROBE_OK;
}

struct block strobe__engine_block(const struct engine *e, int64_t t) {
    const struct step *step = &e->schedule->steps[t];
    if (step->own) return (struct block){e->s->a.k, e->s->a.v};
    return strobe__block_at(&e->s->a, e->s->w->entries, step->rows, e->s->a.k.dtype, e->block[t % 2]);
}

struct block strobe__engine_gradients(const struct engine *e, int64_t t) {
    const struct step *step = &e->schedule->steps[t];
    if (step->own) return (struct block){e->sum_dk, e->sum_dv};
    return strobe__block_at(&e->s->a, e->s->w->entries, step->grad_rows, STROBE_FP32, e->grad_block[t % 2]);
}

/* Copies or adds rows of K and V, heads and all. */
static void move_run(const struct engine *e, struct block to, int64_t to_row, struct block from, int64_t from_row,
                     int64_t rows, bool adds) {
    struct extent extent = {.entries = e->s->w->entries, .rows = rows, .heads = e->s->a.heads_kv, .dim = e->s->a.dim};
    extent.to_first = to_row, extent.to_step = 1, extent.from_first = from_row, extent.from_step = 1;
    if (adds)
        strobe__add_rows(e->on, to.k, from.k, extent);
    else
        strobe__copy_rows(e->on, to.k, from.k, extent);
    extent.dim = e->s->a.dim_v;
    if (adds)
        strobe__add_rows(e->on, to.v, from.v, extent);
    else
        strobe__copy_rows(e->on, to.v, from.v, extent);
}

/* Sends runs of a block: the block itself where they are all of it, else a copy in `staging`, which moves on. */
static void send_runs(struct engine *e, const struct transfer *transfer, const struct block *block, int64_t block_rows,
                      void *whole, bool gradients, unsigned char **staging) {
    const int32_t dtype = gradients ? STROBE_FP32 : e->s->a.k.dtype;
    const int64_t rows = strobe__runs_rows(&transfer->runs);
    const size_t bytes = bytes_of(e, rows, dtype);
    const int32_t rank = strobe__shard_rank(e->s, transfer->participant);
    if (whole && rows == block_rows) {
        strobe__exchange_send(e->x, rank, whole, bytes);
        return;
    }
    const struct block message = strobe__block_at(&e->s->a, e->s->w->entries, rows, dtype, *staging);
    int64_t row = 0;
    for (int64_t r = 0; r < transfer->runs.count; ++r) {
        const struct run *run = &transfer->runs.at[r];
        move_run(e, message, row, *block, gradients ? run->grad : run->row, run->count, false);
        row += run->count;
    }
    strobe__exchange_send(e->x, rank, *staging, bytes);
    *staging += bytes;
}

static void receive_runs(struct engine *e, const struct transfer *list, int64_t count, int32_t dtype,
                         unsigned char *landing) {
    for (int64_t n = 0; n < count; ++n) {
        const size_t bytes = bytes_of(e, strobe__runs_rows(&list[n].runs), dtype);
        strobe__exchange_receive(e->x, strobe__shard_rank(e->s, list[n].participant), landing, bytes);
        landing += bytes;
    }
}

strobe_status strobe__engine_start(struct engine *e, int64_t t) {
    if (t < e->schedule->count) {
        const struct step *step = &e->schedule->steps[t];
        const struct block block = strobe__engine_block(e, t);
        unsigned char *staging = e->staging;
        for (int64_t n = 0; n < step->send_count; ++n)
            send_runs(e, &step->sends[n], &block, step->rows, step->own ? NULL : e->block[t % 2], false, &staging);
        receive_runs(e, step->receives, step->receive_count, e->s->a.k.dtype,
                     step->scatters ? e->landing : e->block[(t + 1) % 2]);
    }
    if (t > 0 && e->s->w->backward) {
        const struct step *step = &e->schedule->steps[t - 1];
        const struct block gradients = strobe__engine_gradients(e, t - 1);
        unsigned char *staging = e->grad_staging;
        for (int64_t n = 0; n < step->grad_send_count; ++n)
            send_runs(e, &step->grad_sends[n], &gradients, step->grad_rows, e->grad_block[(t - 1) % 2], true, &staging);
        receive_runs(e, step->grad_receives, step->grad_receive_count, STROBE_FP32, e->grad_landing);
    }
    return strobe__exchange_start(e->x);
}

/* Messages that lie one behind the other: their rows to where the runs say. */
static void put_runs(const struct engine *e, const struct transfer *list, int64_t count, const struct block *to,
                     bool gradients, unsigned char *landing) {
    const int32_t dtype = gradients ? STROBE_FP32 : e->s->a.k.dtype;
    for (int64_t n = 0; n < count; ++n) {
        const int64_t rows = strobe__runs_rows(&list[n].runs);
        const struct block message = strobe__block_at(&e->s->a, e->s->w->entries, rows, dtype, landing);
        int64_t row = 0;
        for (int64_t r = 0; r < list[n].runs.count; ++r) {
            const struct run *run = &list[n].runs.at[r];
            move_run(e, *to, gradients ? run->row : run->grad, message, row, run->count, gradients);
            row += run->count;
        }
        landing += bytes_of(e, rows, dtype);
    }
}

strobe_status strobe__engine_finish(struct engine *e, int64_t t) {
    TRY(strobe__exchange_wait(e->x));
    if (t < e->schedule->count && e->schedule->steps[t].scatters) {
        const struct step *step = &e->schedule->steps[t];
        const struct block own = {e->s->a.k, e->s->a.v}, next = strobe__engine_block(e, t + 1);
        put_runs(e, step->receives, step->receive_count, &next, false, e->landing);
        for (int64_t r = 0; r < step->local.runs.count; ++r) {
            const struct run *run = &step->local.runs.at[r];
            move_run(e, next, run->grad, own, run->row, run->count, false);
        }
    }
    if (t > 0 && e->s->w->backward) {
        const struct step *step = &e->schedule->steps[t - 1];
        const struct block sums = {e->sum_dk, e->sum_dv}, gradients = strobe__engine_gradients(e, t - 1);
        for (int64_t r = 0; r < step->grad_local.runs.count; ++r) {
            const struct run *run = &step->grad_local.runs.at[r];
            move_run(e, sums, run->row, gradients, run->grad, run->count, true);
        }
        put_runs(e, step->grad_receives, step->grad_receive_count, &sums, true, e->grad_landing);
    }
    return STROBE_OK;
}
