/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_image.c: see append_image.h. */
#include "append_image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem/element.h"
#include "test.h"

static int64_t tokens_in_all(const struct way *w, const struct image *m) {
    return w->tokens == PACKED ? m->first[BATCH] + 2 : BATCH * w->most;
}

static size_t take(struct image *m, int64_t bytes, bool odd) {
    const size_t at = (m->size + GAP - 1) / GAP * GAP + GAP + (odd ? 4 : 0);
    m->size = at + (size_t)bytes;
    return at;
}

/* Elements from a row of all heads to the next, and from one batch entry to the next, are a few more where odd. */
static int64_t row_of(const struct way *w, int64_t heads, int64_t dim) { return heads * dim + (w->odd ? 3 : 0); }

static void set_lengths(const struct way *w, struct image *m, struct random *r) {
    for (int b = 0; b < BATCH; ++b) {
        m->count[b] = w->tokens == ALL ? w->most : b == 1 ? 0 : random_below(r, w->most + 1);
        m->length[b] = random_below(r, w->longest - m->count[b] + 1);
        m->first[b + 1] = m->first[b] + m->count[b];
        m->cache_first[b + 1] = m->cache_first[b] + m->length[b] + m->count[b] + random_below(r, 3);
        if (m->cache_first[b + 1] - m->cache_first[b] > w->longest) m->cache_first[b + 1] = m->cache_first[b] + w->longest;
    }
    const int64_t pages = (w->longest + w->page - 1) / w->page;
    m->entries = w->where >= IN_PAGES ? BATCH * pages + 2 : w->where ? 1 : BATCH;
    m->rows = w->where >= IN_PAGES ? w->page : w->where ? m->cache_first[BATCH] + 3 : w->longest;
}

static void lay_out(const struct way *w, struct image *m) {
    const int64_t heads_q = w->heads * w->group, rows = BATCH * w->most + 2, slots = m->entries * m->rows;
    const int64_t source = (int64_t)element_bytes(w->source), target = (int64_t)element_bytes(w->target);
    const bool odd = w->odd;
    m->q = take(m, rows * row_of(w, heads_q, w->dim) * source, odd);
    m->k = take(m, rows * row_of(w, w->heads, w->dim) * source, odd);
    m->v = take(m, rows * row_of(w, w->heads, w->dim_v) * source, odd);
    m->q_to = take(m, rows * row_of(w, heads_q, w->dim) * (int64_t)element_bytes(w->q_target), odd);
    m->k_to = take(m, slots * row_of(w, w->heads, w->dim) * target, odd);
    m->v_to = take(m, slots * row_of(w, w->heads, w->dim_v) * target, odd);
    m->q_scale = take(m, rows * heads_q * 4, false);
    m->k_scale = take(m, (slots + BATCH) * w->heads * 4, false);
    m->v_scale = take(m, (slots + BATCH) * w->heads * 4, false);
    m->cos = take(m, POSITIONS * w->dim / 2 * 4, odd), m->sin = take(m, POSITIONS * w->dim / 2 * 4, odd);
    m->new_ends = take(m, (BATCH + 1) * 8, false), m->new_used = take(m, BATCH * 8, false);
    m->lengths = take(m, BATCH * 8, false), m->after = take(m, BATCH * 8, false), m->positions = take(m, BATCH * 8, false);
    m->slots = take(m, rows * 8, false), m->table = take(m, BATCH * (w->longest + 1) * 4, false);
    m->cache_ends = take(m, (BATCH + 1) * 8, false), m->q_ends = take(m, (BATCH + 1) * 8, false);
    m->size += GAP;
}

void append_put(const struct way *w, unsigned char *to, int64_t at, int64_t value) {
    if (w->wide)
        memcpy(to + at * 8, &value, 8);
    else
        memcpy(to + at * 4, &(int32_t){(int32_t)value}, 4);
}

