/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.c (core): reads the arguments of strobe_append and hands them to the backend of the device. What is written is
 * described by an attention descriptor, which is checked as for a forward, but that q, k, v and scales are outputs. The
 * checks of the appender are append_check.c's. */
#include "core/append.h"

#include "core/float_mode.h"
#include "core/kernel.h"
#include "core/validate.h"

/* Rows of packed new tokens: `total_new` where it is given, else the last offset; -1 where the host cannot read that. */
static int64_t rows_of_new(const struct appending *w) {
    const strobe_appender *n = &w->n;
    if (!n->cu_seqlens_new) return n->seq_new;
    if (n->total_new > 0) return n->total_new;
    const bool readable = w->p.a.device == STROBE_CPU && w->p.a.batch >= 0 && w->p.a.batch <= LARGEST_EXTENT &&
                          (uintptr_t)n->cu_seqlens_new % (size_t)(n->index_bits == 64 ? 8 : 4) == 0;
    return readable ? append_entry(n->cu_seqlens_new, n->index_bits, w->p.a.batch) : -1;
}

static void default_source(strobe_tensor *t, int32_t dtype, int64_t seq, int64_t heads, int64_t dim) {
    const int64_t row = strobe__product(heads, dim);
    if (t->dtype == STROBE_DTYPE_DEFAULT) t->dtype = dtype;
    strobe__default_stride(t->stride, strobe__product(seq, row), row, dim);
}

/* A tensor that is not written may be the caller's in any way: the checks of an output are not for it. */
static void leave_out(strobe_tensor *target, const float **scale, const strobe_tensor *source) {
    if (source->data) return;
    target->data = NULL, target->stride[0] = target->stride[1] = target->stride[2] = 0;
    *scale = NULL;
}

static strobe_status read(struct appending *w, const strobe_attention *attention, const strobe_appender *appender) {
    if (!appender) return strobe__fail(STROBE_INVALID_ARGUMENT, "appender is NULL; a descriptor is accepted");
    TRY(strobe__problem_read(&w->p, attention, NULL, true));
    TRY(strobe__struct_copy(&w->n, sizeof w->n, appender, "appender"));
    strobe_attention *a = &w->p.a;
    strobe_appender *n = &w->n;
    w->p.stores = true, w->p.by_slots = n->slots;
    TRY(strobe__rotary_read(&w->rotary, n->rotary, a->dim));
    if (n->dtype == STROBE_DTYPE_DEFAULT) n->dtype = STROBE_FP32;
    if (n->index_bits == 0) n->index_bits = 32;
    default_source(&n->q, n->dtype, a->seq_q, a->heads_q, a->dim);
    default_source(&n->k, n->dtype, n->seq_new, a->heads_kv, a->dim);
    default_source(&n->v, n->dtype, n->seq_new, a->heads_kv, a->dim_v);
    leave_out(&a->q, &w->p.scales.q, &n->q);
    leave_out(&a->k, &w->p.scales.k, &n->k);
    leave_out(&a->v, &w->p.scales.v, &n->v);
    return STROBE_OK;
}

