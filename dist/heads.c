/* SPDX-License-Identifier: BSD-3-Clause
 *
 * heads.c: see heads.h. A message has rows of one tensor, [entries][rows][heads][dim]; those that are neighbours in the
 * shard come and go without a copy there. Where a K/V head serves query heads of several shards, each of them gets it, and
 * its gradients are summed where they come home. */
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
    const int64_t number = member * h->s->parts + h->s->part; /* of as many shares as there are parts of members */
    if (!item->keys) return number * a->heads_q + slot;
    return (number * a->heads_q + slot * (a->heads_q / a->heads_kv)) / (all->heads_q / all->heads_kv);
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

/* Whether out stays where it is. */
static bool leaves_out(const struct heads *h) { return h->s->w->backward && h->on->device == STROBE_CUDA; }

static int64_t zero_elements(const struct heads *h) { return (h->s->a.dim_v + 63) / 64 * 64; }

/* A row of zeros for each entry, which all rows and heads of it are. */
static strobe_tensor take_zeros(const struct heads *h, struct room *room) {
    strobe_tensor zeros = {.stride = {zero_elements(h), 0, 0}, .dtype = h->s->w->a.out.dtype};
    zeros.data = strobe__room_take(room, (size_t)(h->s->w->entries * zero_elements(h)) * strobe__dist_bytes(zeros.dtype));
    return zeros;
}

static void make_forward(struct heads *h, struct room *room) {
    const strobe_attention *w = &h->s->w->a;
    strobe_attention *a = &h->s->a;
    a->q = take(h, room, false, a->dim, w->q.dtype);
    a->k = take(h, room, true, a->dim, w->k.dtype), a->v = take(h, room, true, a->dim_v, w->v.dtype);
    a->out = leaves_out(h) ? take_zeros(h, room) : take(h, room, false, a->dim_v, w->out.dtype);
    a->lse = take(h, room, false, 1, STROBE_FP32);
    add_item(h->inputs, &h->input_count, (struct item){w->q, a->q, false, false, a->dim});
    add_item(h->inputs, &h->input_count, (struct item){w->k, a->k, true, false, a->dim});
    add_item(h->inputs, &h->input_count, (struct item){w->v, a->v, true, false, a->dim_v});
    struct item *list = h->s->w->backward ? h->inputs : h->results;
    int *count = h->s->w->backward ? &h->input_count : &h->result_count;
    if (!leaves_out(h)) add_item(list, count, (struct item){w->out, a->out, false, false, a->dim_v});
    add_item(list, count, (struct item){w->lse, a->lse, false, false, 1});
}

