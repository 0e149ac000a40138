/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranks.c: see ranks.h. Every second rank has strides of its own; workspaces have exactly the bytes that were asked for and
 * hold NaN. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/rank_threads.h"
#include "unit/test.h"

struct rank {
    struct slot slot[TENSORS];
    strobe_attention a;
    strobe_gradients g;
    strobe_bias bias, dbias;
    strobe_sinks dsinks;
    strobe_bool_mask bool_mask;
    uint8_t *mask;
    int64_t rows, keys;
    strobe_status status;
    char sentence[768];
    bool whole;
};

struct job {
    struct fixture *f;
    const struct way *way;
    strobe_operation operation;
    strobe_varlen varlen; /* the fixture's offsets, from 0 on */
    int64_t cu_q[17], cu_k[17];
    int64_t first, total_q, total_k; /* row of the first position in packed slots */
    struct rank *ranks;
};

static void (*run_elsewhere)(void (*body)(void *context, const strobe_transport *transport), void *context);
static void (*share)(void *data, size_t bytes, int32_t rank);
static void *gpu_stream;

void ranks_run_on_gpu(void *stream) { gpu_stream = stream; }

void ranks_run_by(void (*run)(void (*body)(void *context, const strobe_transport *transport), void *context),
                  void (*share_with)(void *data, size_t bytes, int32_t rank)) {
    run_elsewhere = run, share = share_with;
}

static bool is_rows(enum tensor t) { return t == Q || t == OUT || t == LSE || t == DOUT || t == DLSE || t == DQ; }
static bool is_keys(enum tensor t) { return t == K || t == V || t == DK || t == DV; }

static int64_t position(const struct job *j, int32_t rank, bool keys, int64_t row) {
    return strobe_dist_position(j->way->layout, keys ? j->total_k : j->total_q, j->way->size, rank, row);
}

/* A slot for the rank's rows, which every second rank has with gaps between heads. */
static struct slot make_slot(const struct slot *of, int64_t rows, bool lse, bool gaps) {
    const int64_t inner = of->inner + (gaps && !lse ? 3 : 0), heads = of->extent[2];
    const int64_t extent[3] = {of->extent[0], rows, heads};
    const int64_t as_rows[3] = {rows * heads * inner, heads * inner, inner}, as_lse[3] = {heads * rows, 1, rows};
    return slot_make_tight(of->dtype, extent, lse ? as_lse : as_rows, of->inner);
}

/* Rows of the whole to the shard's, or back. */
static void move(const struct job *j, int32_t rank, enum tensor t, bool back) {
    struct slot *whole = &j->f->slot[t], *own = &j->ranks[rank].slot[t];
    for (int64_t b = 0; b < own->extent[0]; ++b)
        for (int64_t i = 0; i < own->extent[1]; ++i)
            for (int64_t h = 0; h < own->extent[2]; ++h)
                for (int64_t x = 0; x < own->inner; ++x) {
                    const int64_t there = slot_element(whole, b, j->first + position(j, rank, is_keys(t), i), h, x);
                    const int64_t here = slot_element(own, b, i, h, x);
                    if (back)
                        slot_set(whole, there, slot_get(own, here));
                    else
                        slot_set(own, here, slot_get(whole, there));
                }
}

static void bind(strobe_tensor *t, const struct slot *s, bool defaults) {
    *t = (strobe_tensor){.data = s->data, .dtype = s->base ? s->dtype : 0};
    if (s->base && !defaults) memcpy(t->stride, s->stride, sizeof t->stride);
}

/* Rows of a bias or its gradient; where rows are broadcast, the whole's. */
static void make_bias(struct job *j, int32_t rank, enum tensor t, strobe_bias *bias) {
    const struct slot *whole = &j->f->slot[t];
    struct rank *r = &j->ranks[rank];
    const bool per_row = whole->extent[2] > 1;
    const int64_t rows = per_row ? r->rows : 1, keys = whole->inner;
    const int64_t extent[3] = {whole->extent[0], whole->extent[1], rows};
    const int64_t stride[3] = {extent[0] > 1 ? extent[1] * rows * keys : 0, extent[1] > 1 ? rows * keys : 0,
                               per_row ? keys : 0};
    r->slot[t] = slot_make_tight(whole->dtype, extent, stride, keys);
    for (int64_t b = 0; b < extent[0] && t == BIAS_TERM; ++b)
        for (int64_t h = 0; h < extent[1]; ++h)
            for (int64_t i = 0; i < rows; ++i)
                for (int64_t x = 0; x < keys; ++x)
                    slot_set(&r->slot[t], slot_element(&r->slot[t], b, h, i, x),
                             slot_get(whole, slot_element(whole, b, h, per_row ? position(j, rank, false, i) : 0, x)));
    *bias = (strobe_bias){.struct_size = sizeof *bias, .data = r->slot[t].data, .dtype = whole->dtype};
    memcpy(bias->stride, stride, sizeof stride);
}

