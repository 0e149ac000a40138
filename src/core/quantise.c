/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.c: reads and checks the arguments of strobe_quantise and hands them to the backend of the device. What is written
 * is described by an attention descriptor, which is checked as for a forward, but that q, k, v and scales are outputs. */
#include "core/quantise.h"

#include <math.h>

#include "core/float_mode.h"
#include "core/kernel.h"
#include "core/validate.h"

#define SOURCE_DTYPES (DTYPE_BIT(STROBE_FP32) | DTYPE_BIT(STROBE_FP16) | DTYPE_BIT(STROBE_BF16))
#define TARGET_DTYPES (DTYPE_BIT(STROBE_FP8_E4M3) | DTYPE_BIT(STROBE_INT8))

/* What is said of one of q, k, v: where its parts stand in the structures, and the words of sentences. */
struct side {
    const char *source, *target, *scale;
    strobe_tensor *from;
    const strobe_tensor *to;
    const float *scales;
    const int64_t *scale_stride;
    int64_t heads, dim, seq, block, start, total;
    const void *cu_seqlens, *used;
};

static void sides_of(struct quantisation *w, struct side sides[QUANTISE_TENSORS]) {
    struct problem *p = &w->p;
    const strobe_attention *a = &p->a;
    const strobe_scales *s = &p->scales;
    const strobe_varlen v = a->varlen ? p->varlen : (strobe_varlen){0};
    const struct side of_q = {"quantiser.q", "q",         "scales.q", &w->z.q,        &a->q,
                              s->q,          s->stride_q, a->heads_q, a->dim,         a->seq_q,
                              s->block_q,    a->q_start,  v.total_q,  v.cu_seqlens_q, v.used_q};
    const struct side of_k = {"quantiser.k", "k",         "scales.k",  &w->z.k,        &a->k,
                              s->k,          s->stride_k, a->heads_kv, a->dim,         a->seq_k,
                              s->block_k,    a->k_start,  v.total_k,   v.cu_seqlens_k, v.used_k};
    const struct side of_v = {"quantiser.v", "v",         "scales.v",  &w->z.v,        &a->v,
                              s->v,          s->stride_v, a->heads_kv, a->dim_v,       a->seq_k,
                              s->block_k,    a->k_start,  v.total_k,   v.cu_seqlens_k, v.used_k};
    sides[QUANTISE_Q] = of_q, sides[QUANTISE_K] = of_k, sides[QUANTISE_V] = of_v;
}

/* Extents of a side's tensor: a packed one is one batch entry. rows is -1 where the host cannot know them. */
static void extent_of(const struct problem *p, const struct side *s, int64_t extent[3]) {
    extent[0] = s->cu_seqlens ? p->a.batch > 0 : p->a.batch;
    extent[1] = s->cu_seqlens ? strobe__packed_total(p, s->cu_seqlens, s->total) : s->seq;
    extent[2] = s->heads;
}

/* An output with strides of 0 has one entry along that axis. */
static strobe_status check_written_scales(const struct quantisation *w, const struct side *s, const int64_t extent[3]) {
    const int64_t rows = extent[1] < 0 ? 0 : extent[1];
    const int64_t blocks = s->block == 0 ? 1 : rows / s->block + (rows % s->block != 0);
    const int64_t batch = s->block == 0 ? w->p.a.batch : extent[0];
    const strobe_tensor view = {.data = (void *)(uintptr_t)s->scales,
                                .stride = {s->scale_stride[0], s->scale_stride[1], s->scale_stride[2]},
                                .dtype = STROBE_FP32};
    const struct tensor_check check = {
        .name = s->scale,
        .tensor = &view,
        .extent = {s->scale_stride[0] ? batch : batch > 0, s->scale_stride[1] ? blocks : blocks > 0,
                   s->scale_stride[2] ? s->heads : 1},
        .inner = 1,
        .dtypes = DTYPE_BIT(STROBE_FP32),
        .written = true,
    };
    return strobe__check_tensor(&check, true);
}

