/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.c: see engine.h. */
#include "engine.h"

#include <string.h>

#include "cuda_memory.h"
#include "describe.h"

void strobe__engine_note(struct engine *e, strobe_status status) {
    if (status && !e->status) e->status = strobe__dist_core(status);
}

/* Rows of K or V, or of their gradients, which are a message. */
static size_t piece_bytes(const struct engine *e, int32_t dtype, int64_t rows, int64_t dim) {
    return (size_t)(e->s->w->entries * rows * e->s->a.heads_kv * dim) * strobe__dist_bytes(dtype);
}

void strobe__engine_message_bytes(const struct engine *e, int32_t dtype, int64_t rows, size_t bytes[2]) {
    bytes[0] = (piece_bytes(e, dtype, rows, e->s->a.dim) + 63) / 64 * 64;
    bytes[1] = (piece_bytes(e, dtype, rows, e->s->a.dim_v) + 63) / 64 * 64;
}

/* Whether so many rows of a tensor lie in memory as they lie in a message. */
static bool is_packed(const struct engine *e, const strobe_tensor *t, int64_t rows, int64_t dim) {
    const int64_t heads = e->s->a.heads_kv;
    return (heads == 1 || t->stride[2] == dim) && (rows == 1 || t->stride[1] == heads * dim) &&
           (e->s->w->entries == 1 || t->stride[0] == rows * heads * dim);
}