static void fill_values(const struct way *w, struct image *m, struct random *r) {
    for (size_t at = m->q; at + element_bytes(w->source) <= m->q_to; at += element_bytes(w->source)) {
        double x = random_value(r) * exp2((double)random_below(r, 12));
        if (w->special && random_below(r, 3000) == 0)
            x = random_below(r, 2) ? NAN : random_below(r, 2) ? INFINITY : -INFINITY;
        element_store(m->bytes + at, w->source, x);
    }
    for (int64_t n = 0; n < POSITIONS * w->dim / 2; ++n) {
        const float angles[2] = {(float)cos((double)n * 0.37), (float)sin((double)n * 0.37)};
        memcpy(m->bytes + m->cos + 4 * n, &angles[0], 4), memcpy(m->bytes + m->sin + 4 * n, &angles[1], 4);
    }
    for (int64_t n = 0; w->block == 0 && n < BATCH * w->heads * w->group; ++n) { /* scales that are read */
        const float scale = (float)exp2((double)random_below(r, 8) - 4) * 1.1f;
        memcpy(m->bytes + m->q_scale + 4 * n, &scale, 4);
        if (n < BATCH * w->heads)
            memcpy(m->bytes + m->k_scale + 4 * n, &scale, 4), memcpy(m->bytes + m->v_scale + 4 * n, &scale, 4);
    }
}

static void fill_places(const struct way *w, struct image *m, struct random *r) {
    unsigned char *bytes = m->bytes;
    const int64_t tokens = tokens_in_all(w, m), slots = m->entries * m->rows, pages = (w->longest + w->page - 1) / w->page;
    for (int b = 0; b <= BATCH; ++b) {
        append_put(w, bytes + m->new_ends, b, m->first[b] + 1), append_put(w, bytes + m->q_ends, b, m->first[b] + 1);
        append_put(w, bytes + m->cache_ends, b, m->cache_first[b] + 2);
        if (b == BATCH) break;
        append_put(w, bytes + m->new_used, b, m->count[b]), append_put(w, bytes + m->lengths, b, m->length[b]);
        append_put(w, bytes + m->after, b, m->length[b] + m->count[b]), append_put(w, bytes + m->positions, b, 7 + 11 * b);
    }
    for (int32_t n = 0; n < BATCH * pages; ++n) { /* some pages are none */
        const int32_t none = n % 3 ? -1 - n : (int32_t)m->entries + n;
        memcpy(bytes + m->table + 4 * n,
               w->missing && random_below(r, 4) == 0 ? &none : &(int32_t){n * 7 % (int32_t)m->entries}, 4);
    }
    for (int64_t n = 0; n < tokens; ++n) { /* each its own; some before and past the cache */
        const int64_t own = slots < tokens ? n : n * (slots / tokens);
        const int64_t slot = own < slots && random_below(r, 5) ? own : random_below(r, 2) ? -1 - n : slots + n;
        memcpy(bytes + m->slots + 8 * n, &slot, 8);
    }
}

bool append_image_make(const struct way *w, struct image *m, uint64_t seed) {
    struct random r = {.state = seed};
    *m = (struct image){.size = 0};
    set_lengths(w, m, &r);
    if (m->entries % 7 == 0) ++m->entries; /* each page of the table is one sequence's */
    lay_out(w, m);
    if (m->size > MOST_BYTES) return false;
    m->bytes = malloc(m->size);
    assert_non_null(m->bytes);
    memset(m->bytes, POISON, m->size);
    fill_values(w, m, &r), fill_places(w, m, &r);
    return true;
}

static void set_strides(int64_t stride[3], int64_t rows, int64_t row, int64_t dim) {
    stride[0] = rows * row, stride[1] = row, stride[2] = dim;
}