static strobe_status check_side(const struct quantisation *w, const struct side *s) {
    int64_t extent[3];
    extent_of(&w->p, s, extent);
    if (!s->from->data) return STROBE_OK;
    if (extent[1] < 0 && w->p.a.device != STROBE_CPU && s->seq > 0)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "varlen.total_%s is 0 with cumulative lengths in device memory, which the host cannot read; the "
                            "rows of the packed tensor are taken",
                            s->target[0] == 'q' ? "q" : "k");
    TRY(strobe__check_dtype(s->target, s->to->dtype, TARGET_DTYPES));
    const struct tensor_check source = {.name = s->source,
                                        .tensor = s->from,
                                        .extent = {extent[0], extent[1], extent[2]},
                                        .inner = s->dim,
                                        .dtypes = SOURCE_DTYPES};
    TRY(strobe__check_tensor(&source, true));
    if (extent[0] == 0) return STROBE_OK;
    if (extent[1] > 0) TRY(strobe__check_pointer(s->target, s->to->data, 1));
    if (extent[1] > 0 && !s->scales)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is NULL; memory for the scales is accepted", s->scale);
    return s->scales ? check_written_scales(w, s, extent) : STROBE_OK;
}

static strobe_status check_positions(const struct quantisation *w, const struct side *s) {
    if (!s->from->data || w->p.a.batch == 0) return STROBE_OK;
    return strobe__rotary_check_positions(&w->rotary, s->target, s->start, s->seq);
}

static strobe_status check_rotary(const struct quantisation *w) {
    TRY(strobe__rotary_check(&w->rotary, w->p.a.dim));
    if (!w->rotary.given || w->rotary.r.cos || w->p.a.device == STROBE_CPU) return STROBE_OK;
    return strobe__fail(STROBE_UNSUPPORTED, "rotary.base is %g; tables are taken on CUDA", w->rotary.r.base);
}

static strobe_status check_choices(const struct quantisation *w) {
    const strobe_quantiser *z = &w->z;
    const int64_t dim = w->p.a.dim;
    if (w->p.a.varlen && w->p.varlen.leftpad_k)
        return strobe__fail(STROBE_UNSUPPORTED, "varlen.leftpad_k is given to strobe_quantise; NULL is taken");
    TRY(strobe__check_range("quantiser.hadamard", z->hadamard, 0, STROBE_HADAMARD));
    if (z->hadamard && dim > MOST_HADAMARD_DIM)
        return strobe__fail(STROBE_UNSUPPORTED, "dim is %lld with quantiser.hadamard; 1 to %d is taken", (long long)dim,
                            MOST_HADAMARD_DIM);
    if (z->k_mean) TRY(strobe__check_pointer("quantiser.k_mean", z->k_mean, sizeof(float)));
    if (!z->lse_shift.data) return STROBE_OK;
    if (!z->k_mean || !z->q.data)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "quantiser.lse_shift is given without %s; both are accepted",
                            z->k_mean ? "quantiser.q" : "quantiser.k_mean");
    const bool packed = w->p.a.varlen && w->p.varlen.cu_seqlens_q;
    const int64_t total = packed ? strobe__packed_total(&w->p, w->p.varlen.cu_seqlens_q, w->p.varlen.total_q) : w->p.a.seq_q;
    const struct tensor_check check = {
        .name = "quantiser.lse_shift",
        .tensor = &z->lse_shift,
        .extent = {packed ? w->p.a.batch > 0 : w->p.a.batch, total < 0 ? 1 : total, w->p.a.heads_q},
        .inner = 1,
        .dtypes = DTYPE_BIT(STROBE_FP32),
        .written = true};
    return strobe__check_tensor(&check, true);
}

static void default_source(strobe_tensor *t, const struct side *s, int32_t dtype) {
    const int64_t row = strobe__product(s->heads, s->dim);
    if (t->dtype == STROBE_DTYPE_DEFAULT) t->dtype = dtype;
    strobe__default_stride(t->stride, strobe__product(s->seq, row), row, s->dim);
}

static strobe_status read(struct quantisation *w, const strobe_attention *attention, const strobe_quantiser *quantiser) {
    if (!quantiser) return strobe__fail(STROBE_INVALID_ARGUMENT, "quantiser is NULL; a descriptor is accepted");
    TRY(strobe__problem_read(&w->p, attention, NULL, true));
    TRY(strobe__struct_copy(&w->z, sizeof w->z, quantiser, "quantiser"));
    w->p.stores = true;
    TRY(strobe__rotary_read(&w->rotary, w->z.rotary, w->p.a.dim));
    if (w->z.dtype == STROBE_DTYPE_DEFAULT) w->z.dtype = STROBE_FP32;
    const strobe_attention *a = &w->p.a;
    strobe_tensor *shift = &w->z.lse_shift;
    if (shift->dtype == STROBE_DTYPE_DEFAULT) shift->dtype = STROBE_FP32;
    const void *cu_seqlens = a->varlen ? w->p.varlen.cu_seqlens_q : NULL;
    const int64_t total = cu_seqlens ? strobe__packed_total(&w->p, cu_seqlens, w->p.varlen.total_q) : a->seq_q;
    strobe__default_stride(shift->stride, strobe__product(a->heads_q, total), 1, total);
    struct side sides[QUANTISE_TENSORS];
    sides_of(w, sides);
    for (int t = 0; t < QUANTISE_TENSORS; ++t) default_source(sides[t].from, &sides[t], w->z.dtype);
    return STROBE_OK;
}

