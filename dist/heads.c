/* SPDX-License-Identifier: BSD-3-Clause
 *
 * heads.c: see heads.h. A message has one tensor behind the other, each [entries][rows][heads][dim]. Where a K/V head serves
 * query heads of several shards, each of them gets it, and its gradients are summed where they come home. */
#include "heads.h"

#include <stdlib.h>

static int32_t member_rank(const struct heads *h, int32_t member) { return h->s->index * h->s->group + member; }
static int32_t self(const struct heads *h) { return h->s->w->t.rank % h->s->group; }

static int64_t slots_of(const struct heads *h, const struct item *item) {
    return item->keys ? h->s->a.heads_kv : h->s->a.heads_q;
}

/* The head of the whole that is number `slot` of a member's. */
static int64_t head_of(const struct heads *h, const struct item *item, int32_t member, int64_t slot) {
    const strobe_attention *a = &h->s->a, *all = &h->s->w->a;
    if (!item->keys) return member * a->heads_q + slot;
    return (member * a->heads_q + slot * (a->heads_q / a->heads_kv)) / (all->heads_q / all->heads_kv);
}

static const struct runs *rows_of(const struct heads *h, const struct item *item, int32_t member) {
    return item->keys ? &h->k[member] : &h->q[member];
}

static size_t item_bytes(const struct heads *h, const struct item *item, int32_t member) {
    const int64_t rows = strobe__runs_rows(rows_of(h, item, member));
    const int64_t elements = h->s->w->entries * rows * slots_of(h, item) * item->dim;
    return ((size_t)elements * strobe__dist_bytes(item->shard.dtype) + 63) / 64 * 64;
}

static size_t message_bytes(const struct heads *h, const struct item *items, int count, int32_t member) {
    size_t bytes = 0;
    for (int n = 0; n < count; ++n) bytes += item_bytes(h, &items[n], member);
    return bytes;
}

/* A member's runs: positions in the shard's tensors, rows in its own. */
static bool place(const struct runs *shard, int32_t layout, int64_t seq, int32_t size, int32_t rank, struct runs *runs) {
    if (!strobe__layout_runs(layout, seq, size, rank, 1, runs)) return false;
    for (int64_t r = 0; r < runs->count; ++r) {
        struct run *run = &runs->at[r];
        int64_t n = 0;
        while (run->first >= shard->at[n].first + shard->at[n].count * shard->at[n].step) ++n;
        run->first = shard->at[n].row + (run->first - shard->at[n].first) / shard->at[n].step;
        run->step /= shard->at[n].step;
    }
    return true;
}

static void add_item(struct item *items, int *count, struct item item) { items[(*count)++] = item; }

static strobe_tensor take(const struct heads *h, struct room *room, bool keys, int64_t dim, int32_t dtype) {
    const struct shard *s = h->s;
    const int64_t rows = keys ? s->keys : s->rows, heads = keys ? s->a.heads_kv : s->a.heads_q;
    void *data = strobe__room_take(room, (size_t)(s->w->entries * rows * heads * dim) * strobe__dist_bytes(dtype));
    return dim == 1 && !keys && dtype == STROBE_FP32 ? strobe__lse_of(data, rows, heads)
                                                     : strobe__tensor_of(data, dtype, rows, heads, dim);
}

static void make_forward(struct heads *h, struct room *room) {
    const strobe_attention *w = &h->s->w->a;
    strobe_attention *a = &h->s->a;
    a->q = take(h, room, false, a->dim, w->q.dtype);
    a->k = take(h, room, true, a->dim, w->k.dtype), a->v = take(h, room, true, a->dim_v, w->v.dtype);
    a->out = take(h, room, false, a->dim_v, w->out.dtype), a->lse = take(h, room, false, 1, STROBE_FP32);
    add_item(h->inputs, &h->input_count, (struct item){w->q, a->q, false, false, a->dim});
    add_item(h->inputs, &h->input_count, (struct item){w->k, a->k, true, false, a->dim});
    add_item(h->inputs, &h->input_count, (struct item){w->v, a->v, true, false, a->dim_v});
    struct item *list = h->s->w->backward ? h->inputs : h->results;
    int *count = h->s->w->backward ? &h->input_count : &h->result_count;
    add_item(list, count, (struct item){w->out, a->out, false, false, a->dim_v});
    add_item(list, count, (struct item){w->lse, a->lse, false, false, 1});
}