static void make_backward(struct heads *h, struct room *room) {
    const struct whole *w = h->s->w;
    const strobe_attention *a = &h->s->a;
    strobe_gradients *g = &h->s->g;
    g->dout = take(h, room, false, a->dim_v, w->g.dout.dtype);
    add_item(h->inputs, &h->input_count, (struct item){w->g.dout, g->dout, false, false, a->dim_v});
    g->dlse = take(h, room, false, 1, STROBE_FP32); /* zeros where the caller has none */
    if (leaves_out(h) && h->s->part == 0)
        h->dlse = strobe__lse_of(strobe__room_take(room, (size_t)(w->entries * w->d.rows_q * w->a.heads_q) * sizeof(float)),
                                 w->d.rows_q, w->a.heads_q);
    else if (leaves_out(h))
        h->dlse = h->first->dlse;
    add_item(h->inputs, &h->input_count, (struct item){leaves_out(h) ? h->dlse : w->g.dlse, g->dlse, false, false, 1});
    g->dq = take(h, room, false, a->dim, w->g.dq.dtype);
    if (w->a.heads_kv % (h->s->group * h->s->parts) ==
        0) { /* each K/V head is one member's: its gradients are whole, and are rounded there */
        g->dk = take(h, room, true, a->dim, w->g.dk.dtype), g->dv = take(h, room, true, a->dim_v, w->g.dv.dtype);
        add_item(h->results, &h->result_count, (struct item){w->g.dq, g->dq, false, false, a->dim});
        add_item(h->results, &h->result_count, (struct item){w->g.dk, g->dk, true, false, a->dim});
        add_item(h->results, &h->result_count, (struct item){w->g.dv, g->dv, true, false, a->dim_v});
        return;
    }
    g->dk = take(h, room, true, a->dim, STROBE_FP32), g->dv = take(h, room, true, a->dim_v, STROBE_FP32);
    const int64_t keys = w->d.rows_k, heads = w->a.heads_kv, elements = w->entries * keys * heads;
    void *sum_k = h->first->sum_k.data, *sum_v = h->first->sum_v.data;
    if (h->s->part == 0) {
        sum_k = strobe__room_take(room, (size_t)(elements * a->dim) * sizeof(float));
        sum_v = strobe__room_take(room, (size_t)(elements * a->dim_v) * sizeof(float));
    }
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
    const int64_t first = (self(h) * h->s->parts + h->s->part) * a->heads_q;
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

bool strobe__heads_make(struct heads *h, struct shard *s, const struct heads *first, struct place *on, struct exchange *x,
                        struct room *room) {
    const struct whole *w = s->w;
    *h = (struct heads){.s = s, .on = on, .x = x, .first = first ? first : h};
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

/* Whether a run's rows lie in the shard as they lie in a message, so that they need no copy. */
static bool is_direct(const struct heads *h, const struct item *item, const struct run *run) {
    const int64_t heads = slots_of(h, item);
    return h->s->w->entries == 1 && run->step == 1 && item->shard.stride[1] == heads * item->dim &&
           (heads == 1 || item->shard.stride[2] == item->dim);
}

/* A run's rows in the shard. */
static void *rows_in_shard(const struct item *item, const struct run *run) {
    return strobe__tensor_from(item->shard, run->first, 0).data;
}

/* A message: rows of a member, the shard's heads. */
static strobe_tensor message_of(const struct heads *h, const struct item *item, int32_t member, unsigned char *data) {
    return strobe__tensor_of(data, item->shard.dtype, strobe__runs_rows(rows_of(h, item, member)), slots_of(h, item),
                             item->dim);
}

/* Rows of a member between a message and the shard, but for those that need no copy. */
static void move_shard(const struct heads *h, const struct item *item, int32_t member, unsigned char *data,
                       bool to_message) {
    const struct runs *runs = rows_of(h, item, member);
    const strobe_tensor message = message_of(h, item, member, data);
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        struct extent e = {.entries = h->s->w->entries, .rows = run->count, .heads = slots_of(h, item), .dim = item->dim};
        if (is_direct(h, item, run)) continue;
        e.to_first = run->first, e.to_step = run->step, e.from_first = run->row, e.from_step = 1;
        if (!to_message) {
            strobe__copy_rows(h->on, item->shard, message, e);
            continue;
        }
        e.to_first = run->row, e.to_step = 1, e.from_first = run->first, e.from_step = run->step;
        strobe__copy_rows(h->on, message, item->shard, e);
    }
}

/* The rank's own tensor and another, which has the heads of a member: as many heads at a time as are neighbours. */
static void move_heads(const struct heads *h, const struct item *item, int32_t member, strobe_tensor other, struct extent e,
                       bool to_other) {
    const int64_t slots = slots_of(h, item);
    for (int64_t slot = 0; slot < slots; slot += e.heads) {
        const int64_t head = head_of(h, item, member, slot);
        for (e.heads = 1; slot + e.heads < slots && head_of(h, item, member, slot + e.heads) == head + e.heads;) ++e.heads;
        const strobe_tensor own = strobe__tensor_from(item->whole, 0, head), there = strobe__tensor_from(other, 0, slot);
        if (to_other)
            strobe__copy_rows(h->on, there, own, e);
        else if (item->adds)
            strobe__add_rows(h->on, own, there, e);
        else
            strobe__copy_rows(h->on, own, there, e);
    }
}

/* The rank's rows, the heads of a member, between its own tensor and a message. Of lse that nobody wants nothing is taken,
 * and a dlse that is not given is zero. */
static void move_whole(const struct heads *h, const struct item *item, int32_t member, unsigned char *data,
                       bool to_message) {
    const struct extent e = {.entries = h->s->w->entries,
                             .rows = strobe__runs_rows(rows_of(h, item, self(h))),
                             .dim = item->dim,
                             .to_step = 1,
                             .from_step = 1};
    if (item->whole.data)
        move_heads(h, item, member, message_of(h, item, self(h), data), e, to_message);
    else if (to_message)
        strobe__zero(h->on, data, item_bytes(h, item, self(h)));
}

/* What this rank keeps: from its own tensor to the shard, or back. */
static void move_own(const struct heads *h, const struct item *item, bool to_shard) {
    const struct runs *runs = rows_of(h, item, self(h));
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        struct extent e = {.entries = h->s->w->entries, .rows = run->count, .dim = item->dim};
        e.to_first = to_shard ? run->first : run->row, e.to_step = to_shard ? run->step : 1;
        e.from_first = to_shard ? run->row : run->first, e.from_step = to_shard ? 1 : run->step;
        if (item->whole.data) move_heads(h, item, self(h), item->shard, e, to_shard);
    }
}

static void zero_shard(const struct heads *h, const struct item *item) {
    const int64_t rows = item->keys ? h->s->keys : h->s->rows;
    const size_t elements = (size_t)(h->s->w->entries * rows * slots_of(h, item) * item->dim);
    strobe__zero(h->on, item->shard.data, elements * strobe__dist_bytes(item->shard.dtype));
}

/* Tells the exchange of a member's messages, one a run: rows that this rank sends or receives, `rows` being whose they are.
 */