static void set_tensor(struct appending *w, int which, const strobe_tensor *from, const strobe_tensor *to, int64_t heads,
                       int64_t dim) {
    const strobe_attention *a = &w->p.a;
    const strobe_scales *s = &w->p.scales;
    const strobe_appender *n = &w->n;
    const bool is_q = which == APPEND_Q, is_v = which == APPEND_V;
    const strobe_varlen *v = is_q && a->varlen ? &w->p.varlen : NULL;
    const void *cu = is_q ? v ? v->cu_seqlens_q : NULL : n->cu_seqlens_new;
    const int64_t rows = !is_q ? rows_of_new(w) : cu ? strobe__packed_total(&w->p, cu, v->total_q) : a->seq_q;
    struct append_tensor t = {.to_dtype = to->dtype, .cached = !is_q};
    t.t = (struct quantise_tensor){
        .from = from->data,
        .to = to->data,
        .scale = (float *)(uintptr_t)(is_q   ? s->q
                                      : is_v ? s->v
                                             : s->k),
        .cu_seqlens = cu,
        .used = is_q ? v ? v->used_q : NULL : n->used_new,
        .sequences = a->batch,
        .batch = cu ? a->batch > 0 : a->batch,
        .rows = rows,
        .heads = heads,
        .dim = dim,
        .block = is_q ? s->block_q : s->block_k,
        .from_dtype = from->dtype,
        .index_bits = is_q ? w->p.varlen.index_bits : n->index_bits,
        .int8 = to->dtype == STROBE_INT8,
        .rotary = !is_v && w->rotary.given,
        .hadamard = !is_v && n->hadamard,
    };
    const int64_t *scale_stride = is_q ? s->stride_q : is_v ? s->stride_v : s->stride_k;
    for (int axis = 0; axis < 3; ++axis) {
        t.t.from_stride[axis] = from->stride[axis], t.t.to_stride[axis] = to->stride[axis];
        t.t.scale_stride[axis] = scale_stride[axis];
    }
    w->tensor[which] = t;
}

static void set_cache(struct appending *w) {
    const strobe_attention *a = &w->p.a;
    const strobe_appender *n = &w->n;
    const strobe_varlen v = a->varlen ? w->p.varlen : (strobe_varlen){0};
    struct append_cache c = {
        .cu_seqlens = n->cu_seqlens_new,
        .used = n->used_new,
        .lengths = n->lengths,
        .positions = n->positions,
        .cache_used = v.used_k,
        .cache_cu = v.cu_seqlens_k,
        .slots = n->slots,
        .seq_new = n->seq_new,
        .longest = a->seq_k,
        .entries = a->batch,
        .rows = a->seq_k,
        .q_start = a->q_start,
        .k_start = a->k_start,
        .index_bits = n->index_bits,
        .cache_bits = w->p.varlen.index_bits,
        .q_at_length = n->flags & STROBE_Q_AT_LENGTH,
    };
    if (v.cu_seqlens_k) c.entries = a->batch > 0, c.rows = strobe__packed_total(&w->p, v.cu_seqlens_k, v.total_k);
    if (a->paged) {
        c.page_table = w->p.paged.page_table, c.table_stride = w->p.paged.table_stride;
        c.page_size = c.rows = w->p.paged.page_size, c.entries = w->p.paged.pages;
    }
    if (c.rows <= 0) c.entries = 0, c.rows = 1;
    w->cache = c;
}

static strobe_status append_here(const strobe_attention *attention, const strobe_appender *appender, void *stream) {
    struct appending w = {0};
    TRY(read(&w, attention, appender));
    TRY(strobe__problem_validate(&w.p));
    const strobe_attention *a = &w.p.a;
    set_tensor(&w, APPEND_Q, &w.n.q, &a->q, a->heads_q, a->dim);
    set_tensor(&w, APPEND_K, &w.n.k, &a->k, a->heads_kv, a->dim);
    set_tensor(&w, APPEND_V, &w.n.v, &a->v, a->heads_kv, a->dim_v);
    set_cache(&w);
    TRY(strobe__append_check(&w));
    if (a->device == STROBE_CPU && stream)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);
    for (int t = 0; t < APPEND_TENSORS; ++t) {
        struct quantise_tensor *of = &w.tensor[t].t;
        if (of->batch == 0 || of->rows <= 0) of->from = NULL;
    }
    strobe__rotary_choices(&w.choices, &w.rotary, w.n.seed);

    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if (backend->append && (int32_t)backend->device == a->device) return backend->append(&w, stream);
    return strobe__fail(STROBE_UNSUPPORTED,
                        "device is %d (CUDA), for which this build appends nothing; 0 (the CPU) is accepted", a->device);
}

/* Tasks have a float mode of their own (parallel.c); what is worked out before them has it here. */
strobe_status strobe_append(const strobe_attention *attention, const strobe_appender *appender, void *stream) {
    const float_mode mode = float_mode_enter();
    const strobe_status status = append_here(attention, appender, stream);
    float_mode_set(mode);
    return status;
}