static void make_backward(struct heads *h, struct room *room) {
    const struct whole *w = h->s->w;
    const strobe_attention *a = &h->s->a;
    strobe_gradients *g = &h->s->g;
    g->dout = take(h, room, false, a->dim_v, w->g.dout.dtype);
    add_item(h->inputs, &h->input_count, (struct item){w->g.dout, g->dout, false, false, a->dim_v});
    g->dlse = take(h, room, false, 1, STROBE_FP32); /* zeros where the caller has none */
    add_item(h->inputs, &h->input_count, (struct item){w->g.dlse, g->dlse, false, false, 1});
    g->dq = take(h, room, false, a->dim, w->g.dq.dtype);
    g->dk = take(h, room, true, a->dim, STROBE_FP32), g->dv = take(h, room, true, a->dim_v, STROBE_FP32);
    const int64_t keys = w->d.rows_k, heads = w->a.heads_kv, elements = w->entries * keys * heads;
    void *sum_k = strobe__room_take(room, (size_t)(elements * a->dim) * sizeof(float));
    void *sum_v = strobe__room_take(room, (size_t)(elements * a->dim_v) * sizeof(float));
    h->sum_k = strobe__tensor_of(sum_k, STROBE_FP32, keys, heads, a->dim);
    h->sum_v = strobe__tensor_of(sum_v, STROBE_FP32, keys, heads, a->dim_v);
    add_item(h->results, &h->result_count, (struct item){w->g.dq, g->dq, false, false, a->dim});
    add_item(h->results, &h->result_count, (struct item){h->sum_k, g->dk, true, true, a->dim});
    add_item(h->results, &h->result_count, (struct item){h->sum_v, g->dv, true, true, a->dim_v});
}

/* Features that have a number a head. */
static void take_features(struct heads *h) {
    const struct whole *w = h->s->w;
    strobe_attention *a = &h->s->a;
    const int64_t first = self(h) * a->heads_q;
    h->sinks = w->sinks, h->dsinks = w->dsinks, h->alibi = w->alibi, h->dropout = w->dropout;
    if (h->sinks.data) h->sinks.data = (float *)h->sinks.data + first;
    if (h->dsinks.data) h->dsinks.data = (float *)h->dsinks.data + first;
    if (h->alibi.slopes) h->alibi.slopes += first;
    h->dropout.head_start += first;
    if (a->sinks) a->sinks = &h->sinks;
    if (h->s->g.dsinks) h->s->g.dsinks = &h->dsinks;
    if (a->alibi) a->alibi = &h->alibi;
    if (a->dropout) a->dropout = &h->dropout;
}

bool strobe__heads_make(struct heads *h, struct shard *s, struct place *on, struct exchange *x, struct room *room) {
    const struct whole *w = s->w;
    *h = (struct heads){.s = s, .on = on, .x = x};
    h->q = calloc((size_t)s->group, sizeof *h->q), h->k = calloc((size_t)s->group, sizeof *h->k);
    bool ok = h->q && h->k;
    for (int32_t m = 0; ok && m < s->group; ++m)
        ok = place(&s->q[s->index], w->d.layout, w->total_q, w->t.size, member_rank(h, m), &h->q[m]) &&
             place(&s->k[s->index], w->d.layout, w->total_k, w->t.size, member_rank(h, m), &h->k[m]);
    if (!ok) return false;
    make_forward(h, room);
    if (w->backward) make_backward(h, room);
    take_features(h);
    size_t scattered = 0, gathered = 0, scattered_here = 0, gathered_here = 0;
    for (int32_t m = 0; m < s->group; ++m) {
        scattered += message_bytes(h, h->inputs, h->input_count, m);
        gathered += message_bytes(h, h->results, h->result_count, m);
        scattered_here += message_bytes(h, h->inputs, h->input_count, self(h));
        gathered_here += message_bytes(h, h->results, h->result_count, self(h));
    }
    const size_t here = scattered_here > gathered ? scattered_here : gathered;
    const size_t there = scattered > gathered_here ? scattered : gathered_here;
    h->staging = strobe__room_take(room, here), h->landing = strobe__room_take(room, there);
    return true;
}

void strobe__heads_free(struct heads *h) {
    for (int32_t m = 0; h->s && h->q && h->k && m < h->s->group; ++m)
        strobe__runs_free(&h->q[m]), strobe__runs_free(&h->k[m]);
    free(h->q), free(h->k);
    h->q = h->k = NULL;
}