static void tell(const struct heads *h, const struct item *item, int32_t member, int32_t rows, unsigned char *data,
                 bool in_shard, bool sends) {
    const struct runs *runs = rows_of(h, item, rows);
    const size_t row = (size_t)(slots_of(h, item) * item->dim) * strobe__dist_bytes(item->shard.dtype);
    const size_t entries = (size_t)h->s->w->entries;
    if (entries != 1) { /* entries lie one behind the other */
        const size_t bytes = entries * (size_t)strobe__runs_rows(runs) * row;
        if (sends)
            strobe__exchange_send(h->x, member_rank(h, member), data, bytes);
        else
            strobe__exchange_receive(h->x, member_rank(h, member), data, bytes);
        return;
    }
    for (int64_t r = 0; r < runs->count; ++r) {
        const struct run *run = &runs->at[r];
        void *at = in_shard && is_direct(h, item, run) ? rows_in_shard(item, run) : data + (size_t)run->row * row;
        if (sends)
            strobe__exchange_send(h->x, member_rank(h, member), at, (size_t)run->count * row);
        else
            strobe__exchange_receive(h->x, member_rank(h, member), at, (size_t)run->count * row);
    }
}

static void leave_out(const struct heads *h) {
    const struct whole *w = h->s->w;
    const strobe_tensor *zeros = &h->s->a.out;
    const struct extent e = {w->entries, w->d.rows_q, w->a.heads_q, w->a.dim_v, .to_step = 1, .from_step = 1};
    strobe__zero(h->on, zeros->data, (size_t)(w->entries * zeros->stride[0]) * strobe__dist_bytes(zeros->dtype));
    if (h->s->part == 0) strobe__subtract_products(h->on, h->dlse, w->g.dlse, w->a.out, w->g.dout, e);
}

/* Rows of what is sent to a member are this rank's (scatter), out of its own tensors, or the member's (gather), out of the
 * shard. */
void strobe__heads_tell(struct heads *h, bool scatters) {
    const struct item *items = scatters ? h->inputs : h->results;
    const int count = scatters ? h->input_count : h->result_count;
    unsigned char *sent = h->staging, *landed = h->landing;
    if (scatters && leaves_out(h)) leave_out(h);
    for (int n = 0; n < count && scatters; ++n)
        if (!items[n].whole.data) zero_shard(h, &items[n]);
    strobe__collect(h->on);
    for (int32_t m = 0; m < h->s->group; ++m)
        for (int n = 0; n < count && m != self(h); ++n) {
            const int32_t sends = scatters ? self(h) : m, receives = scatters ? m : self(h);
            if (scatters)
                move_whole(h, &items[n], m, sent, true);
            else
                move_shard(h, &items[n], m, sent, true);
            tell(h, &items[n], m, sends, sent, !scatters, true);
            tell(h, &items[n], m, receives, landed, scatters, false);
            sent += item_bytes(h, &items[n], sends), landed += item_bytes(h, &items[n], receives);
        }
    strobe__collected(h->on);
}

/* Sums begin with zeros, before the first part's are added. */
static void begin_sums(struct heads *h) {
    const struct whole *w = h->s->w;
    if (!w->backward || !h->sum_k.data || h->s->part > 0) return;
    const size_t elements = (size_t)(w->entries * w->d.rows_k * w->a.heads_kv) * sizeof(float);
    strobe__zero(h->on, h->sum_k.data, elements * (size_t)w->a.dim);
    strobe__zero(h->on, h->sum_v.data, elements * (size_t)w->a.dim_v);
}

void strobe__heads_keep(struct heads *h, bool scatters) {
    const struct item *items = scatters ? h->inputs : h->results;
    const int count = scatters ? h->input_count : h->result_count;
    if (!scatters) begin_sums(h);
    strobe__collect(h->on);
    for (int n = 0; n < count; ++n) move_own(h, &items[n], scatters);
    strobe__collected(h->on);
}

void strobe__heads_put(struct heads *h, bool scatters) {
    const struct item *items = scatters ? h->inputs : h->results;
    const int count = scatters ? h->input_count : h->result_count;
    unsigned char *landed = h->landing;
    strobe__collect(h->on);
    for (int32_t m = 0; m < h->s->group; ++m)
        for (int n = 0; n < count && m != self(h); ++n) {
            if (scatters)
                move_shard(h, &items[n], m, landed, false);
            else
                move_whole(h, &items[n], m, landed, false);
            landed += item_bytes(h, &items[n], scatters ? m : self(h));
        }
    strobe__collected(h->on);
}

strobe_status strobe__heads_finish(const struct heads *h, float *zeros) {
    const struct whole *w = h->s->w;
    const strobe_tensor none = {0};
    struct extent e = {.entries = w->entries, .rows = w->d.rows_k, .heads = w->a.heads_kv, .dim = w->a.dim};
    if (!w->backward || !h->sum_k.data) return STROBE_OK;
    TRY(strobe__round_rows(h->on, w, w->g.dk, h->sum_k, none, e, zeros));
    e.dim = w->a.dim_v;
    return strobe__round_rows(h->on, w, w->g.dv, h->sum_v, none, e, zeros);
}