static void move_dbias(struct job *j, int32_t rank) {
    struct slot *whole = &j->f->slot[DBIAS], *own = &j->ranks[rank].slot[DBIAS];
    for (int64_t b = 0; b < own->extent[0]; ++b)
        for (int64_t h = 0; h < own->extent[1]; ++h)
            for (int64_t i = 0; i < own->extent[2]; ++i)
                for (int64_t x = 0; x < own->inner; ++x)
                    slot_set(whole, slot_element(whole, b, h, position(j, rank, false, i), x),
                             slot_get(own, slot_element(own, b, h, i, x)));
}

static void make_mask(struct job *j, int32_t rank) {
    const strobe_bool_mask *whole = &j->f->bool_mask;
    struct rank *r = &j->ranks[rank];
    r->bool_mask = *whole, r->a.bool_mask = &r->bool_mask;
    if (whole->stride[2] == 0) return;
    const int64_t keys = j->total_k, heads = j->f->shape.heads_q, batch = j->f->shape.batch;
    r->mask = malloc((size_t)(batch * heads * r->rows * keys) + 1);
    r->bool_mask.data = r->mask;
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < r->rows; ++i)
                memcpy(r->mask + ((b * heads + h) * r->rows + i) * keys,
                       whole->data + b * whole->stride[0] + h * whole->stride[1] +
                           position(j, rank, false, i) * whole->stride[2],
                       (size_t)keys);
    r->bool_mask.stride[0] = heads * r->rows * keys, r->bool_mask.stride[1] = r->rows * keys, r->bool_mask.stride[2] = keys;
}

static void make_rank(struct job *j, int32_t rank) {
    struct rank *r = &j->ranks[rank];
    const struct way *w = j->way;
    const struct fixture *f = j->f;
    r->rows = strobe_dist_rows(w->layout, j->total_q, w->size, rank);
    r->keys = strobe_dist_rows(w->layout, j->total_k, w->size, rank);
    r->a = f->a, r->g = f->g;
    strobe_tensor *const tensors[] = {&r->a.q,    &r->a.k,    &r->a.v,  &r->a.out, &r->a.lse,
                                      &r->g.dout, &r->g.dlse, &r->g.dq, &r->g.dk,  &r->g.dv};
    for (enum tensor t = Q; t <= DV; ++t) {
        const bool lse = t == LSE || t == DLSE, gaps = rank % 2;
        if (!f->slot[t].base) continue;
        r->slot[t] = make_slot(&f->slot[t], is_keys(t) ? r->keys : r->rows, lse, gaps);
        if (!is_output(f, t, j->operation)) move(j, rank, t, false);
        bind(tensors[t], &r->slot[t], !gaps);
    }
    if (f->shape.features & NO_LSE && j->operation == STROBE_FORWARD) r->a.lse.data = NULL;
    if (f->slot[BIAS_TERM].base) {
        make_bias(j, rank, BIAS_TERM, &r->bias), make_bias(j, rank, DBIAS, &r->dbias);
        r->a.bias = &r->bias, r->g.dbias = &r->dbias;
        if (f->slot[BIAS_TERM].extent[2] == 1) r->g.dbias = NULL; /* whose rows would be summed */
    }
    if (f->a.bool_mask) make_mask(j, rank);
    if (f->slot[DSINKS].base) {
        const int64_t extent[3] = {1, 1, 1}, stride[3] = {0};
        r->slot[DSINKS] = slot_make_tight(f->slot[DSINKS].dtype, extent, stride, f->shape.heads_q);
        r->dsinks = (strobe_sinks){.struct_size = sizeof r->dsinks, .data = r->slot[DSINKS].data};
        r->g.dsinks = &r->dsinks;
    }
    if (f->a.varlen) r->a.varlen = &j->varlen;
}

static void run_rank(void *context, const strobe_transport *transport) {
    const struct job *j = context;
    struct rank *r = &j->ranks[transport->rank];
    const strobe_gradients *g = j->operation == STROBE_BACKWARD ? &r->g : NULL;
    strobe_transport of_gpu = *transport;
    of_gpu.device = STROBE_CUDA, of_gpu.records = transport, of_gpu.flags = STROBE_TRANSPORT_BESIDE_KERNELS;
    if (gpu_stream) r->a.device = STROBE_CUDA, transport = &of_gpu;
    strobe_dist d = {
        .struct_size = sizeof d, .attention = &r->a, .transport = transport, .rows_q = r->rows, .rows_k = r->keys};
    d.layout = j->way->layout, d.scheme = j->way->scheme, d.group = j->way->group;
    /* Messages that take long, so that an all-gather on a GPU computes on its own block meanwhile: for every other problem.
     */
    const strobe_dist_rates slow = {.struct_size = sizeof slow, .bandwidth = 1e3, .call = 1e-9, .launch = 1e-12};
    if (gpu_stream && (j->total_q + d.layout) % 2) d.rates = &slow;
    size_t bytes = 0;
    const strobe_status asked = strobe_dist_workspace(&d, g, &bytes);
    if (asked) bytes = 0; /* the call itself says so once more, to all */
    struct fenced workspace = fenced_make(bytes);
    if (bytes) memset(workspace.data, 0xff, bytes);
    void *data = bytes ? workspace.data : NULL;
    r->status = g ? strobe_dist_backward(&d, g, data, bytes, gpu_stream) : strobe_dist_forward(&d, data, bytes, gpu_stream);
    if (r->status) snprintf(r->sentence, sizeof r->sentence, "%s", strobe_dist_last_error());
    r->whole = fenced_is_whole(&workspace);
    fenced_free(&workspace);
}