/* One tensor between a message and the shard: rows of a member, the shard's heads. */
static void move_shard(const struct heads *h, const struct item *item, int32_t member, unsigned char *data,
                       bool to_message) {
    const struct runs *runs = rows_of(h, item, member);
    const int64_t heads = slots_of(h, item), rows = strobe__runs_rows(runs);
    const strobe_tensor message = strobe__tensor_of(data, item->shard.dtype, rows, heads, item->dim);
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        struct extent e = {.entries = h->s->w->entries, .rows = run->count, .heads = heads, .dim = item->dim};
        e.to_first = run->first, e.to_step = run->step, e.from_first = run->row, e.from_step = 1;
        if (!to_message) {
            strobe__copy_rows(h->on, item->shard, message, e);
            continue;
        }
        e.to_first = run->row, e.to_step = 1, e.from_first = run->first, e.from_step = run->step;
        strobe__copy_rows(h->on, message, item->shard, e);
    }
}

/* One tensor between a message and the rank's own: its rows, the heads of a member, as many at a time as are neighbours. */
static void move_whole(const struct heads *h, const struct item *item, int32_t member, unsigned char *data,
                       bool to_message) {
    const int64_t slots = slots_of(h, item), rows = strobe__runs_rows(rows_of(h, item, self(h)));
    const strobe_tensor message = strobe__tensor_of(data, item->shard.dtype, rows, slots, item->dim);
    struct extent e = {.entries = h->s->w->entries, .rows = rows, .dim = item->dim, .to_step = 1, .from_step = 1};
    for (int64_t slot = 0; slot < slots; slot += e.heads) {
        const int64_t head = head_of(h, item, member, slot);
        for (e.heads = 1; slot + e.heads < slots && head_of(h, item, member, slot + e.heads) == head + e.heads;) ++e.heads;
        const strobe_tensor own = strobe__tensor_from(item->whole, 0, head);
        const strobe_tensor there = strobe__tensor_from(message, 0, slot);
        if (!own.data) continue; /* lse that nobody wants, dlse that is zero */
        if (to_message)
            strobe__copy_rows(h->on, there, own, e);
        else if (item->adds)
            strobe__add_rows(h->on, own, there, e);
        else
            strobe__copy_rows(h->on, own, there, e);
    }
}

/* What happens to each tensor of a message. */
typedef void move(const struct heads *h, const struct item *item, int32_t member, unsigned char *data, bool to_message);

/* An all-to-all. rows of what is sent to a member are this rank's (scatter) or the member's (gather). */
static strobe_status all_to_all(struct heads *h, const struct item *items, int count, bool scatters) {
    move *const pack = scatters ? move_whole : move_shard, *const unpack = scatters ? move_shard : move_whole;
    unsigned char *sent = h->staging, *landed = h->landing;
    for (int32_t m = 0; m < h->s->group; ++m) {
        unsigned char *const data = m == self(h) ? landed : sent;
        unsigned char *at = data;
        const int32_t sends_rows_of = scatters ? self(h) : m, receives_rows_of = scatters ? m : self(h);
        const size_t out = message_bytes(h, items, count, sends_rows_of),
                     in = message_bytes(h, items, count, receives_rows_of);
        strobe__zero(h->on, at, scatters ? out : 0);
        for (int n = 0; n < count; ++n) {
            pack(h, &items[n], m, at, true);
            at += item_bytes(h, &items[n], sends_rows_of);
        }
        if (m != self(h)) {
            strobe__exchange_send(h->x, member_rank(h, m), sent, out);
            strobe__exchange_receive(h->x, member_rank(h, m), landed, in);
            sent += out;
        }
        landed += in;
    }
    TRY(strobe__exchange_start(h->x));
    TRY(strobe__exchange_wait(h->x));
    unsigned char *at = h->landing;
    for (int32_t m = 0; m < h->s->group; ++m)
        for (int n = 0; n < count; ++n) {
            unpack(h, &items[n], m, at, false);
            at += item_bytes(h, &items[n], scatters ? m : self(h));
        }
    return STROBE_OK;
}

strobe_status strobe__heads_scatter(struct heads *h) { return all_to_all(h, h->inputs, h->input_count, true); }

strobe_status strobe__heads_gather(struct heads *h, float *zeros) {
    const struct whole *w = h->s->w;
    struct extent e = {.entries = w->entries, .rows = w->d.rows_k, .heads = w->a.heads_kv, .dim = w->a.dim};
    if (w->backward) {
        const size_t elements = (size_t)(e.entries * e.rows * e.heads) * sizeof(float);
        strobe__zero(h->on, h->sum_k.data, elements * (size_t)w->a.dim);
        strobe__zero(h->on, h->sum_v.data, elements * (size_t)w->a.dim_v);
    }
    TRY(all_to_all(h, h->results, h->result_count, false));
    if (!w->backward) return STROBE_OK;
    TRY(strobe__round_rows(h->on, w, w->g.dk, h->sum_k, e, zeros));
    e.dim = w->a.dim_v;
    return strobe__round_rows(h->on, w, w->g.dv, h->sum_v, e, zeros);
}