static void set_tensor(struct quantisation *w, int which, const struct side *s) {
    const strobe_attention *a = &w->p.a;
    const bool packed = s->cu_seqlens != NULL, is_value = which == QUANTISE_V;
    int64_t extent[3];
    extent_of(&w->p, s, extent);
    struct quantise_tensor t = {
        .from = s->from->data,
        .to = s->to->data,
        .scale = (float *)(uintptr_t)s->scales,
        .cu_seqlens = s->cu_seqlens,
        .used = s->used,
        .mean = which == QUANTISE_K ? w->z.k_mean : NULL,
        .sequences = a->batch,
        .batch = extent[0],
        .rows = extent[1] < 0 ? 0 : extent[1],
        .heads = s->heads,
        .dim = s->dim,
        .block = s->block,
        .start = s->start,
        .from_dtype = s->from->dtype,
        .index_bits = w->p.varlen.index_bits,
        .int8 = s->to->dtype == STROBE_INT8,
        .rotary = !is_value && w->z.rotary,
        .hadamard = !is_value && w->z.hadamard,
    };
    for (int axis = 0; axis < 3; ++axis) {
        t.from_stride[axis] = s->from->stride[axis], t.to_stride[axis] = s->to->stride[axis];
        t.scale_stride[axis] = s->scale_stride[axis];
    }
    if (which == QUANTISE_Q && w->z.lse_shift.data) {
        const int64_t *stride = w->z.lse_shift.stride;                   /* batch, row, head, as lse's */
        const bool no_keys = w->z.k.data && !w->tensor[QUANTISE_K].from; /* then nothing has written the mean */
        t.lse_shift = w->z.lse_shift.data, t.key_mean = no_keys ? NULL : w->z.k_mean, t.group = (int32_t)w->p.group;
        t.shift_stride[0] = packed ? 0 : stride[0], t.shift_stride[1] = stride[1], t.shift_stride[2] = stride[2];
        t.scale_of_scores = (float)a->scale;
    }
    if (!t.from || t.batch == 0 || (!t.mean && !quantise_has_scales(&t))) t.from = NULL;
    w->tensor[which] = t;
}

static strobe_status quantise_here(const strobe_attention *attention, const strobe_quantiser *quantiser, void *stream) {
    struct quantisation w = {0};
    struct side sides[QUANTISE_TENSORS];
    TRY(read(&w, attention, quantiser));
    TRY(strobe__problem_validate(&w.p));
    if (w.p.a.paged) return strobe__fail(STROBE_UNSUPPORTED, "paged is given; NULL is taken");
    sides_of(&w, sides);
    TRY(check_rotary(&w));
    TRY(check_choices(&w));
    for (int t = 0; t < QUANTISE_TENSORS; ++t) TRY(check_side(&w, &sides[t]));
    for (int t = 0; t < QUANTISE_V; ++t) TRY(check_positions(&w, &sides[t]));
    if (w.p.a.device == STROBE_CPU && stream)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);
    for (int t = QUANTISE_TENSORS - 1; t >= 0; --t) set_tensor(&w, t, &sides[t]); /* k before q, which asks for it */
    strobe__rotary_choices(&w.choices, &w.rotary, w.z.seed);

    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if (backend->quantise && (int32_t)backend->device == w.p.a.device) return backend->quantise(&w, stream);
    return strobe__fail(STROBE_UNSUPPORTED,
                        "device is %d (CUDA), for which this build has no kernel; 0 (the CPU) is accepted", w.p.a.device);
}

/* Tasks have a float mode of their own (parallel.c); what is worked out before them has it here. */
strobe_status strobe_quantise(const strobe_attention *attention, const strobe_quantiser *quantiser, void *stream) {
    const float_mode mode = float_mode_enter();
    const strobe_status status = quantise_here(attention, quantiser, stream);
    float_mode_set(mode);
    return status;
}