/* Offsets of the fixture, whose first position has a row of its own before it. */
static void read_offsets(struct job *j) {
    const struct fixture *f = j->f;
    j->total_q = f->shape.seq_q, j->total_k = f->shape.seq_k;
    if (!f->varlen.cu_seqlens_q) return;
    for (int64_t b = 0; b <= f->shape.batch; ++b) {
        const bool wide = f->varlen.index_bits == 64;
        j->cu_q[b] = (wide ? ((const int64_t *)f->varlen.cu_seqlens_q)[b] : ((const int32_t *)f->varlen.cu_seqlens_q)[b]) -
                     1;
        j->cu_k[b] = (wide ? ((const int64_t *)f->varlen.cu_seqlens_k)[b] : ((const int32_t *)f->varlen.cu_seqlens_k)[b]) -
                     1;
    }
    j->varlen = (strobe_varlen){.struct_size = sizeof j->varlen, .index_bits = 64};
    j->varlen.cu_seqlens_q = j->cu_q, j->varlen.cu_seqlens_k = j->cu_k;
    j->first = 1, j->total_q = j->cu_q[f->shape.batch], j->total_k = j->cu_k[f->shape.batch];
}

static void take_back(struct job *j, int32_t rank) {
    struct rank *r = &j->ranks[rank];
    for (enum tensor t = Q; t < TENSORS; ++t) {
        if (!is_output(j->f, t, j->operation) || !r->slot[t].base) continue;
        if (!slot_guards_hold(&r->slot[t])) fail_msg("rank %d wrote outside %s", rank, tensor_names[t]);
        if (t == LSE && j->f->shape.features & NO_LSE) continue;
        if (is_rows(t) || is_keys(t)) move(j, rank, t, true);
        if (t == DBIAS && r->g.dbias) move_dbias(j, rank);
        if (t != DSINKS) continue;
        if (rank > 0 && !slot_equal(&r->slot[t], &j->ranks[0].slot[t])) fail_msg("dsinks of rank %d are others", rank);
        for (int64_t h = 0; h < j->f->shape.heads_q; ++h) slot_set(&j->f->slot[t], h, slot_get(&r->slot[t], h));
    }
}

static void run_on_threads(struct job *j, int64_t *bytes) {
    struct world *world = world_make(j->way->size);
    world_run(world, run_rank, j);
    if (bytes) *bytes = 0;
    for (int32_t rank = 0; bytes && rank < j->way->size; ++rank) *bytes += world_sent(world, rank);
    world_free(world);
}

/* All know what one has found. */
static void share_rank(struct job *j, int32_t rank) {
    struct rank *r = &j->ranks[rank];
    share(&r->status, sizeof r->status, rank);
    share(r->sentence, sizeof r->sentence, rank);
    share(&r->whole, sizeof r->whole, rank);
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (r->slot[t].base && is_output(j->f, t, j->operation)) share(r->slot[t].base, r->slot[t].bytes, rank);
}

strobe_status ranks_run(struct fixture *f, strobe_operation operation, const struct way *way, char *sentence,
                        size_t capacity, int64_t *bytes) {
    struct job j = {.f = f, .way = way, .operation = operation};
    read_offsets(&j);
    j.ranks = calloc((size_t)way->size, sizeof *j.ranks);
    for (int32_t rank = 0; rank < way->size; ++rank) make_rank(&j, rank);
    if (run_elsewhere)
        run_elsewhere(run_rank, &j);
    else
        run_on_threads(&j, bytes);
    for (int32_t rank = 0; run_elsewhere && rank < way->size; ++rank) share_rank(&j, rank);
    const strobe_status status = j.ranks[0].status;
    snprintf(sentence, capacity, "%s", j.ranks[0].sentence);
    for (int32_t rank = 0; rank < way->size; ++rank) {
        struct rank *r = &j.ranks[rank];
        if (!r->whole) fail_msg("rank %d wrote before its workspace", rank);
        if (r->status != status || strcmp(r->sentence, j.ranks[0].sentence) != 0)
            fail_msg("rank %d says \"%s\", rank 0 \"%s\"", rank, r->sentence, j.ranks[0].sentence);
        if (!status) take_back(&j, rank);
    }
    for (int32_t rank = 0; rank < way->size; ++rank) {
        for (enum tensor t = 0; t < TENSORS; ++t) slot_free(&j.ranks[rank].slot[t]);
        free(j.ranks[rank].mask);
    }
    free(j.ranks);
    return status;
}