static void describe_cache(const struct way *w, const struct image *m, unsigned char *base, struct call *c) {
    strobe_attention *a = &c->a;
    a->k.data = base + m->k_to, a->v.data = base + m->v_to, a->k.dtype = a->v.dtype = w->target;
    set_strides(a->k.stride, m->rows, row_of(w, w->heads, w->dim), w->dim);
    set_strides(a->v.stride, m->rows, row_of(w, w->heads, w->dim_v), w->dim_v);
    if (w->where == HEADS_OUTSIDE) {
        a->k.stride[1] = w->dim, a->k.stride[2] = w->page * w->dim;
        a->v.stride[1] = w->dim_v, a->v.stride[2] = w->page * w->dim_v;
    }
    c->g = (strobe_paged){.struct_size = sizeof c->g, .page_table = (void *)(base + m->table), .page_size = w->page};
    c->g.pages = m->entries, c->g.table_stride = (w->longest + w->page - 1) / w->page;
    if (w->where >= IN_PAGES) a->paged = &c->g;
    c->n = (strobe_varlen){.struct_size = sizeof c->n, .index_bits = w->wide ? 64 : 32};
    if (w->where == PACKED_CACHE) c->n.cu_seqlens_k = base + m->cache_ends, c->n.total_k = m->rows, a->varlen = &c->n;
    if (w->named == BY_LENGTHS_AFTER) c->n.used_k = base + m->after, a->varlen = &c->n;
    if (w->tokens == PACKED) c->n.cu_seqlens_q = base + m->q_ends, c->n.total_q = m->first[BATCH] + 2, a->varlen = &c->n;
    c->s = (strobe_scales){.struct_size = sizeof c->s};
    if (append_is_byte(w->target)) {
        c->s.k = (void *)(base + m->k_scale), c->s.v = (void *)(base + m->v_scale), c->s.block_k = w->block,
        a->scales = &c->s;
        set_strides(c->s.stride_k, w->block ? m->rows : 1, w->heads, 1),
            memcpy(c->s.stride_v, c->s.stride_k, sizeof c->s.stride_k);
    }
    if (!append_is_byte(w->q_target)) return;
    c->s.q = (void *)(base + m->q_scale), c->s.block_q = w->block, a->scales = &c->s;
    set_strides(c->s.stride_q, w->block ? w->most : 1, w->heads * w->group, 1);
}

void append_describe(const struct way *w, const struct image *m, unsigned char *base, int32_t device, struct call *c) {
    const int64_t heads_q = w->heads * w->group, packed = w->tokens == PACKED ? 0 : w->most;
    memset(c, 0, sizeof *c);
    strobe_attention *a = &c->a;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = BATCH, .seq_q = w->most, .seq_k = w->longest};
    a->heads_q = heads_q, a->heads_kv = w->heads, a->dim = w->dim, a->dim_v = w->dim_v, a->device = device;
    a->q_start = 5, a->k_start = 3, a->dtype = w->q_target;
    a->q.data = base + (w->in_place ? m->q : m->q_to), a->q.dtype = w->q_target;
    set_strides(a->q.stride, packed, row_of(w, heads_q, w->dim), w->dim);
    describe_cache(w, m, base, c);
    strobe_appender *n = &c->w;
    *n = (strobe_appender){.struct_size = sizeof *n, .dtype = w->source, .seq_new = w->most, .seed = 77};
    n->q.data = base + m->q, n->k.data = base + m->k, n->v.data = base + m->v, n->hadamard = w->hadamard;
    set_strides(n->q.stride, packed, row_of(w, heads_q, w->dim), w->dim);
    set_strides(n->k.stride, packed, row_of(w, w->heads, w->dim), w->dim);
    set_strides(n->v.stride, packed, row_of(w, w->heads, w->dim_v), w->dim_v);
    n->index_bits = w->wide ? 64 : 32, n->flags = w->at_length ? STROBE_Q_AT_LENGTH : 0;
    if (w->tokens == USED) n->used_new = base + m->new_used;
    if (w->tokens == PACKED) n->cu_seqlens_new = base + m->new_ends, n->total_new = m->first[BATCH] + 2;
    if (w->named != BY_LENGTHS_AFTER) n->lengths = base + m->lengths;
    if (w->named == BY_SLOTS) n->slots = (void *)(base + m->slots);
    if (w->positions) n->positions = base + m->positions;
    c->r = (strobe_rotary){.struct_size = sizeof c->r, .dim = w->rotary_dim, .interleaved = w->interleaved};
    if (w->rotary == TABLES)
        c->r.cos = (void *)(base + m->cos), c->r.sin = (void *)(base + m->sin), c->r.positions = POSITIONS;
    if (w->rotary == COMPUTED) c->r.base = 10000;
    if (w->rotary) n->rotary = &c->r;
}