/* What messages of runs take where they do not lie in the block; a NULL block: all do not. */
static size_t copied_bytes(const struct engine *e, const struct transfer *list, int64_t count, int32_t dtype,
                           const struct block *block) {
    const int64_t dims[2] = {e->s->a.dim, e->s->a.dim_v};
    size_t bytes = 0;
    for (int64_t n = 0; n < count; ++n)
        for (int64_t r = 0; r < list[n].runs.count; ++r)
            for (int which = 0; which < 2; ++which) {
                const int64_t rows = list[n].runs.at[r].count;
                if (block && is_packed(e, which ? &block->v : &block->k, rows, dims[which])) continue;
                bytes += (piece_bytes(e, dtype, rows, dims[which]) + 63) / 64 * 64;
            }
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
        const int64_t entries = e->s->w->entries;
        const struct block block = strobe__engine_block(e, t), next = strobe__engine_block(e, t + 1),
                           gradients = strobe__engine_gradients(e, t);
        if (!step->own) keep_larger(&z.block[t % 2], strobe__block_bytes(&e->s->a, entries, step->rows, dtype));
        if (!step->own)
            keep_larger(&z.grad_block[t % 2], strobe__block_bytes(&e->s->a, entries, step->grad_rows, STROBE_FP32));
        keep_larger(&z.staging, copied_bytes(e, step->sends, step->send_count, dtype, &block));
        keep_larger(&z.landing, copied_bytes(e, step->receives, step->receive_count, dtype, &next));
        keep_larger(&z.grad_staging, copied_bytes(e, step->grad_sends, step->grad_send_count, STROBE_FP32, &gradients));
        keep_larger(&z.grad_landing, copied_bytes(e, step->grad_receives, step->grad_receive_count, STROBE_FP32, NULL));
        for (int64_t c = 0; c < step->calls.count; ++c) {
            const struct call *call = &step->calls.at[c];
            if (call == strobe__schedule_early(e->schedule)) continue; /* with parts of its own */
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

bool strobe__engine_is_direct(const struct call *c) { return c->rows_fresh && c->rows_last; }

bool strobe__engine_rounds_dq(const struct engine *e, const struct call *c) {
    return e->rounds_dq && strobe__engine_is_direct(c);
}

bool strobe__engine_is_whole(const struct engine *e) {
    const struct calls *calls = &e->schedule->steps[0].calls;
    if (e->s->g.dk.dtype != e->s->g.dq.dtype) return false; /* ranks share a K/V head; kernels write one dtype */
    return e->schedule->count == 1 && calls->count == 1 && calls->at[0].rows == e->s->rows &&
           calls->at[0].keys == e->s->keys;
}

static bool has_sums(const struct schedule *schedule) {
    for (int64_t t = 0; t < schedule->count; ++t)
        for (int64_t c = 0; c < schedule->steps[t].calls.count; ++c)
            if (!strobe__engine_is_direct(&schedule->steps[t].calls.at[c])) return true;
    return schedule->rest.count > 0;
}

static void take_forward(struct engine *e, struct room *room, const struct sizes *z) {
    const struct shard *s = e->s;
    const int64_t heads = s->a.heads_q;
    e->has_sums = has_sums(e->schedule);
    if (!e->has_sums) return;
    e->sum_out = strobe__tensor_of(take_rows(e, room, s->rows, heads, s->a.dim_v), STROBE_FP32, s->rows, heads, s->a.dim_v);
    e->sum_lse = strobe__lse_of(take_rows(e, room, s->rows, heads, 1), s->rows, heads);
    e->part_out.data = take_rows(e, room, z->rows, heads, s->a.dim_v);
    e->part_lse.data = take_rows(e, room, z->rows, heads, 1);
}

static struct parts take_parts(const struct engine *e, struct room *room, int64_t rows, int64_t keys) {
    const strobe_attention *a = &e->s->a;
    struct parts parts = {.dq = take_rows(e, room, rows, a->heads_q, a->dim)};
    parts.dk = take_rows(e, room, keys, a->heads_kv, a->dim), parts.dv = take_rows(e, room, keys, a->heads_kv, a->dim_v);
    return parts;
}

static void take_backward(struct engine *e, struct room *room, const struct sizes *z) {
    const struct shard *s = e->s;
    const int64_t heads = s->a.heads_q, heads_kv = s->a.heads_kv, dim = s->a.dim, dim_v = s->a.dim_v;
    const struct call *early = strobe__schedule_early(e->schedule);
    /* Of dsinks alone nothing is merged, but a call wants room for dq all the same. */
    e->part = take_parts(e, room, s->w->g.dsinks ? s->rows : z->rows, z->keys);
    if (early) e->early = take_parts(e, room, early->rows_fresh ? 0 : early->rows, early->keys_fresh ? 0 : early->keys);
    if (strobe__engine_is_whole(e)) return;
    for (int n = 0; n < 2; ++n) e->grad_block[n] = strobe__room_take(room, z->grad_block[n]);
    e->grad_staging = strobe__room_take(room, z->grad_staging);
    e->grad_landing = strobe__room_take(room, z->grad_landing);
    const int64_t sum_rows = e->rounds_dq && !has_sums(e->schedule) ? 0 : s->rows;
    e->sum_dq = strobe__tensor_of(take_rows(e, room, sum_rows, heads, dim), STROBE_FP32, s->rows, heads, dim);
    e->sum_dk = strobe__tensor_of(take_rows(e, room, s->keys, heads_kv, dim), STROBE_FP32, s->keys, heads_kv, dim);
    e->sum_dv = strobe__tensor_of(take_rows(e, room, s->keys, heads_kv, dim_v), STROBE_FP32, s->keys, heads_kv, dim_v);
}

/* A call on some K/V heads as the core library sees it, its results nowhere. */
static void describe_heads(const struct engine *e, const struct call *c, const struct block *block, int64_t first,
                           int64_t count, struct described *d, strobe_gradients *g) {
    const strobe_tensor fp32 = {.dtype = STROBE_FP32};
    strobe__dist_describe(e->s, c, block, d);
    strobe__dist_take_heads(d, first, count);
    *g = e->s->g;
    if (!strobe__engine_is_whole(e)) g->dq = g->dk = g->dv = fp32;
    if (strobe__engine_rounds_dq(e, c)) g->dq = e->s->g.dq;
    g->dsinks = NULL;
    if (g->dbias) g->dbias = &d->dbias;
    if (!e->s->w->backward && strobe__engine_is_direct(c))
        d->a.sinks = e->s->a.sinks;
    else if (!e->s->w->backward)
        d->a.out = d->a.lse = fp32;
}

/* The workspace that the core library wants for it. */
static strobe_status measure_heads(struct engine *e, const struct call *c, const struct block *block, int64_t first,
                                   int64_t count) {
    struct described d;
    strobe_gradients g;
    size_t bytes;
    describe_heads(e, c, block, first, count, &d, &g);
    TRY(strobe__dist_core(strobe_workspace(&d.a, e->s->w->backward ? &g : NULL, &bytes)));
    keep_larger(&e->kernel_bytes, bytes);
    return STROBE_OK;
}

/* Whether the kernel that a call takes writes dQ in the caller's dtype beside dK and dV in fp32. */
static bool can_round_dq(struct engine *e, const struct call *c, const struct block *block) {
    const char *kernel[2] = {NULL, NULL};
    for (int rounds = 0; rounds < 2; ++rounds) {
        struct described d;
        strobe_gradients g;
        e->rounds_dq = rounds;
        describe_heads(e, c, block, 0, e->s->a.heads_kv, &d, &g);
        if (strobe_select(&d.a, &g, &kernel[rounds]) != STROBE_OK) return false;
    }
    return kernel[0] && kernel[1] && strcmp(kernel[0], kernel[1]) == 0;
}

/* Whether dQ of calls that have all keys of their rows is written by them: on a GPU, of 16 bits, where dK and dV are sums.
 */
static bool find_rounds_dq(struct engine *e) {
    bool any = false;
    if (!e->s->w->backward || e->on->device != STROBE_CUDA || e->s->g.dq.dtype == STROBE_FP32 || e->s->w->entries == 0 ||
        strobe__engine_is_whole(e))
        return false;
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct block block = strobe__engine_block(e, t);
        const struct calls *calls = &e->schedule->steps[t].calls;
        for (int64_t c = 0; c < calls->count; ++c) {
            if (!strobe__engine_is_direct(&calls->at[c])) continue;
            if (!can_round_dq(e, &calls->at[c], &block)) return false;
            any = true;
        }
    }
    return any;
}

/* That of the call that wants most. */
static strobe_status measure_calls(struct engine *e) {
    const int64_t heads = e->s->a.heads_kv;
    for (int64_t t = 0; t < e->schedule->count; ++t) {
        const struct block block = strobe__engine_block(e, t);
        const struct calls *calls = &e->schedule->steps[t].calls;
        for (int64_t c = 0; c < calls->count; ++c) {
            const bool is_early = &calls->at[c] == strobe__schedule_early(e->schedule);
            const int64_t before = is_early ? e->schedule->early_heads : 0;
            if (is_early) TRY(measure_heads(e, &calls->at[c], &block, 0, before));
            TRY(measure_heads(e, &calls->at[c], &block, before, heads - before));
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
    const size_t known = room->base ? e->kernel_bytes : 0; /* from when it was counted */
    const bool rounds = e->rounds_dq;
    *e = (struct engine){.s = s, .on = on, .schedule = schedule, .x = x, .kernel_bytes = known};
    e->rounds_dq = known ? rounds : find_rounds_dq(e);
    if (on->device == STROBE_CUDA) take_offsets(schedule, room);
    const struct sizes z = measure(e);
    for (int n = 0; n < 2; ++n) e->block[n] = strobe__room_take(room, z.block[n]);
    e->staging = strobe__room_take(room, z.staging), e->landing = strobe__room_take(room, z.landing);
    e->zeros = strobe__room_take(room, (size_t)(s->a.heads_q + s->a.heads_kv + s->a.dim_v) * sizeof(float));
    if (s->w->backward)
        take_backward(e, room, &z);
    else
        take_forward(e, room, &z);
    if (known == 0) TRY(measure_calls(e));
    if (known == 0 && s->w->backward && s->w->g.dsinks) { /* one more call, of no keys */
        size_t bytes;
        TRY(strobe__dist_sinks_workspace(e, &bytes));
        keep_larger(&e->kernel_bytes, bytes);
    }
    e->kernel = strobe__room_take(room, e->kernel_bytes);
    return STROBE_OK;
}

struct block strobe__engine_block(const struct engine *e, int64_t t) {
    if (t >= e->schedule->count) return (struct block){{0}, {0}};
    const struct step *step = &e->schedule->steps[t];
    if (step->own) return (struct block){e->s->a.k, e->s->a.v};
    return strobe__block_at(&e->s->a, e->s->w->entries, step->rows, e->s->a.k.dtype, e->block[t % 2]);
}

struct block strobe__engine_gradients(const struct engine *e, int64_t t) {
    const struct step *step = &e->schedule->steps[t];
    if (step->own) return (struct block){e->sum_dk, e->sum_dv};
    return strobe__block_at(&e->s->a, e->s->w->entries, step->grad_rows, STROBE_FP32, e->grad_block[t % 2]);
}

/* A tensor of messages under way. memory: where those lie that do not lie in the block; it moves on. */
struct movement {
    const struct block *block; /* NULL: all messages lie in memory */
    int32_t dtype;
    bool gradients;
    unsigned char *memory;
    const struct block *rounded; /* NULL, or where sums that are complete go, rounded */
};

/* Calls `one` for each message of runs: K, or V, of a run. */
typedef void move_piece(struct engine *e, struct movement *m, const strobe_tensor *whole, const struct run *run,
                        int32_t rank, int64_t dim);
static unsigned char *each_piece(struct engine *e, struct movement m, const struct transfer *list, int64_t count,
                                 move_piece *one) {
    for (int64_t n = 0; n < count; ++n)
        for (int64_t r = 0; r < list[n].runs.count; ++r) {
            const int32_t rank = strobe__shard_rank(e->s, list[n].participant);
            one(e, &m, m.block ? &m.block->k : NULL, &list[n].runs.at[r], rank, e->s->a.dim);
            one(e, &m, m.block ? &m.block->v : NULL, &list[n].runs.at[r], rank, e->s->a.dim_v);
        }
    return m.memory;
}

/* Room in m->memory for a message, as a tensor. */
static strobe_tensor take_piece(const struct engine *e, struct movement *m, int64_t rows, int64_t dim) {
    const strobe_tensor t = strobe__tensor_of(m->memory, m->dtype, rows, e->s->a.heads_kv, dim);
    m->memory += (piece_bytes(e, m->dtype, rows, dim) + 63) / 64 * 64;
    return t;
}

static struct extent extent_of(const struct engine *e, int64_t rows, int64_t dim) {
    return (struct extent){e->s->w->entries, rows, e->s->a.heads_kv, dim, .to_step = 1, .from_step = 1};
}

/* Rows that are neighbours in memory go from where they are; others are copied. */
static void send_piece(struct engine *e, struct movement *m, const strobe_tensor *whole, const struct run *run, int32_t rank,
                       int64_t dim) {
    strobe_tensor from = strobe__tensor_from(*whole, m->gradients ? run->grad : run->row, 0);
    if (!is_packed(e, whole, run->count, dim)) {
        const strobe_tensor copy = take_piece(e, m, run->count, dim);
        strobe__copy_rows(e->on, copy, from, extent_of(e, run->count, dim));
        from = copy;
    }
    strobe__exchange_send(e->x, rank, from.data, piece_bytes(e, m->dtype, run->count, dim));
}

static void receive_piece(struct engine *e, struct movement *m, const strobe_tensor *whole, const struct run *run,
                          int32_t rank, int64_t dim) {
    const strobe_tensor to = whole && is_packed(e, whole, run->count, dim) ? strobe__tensor_from(*whole, run->grad, 0)
                                                                           : take_piece(e, m, run->count, dim);
    strobe__exchange_receive(e->x, rank, to.data, piece_bytes(e, m->dtype, run->count, dim));
}

/* What has arrived elsewhere than where it belongs. */
static void put_piece(struct engine *e, struct movement *m, const strobe_tensor *whole, const struct run *run, int32_t rank,
                      int64_t dim) {
    (void)rank;
    if (is_packed(e, whole, run->count, dim)) return;
    const strobe_tensor landed = take_piece(e, m, run->count, dim);
    strobe__copy_rows(e->on, strobe__tensor_from(*whole, run->grad, 0), landed, extent_of(e, run->count, dim));
}

static void add_piece(struct engine *e, struct movement *m, const strobe_tensor *whole, const struct run *run, int32_t rank,
                      int64_t dim) {
    (void)rank;
    const strobe_tensor landed = take_piece(e, m, run->count, dim), sum = strobe__tensor_from(*whole, run->row, 0);
    if (!m->rounded) {
        strobe__add_rows(e->on, sum, landed, extent_of(e, run->count, dim));
        return;
    }
    const strobe_tensor to = strobe__tensor_from(whole == &m->block->k ? m->rounded->k : m->rounded->v, run->row, 0);
    strobe__engine_note(e, strobe__round_rows(e->on, e->s->w, to, sum, landed, extent_of(e, run->count, dim), e->zeros));
}

/* Rows of K and V, or of their gradients, between blocks of this rank. */
static void copy_run(const struct engine *e, struct block to, int64_t to_row, struct block from, int64_t from_row,
                     int64_t rows) {
    strobe__copy_rows(e->on, strobe__tensor_from(to.k, to_row, 0), strobe__tensor_from(from.k, from_row, 0),
                      extent_of(e, rows, e->s->a.dim));
    strobe__copy_rows(e->on, strobe__tensor_from(to.v, to_row, 0), strobe__tensor_from(from.v, from_row, 0),
                      extent_of(e, rows, e->s->a.dim_v));
}

/* Runs of the shard's own rows into a block; on a GPU by one kernel where they lie side by side. */
static void copy_runs(const struct engine *e, struct block to, struct block from, const struct runs *runs) {
    enum { TOGETHER = 32 };
    struct copied_rows pieces[TOGETHER];
    int64_t count = 0;
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        const bool packed = is_packed(e, &to.k, run->count, e->s->a.dim) && is_packed(e, &to.v, run->count, e->s->a.dim_v) &&
                            is_packed(e, &from.k, run->count, e->s->a.dim) &&
                            is_packed(e, &from.v, run->count, e->s->a.dim_v);
        if (!packed || e->on->device == STROBE_CPU) {
            copy_run(e, to, run->grad, from, run->row, run->count);
            continue;
        }
        for (int which = 0; which < 2; ++which) {
            const strobe_tensor *a = which ? &to.v : &to.k, *b = which ? &from.v : &from.k;
            const int64_t dim = which ? e->s->a.dim_v : e->s->a.dim;
            pieces[count++] = (struct copied_rows){strobe__tensor_from(*a, run->grad, 0).data,
                                                   strobe__tensor_from(*b, run->row, 0).data,
                                                   piece_bytes(e, e->s->a.k.dtype, run->count, dim)};
        }
        if (count == TOGETHER) strobe__copy_pieces(e->on, pieces, count), count = 0;
    }
    strobe__copy_pieces(e->on, pieces, count);
}

/* Whether attention is computed during step t. */
static bool computes(const struct engine *e, int64_t t) {
    if (t >= e->schedule->count || e->s->w->entries == 0) return false;
    return e->schedule->steps[t].calls.count > 0 || (t == 0 && strobe__schedule_early(e->schedule));
}

strobe_status strobe__engine_start(struct engine *e, int64_t t) {
    const int32_t dtype = e->s->a.k.dtype;
    if (t < e->schedule->count) {
        const struct step *step = &e->schedule->steps[t];
        const struct block block = strobe__engine_block(e, t), next = strobe__engine_block(e, t + 1);
        each_piece(e, (struct movement){&block, dtype, false, e->staging, NULL}, step->sends, step->send_count, send_piece);
        each_piece(e, (struct movement){&next, dtype, false, e->landing, NULL}, step->receives, step->receive_count,
                   receive_piece);
    }
    if (t > 0 && e->s->w->backward) {
        const struct step *step = &e->schedule->steps[t - 1];
        const struct block gradients = strobe__engine_gradients(e, t - 1);
        each_piece(e, (struct movement){&gradients, STROBE_FP32, true, e->grad_staging, NULL}, step->grad_sends,
                   step->grad_send_count, send_piece);
        each_piece(e, (struct movement){NULL, STROBE_FP32, true, e->grad_landing, NULL}, step->grad_receives,
                   step->grad_receive_count, receive_piece);
    }
    TRY(strobe__exchange_start(e->x, !computes(e, t)));
    if (t >= e->schedule->count) return STROBE_OK;
    const struct runs *local = &e->schedule->steps[t].local.runs; /* meanwhile */
    const struct block own = {e->s->a.k, e->s->a.v}, next = strobe__engine_block(e, t + 1);
    copy_runs(e, next, own, local);
    return STROBE_OK;
}

/* Gradients of step t that are the shard's own keys'. */
static void add_arrived(struct engine *e, int64_t t) {
    const struct step *step = &e->schedule->steps[t];
    const struct block sums = {e->sum_dk, e->sum_dv}, gradients = strobe__engine_gradients(e, t);
    const struct block rounded = {e->s->g.dk, e->s->g.dv};
    const struct runs *local = &step->grad_local.runs;
    struct movement m = {&sums, STROBE_FP32, true, e->grad_landing, NULL};
    int64_t last_step;
    const struct transfer *last = strobe__schedule_last(e->schedule, &last_step);
    const bool ends = last && t == last_step;
    if (strobe__engine_is_whole(e)) return;
    if (strobe__engine_adds_at_once(e)) { /* where nothing comes after all calls, they end it */
        strobe__engine_add_at_once(e, t, last ? ends : t == e->schedule->count - 1);
        return;
    }
    for (int64_t r = 0; r < local->count; ++r)
        copy_run(e, sums, local->at[r].row, gradients, local->at[r].grad, local->at[r].count);
    m.memory = each_piece(e, m, step->grad_receives, step->grad_receive_count - ends, add_piece);
    m.rounded = &rounded;
    if (ends) each_piece(e, m, last, 1, add_piece);
}

strobe_status strobe__engine_finish(struct engine *e, int64_t t) {
    TRY(strobe__exchange_wait(e->x));
    if (t < e->schedule->count) {
        const struct step *step = &e->schedule->steps[t];
        const struct block next = strobe__engine_block(e, t + 1);
        each_piece(e, (struct movement){&next, e->s->a.k.dtype, false, e->landing, NULL}, step->receives,
                   step->receive_count, put_piece);
    }
    if (t > 0 && e->s->w->backward) add_arrived(e, t - 1);
    return STROBE_OK;
}
