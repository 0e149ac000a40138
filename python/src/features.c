/* SPDX-License-Identifier: BSD-3-Clause
 *
 * features.c: the optional structures of the descriptor: lengths, bias, masks, slopes, sinks, dropout, scales, tuning. A
 * structure joins the descriptor only when its argument is given. */
#include "arguments.h"

#include <string.h>

#include <stdio.h>

bool open_integers(struct call *c, struct tensor *t, enum argument argument, const char *name, int32_t *bits,
                   const void **to) {
    if (!tensor_open_optional(c->state, t, c->args[argument], name)) return false;
    if (!tensor_is_open(t)) return true;
    if (t->element != ELEMENT_INT32 && t->element != ELEMENT_INT64) return refuse_dtype(t, "int32 or int64");
    if (t->ndim != 1) return refuse_shape(t, "one axis");
    if (t->shape[0] > 1 && t->stride[0] != 1) return refuse_stride(t, 0);
    const int32_t own = t->element == ELEMENT_INT64 ? 64 : 32;
    if (*bits && *bits != own)
        return refuse_dtype(t, own == 32 ? "int64, as in the lengths before it," : "int32, as in the lengths before it,");
    *bits = own;
    *to = t->data;
    if (!c->shards) return tensor_is_on(t, &c->q);
    if (t->device == STROBE_CPU) return true; /* read by libstrobe_dist, whatever the device of q is */
    PyErr_Format(PyExc_ValueError, "%s is on a GPU; a tensor of the CPU is accepted over many processes", name);
    return false;
}

static bool open_lengths(struct call *c, struct tensor *t, enum argument argument, const char *name, const void **to) {
    if (!open_integers(c, t, argument, name, &c->varlen.index_bits, to)) return false;
    if (!tensor_is_open(t)) return true;
    c->varlen.struct_size = sizeof c->varlen;
    c->a.varlen = &c->varlen;
    return true;
}

static int64_t entry(const struct tensor *t, int64_t n) {
    return t->element == ELEMENT_INT64 ? ((const int64_t *)t->data)[n] : ((const int32_t *)t->data)[n];
}

bool read_bound(struct call *c, const struct tensor *cu, enum argument argument, const char *name, int64_t *seq) {
    if (!tensor_is_open(cu)) {
        if (c->args[argument] == Py_None) return true;
        if (argument == ARG_MAX_SEQLEN_K && is_paged(c)) return read_int(c->args[argument], name, seq);
        PyErr_Format(PyExc_ValueError, "%s is given without cu_seqlens; both or none is accepted", name);
        return false;
    }
    if (cu->shape[0] < 1) return refuse_shape(cu, "(batch + 1,)");
    if (c->args[argument] != Py_None) return read_int(c->args[argument], name, seq);
    if (cu->device != STROBE_CPU) {
        PyErr_Format(PyExc_ValueError, "%s is None; the longest sequence's length is accepted on this device", name);
        return false;
    }
    *seq = 0;
    for (int64_t b = 0; b + 1 < cu->shape[0]; ++b) {
        const int64_t length = entry(cu, b + 1) - entry(cu, b);
        if (length > *seq) *seq = length;
    }
    return true;
}

bool read_lengths(struct call *c) {
    strobe_varlen *v = &c->varlen;
    if (!open_lengths(c, &c->cu_q, ARG_CU_SEQLENS_Q, c->offsets_of_q ? c->offsets_of_q : "cu_seqlens_q", &v->cu_seqlens_q) ||
        !open_lengths(c, &c->cu_k, ARG_CU_SEQLENS_K, "cu_seqlens_k", &v->cu_seqlens_k) ||
        !open_lengths(c, &c->used_q, ARG_USED_Q, "used_q", &v->used_q) ||
        !open_lengths(c, &c->used_k, ARG_USED_K, "used_k", &v->used_k) ||
        !open_lengths(c, &c->leftpad_k, ARG_LEFTPAD_K, "leftpad_k", &v->leftpad_k))
        return false;
    if (tensor_is_open(&c->cu_q)) v->total_q = c->q.ndim > 0 ? c->q.shape[0] : 0;
    if (tensor_is_open(&c->cu_k)) v->total_k = c->k.ndim > 0 ? c->k.shape[0] : 0;
    return read_bound(c, &c->cu_q, ARG_MAX_SEQLEN_Q, c->bound_of_q ? c->bound_of_q : "max_seqlen_q", &c->a.seq_q) &&
           read_bound(c, &c->cu_k, ARG_MAX_SEQLEN_K, "max_seqlen_k", &c->a.seq_k);
}

bool open_pages(struct call *c) {
    struct tensor *t = &c->page_table;
    if (!tensor_open_optional(c->state, t, c->args[ARG_PAGE_TABLE], "page_table")) return false;
    if (!tensor_is_open(t)) return true;
    if (t->element != ELEMENT_INT32) return refuse_dtype(t, "int32");
    if (t->ndim != 2) return refuse_shape(t, "(batch, pages)");
    if (t->shape[1] > 1 && t->stride[1] != 1) return refuse_stride(t, 1);
    return tensor_is_on(t, &c->q);
}

/* total_* = 0 asks the library for its default, which an empty packed tensor's offsets may exceed; and used_* are one entry
 * a sequence. */
static bool check_lengths(const struct call *c) {
    const struct { const struct tensor *cu, *rows; } packed[2] = {{&c->cu_q, &c->q}, {&c->cu_k, &c->k}};
    for (int n = 0; n < 2; ++n) {
        const struct tensor *cu = packed[n].cu;
        if (!tensor_is_open(cu) || cu->device != STROBE_CPU || packed[n].rows->shape[0] > 0 || c->shards) continue;
        const int64_t end = entry(cu, cu->shape[0] - 1);
        if (end == 0) continue;
        PyErr_Format(PyExc_ValueError, "%s ends at %lld; the rows of %s, 0, is accepted", cu->name, (long long)end,
                     packed[n].rows->name);
        return false;
    }
    const int64_t batch[1] = {c->a.batch};
    return (!tensor_is_open(&c->used_q) || tensor_has_shape(&c->used_q, 1, batch)) &&
           (!tensor_is_open(&c->used_k) || tensor_has_shape(&c->used_k, 1, batch)) &&
           (!tensor_is_open(&c->leftpad_k) || tensor_has_shape(&c->leftpad_k, 1, batch));
}

bool read_scores(const struct tensor *t, const int64_t extent[4], int64_t stride[3]) {
    bool fits = t->ndim <= 4 && t->ndim >= 1;
    for (int axis = 0; fits && axis < t->ndim; ++axis) {
        const int64_t of = t->shape[axis], wanted = extent[4 - t->ndim + axis];
        fits = of == wanted || (of == 1 && axis + 1 < t->ndim);
    }
    if (!fits) {
        char text[160];
        snprintf(text, sizeof text, "(%lld, %lld, %lld, %lld), or 1 or nothing in place of any but the last axis,",
                 (long long)extent[0], (long long)extent[1], (long long)extent[2], (long long)extent[3]);
        return refuse_shape(t, text);
    }
    if (extent[3] > 1 && t->stride[t->ndim - 1] != 1) {
        return refuse_stride(t, t->ndim - 1);
    }
    for (int n = 0; n < 3; ++n) {
        const int axis = t->ndim - 4 + n;
        stride[n] = axis < 0 || t->shape[axis] == 1 ? 0 : t->stride[axis];
    }
    return true;
}

static bool open_scores(struct call *c, struct tensor *t, enum argument argument, const char *name, const int64_t extent[4],
                        int64_t stride[3]) {
    if (!tensor_open_optional(c->state, t, c->args[argument], name)) return false;
    return !tensor_is_open(t) || (read_scores(t, extent, stride) && tensor_is_on(t, &c->q));
}

static bool read_bias_and_mask(struct call *c) {
    strobe_attention *a = &c->a;
    const int64_t scores[4] = {a->batch, a->heads_q, a->seq_q, a->seq_k};
    if (!open_scores(c, &c->bias_tensor, ARG_BIAS, "bias", scores, c->bias.stride)) return false;
    if (tensor_is_open(&c->bias_tensor)) {
        if (c->bias_tensor.element >= ELEMENT_BOOL) return refuse_dtype(&c->bias_tensor, "a floating-point dtype");
        c->bias.struct_size = sizeof c->bias, c->bias.data = c->bias_tensor.data, c->bias.dtype = c->bias_tensor.element;
        a->bias = &c->bias;
    }
    if (!open_scores(c, &c->mask_tensor, ARG_MASK, "mask", scores, c->bool_mask.stride)) return false;
    if (tensor_is_open(&c->mask_tensor)) {
        if (c->mask_tensor.element != ELEMENT_BOOL) return refuse_dtype(&c->mask_tensor, "bool (True: visible)");
        c->bool_mask.struct_size = sizeof c->bool_mask, c->bool_mask.data = c->mask_tensor.data;
        a->bool_mask = &c->bool_mask;
    }
    return true;
}

static bool read_block_mask(struct call *c) {
    if (c->args[ARG_BLOCK_MASK] == Py_None) return true;
    PyObject *size = c->args[ARG_BLOCK_SIZE];
    strobe_block_mask *m = &c->block_mask;
    if (!PyTuple_Check(size) || PyTuple_Size(size) != 2) {
        PyErr_Format(PyExc_TypeError, "block_size is %R; a tuple (rows, keys) is accepted with block_mask", size);
        return false;
    }
    if (!read_int(PyTuple_GetItem(size, 0), "block_size[0]", &m->block_q) ||
        !read_int(PyTuple_GetItem(size, 1), "block_size[1]", &m->block_k))
        return false;
    if (m->block_q < 1 || m->block_k < 1) {
        PyErr_Format(PyExc_ValueError, "block_size is %R; 1 or more on both sides is accepted", size);
        return false;
    }
    const int64_t blocks[4] = {c->a.batch, c->a.heads_q, c->a.seq_q / m->block_q + (c->a.seq_q % m->block_q != 0),
                               c->a.seq_k / m->block_k + (c->a.seq_k % m->block_k != 0)};
    if (!open_scores(c, &c->block_tensor, ARG_BLOCK_MASK, "block_mask", blocks, m->stride)) return false;
    if (c->block_tensor.element != ELEMENT_BOOL) return refuse_dtype(&c->block_tensor, "bool (True: visible)");
    m->struct_size = sizeof *m, m->data = c->block_tensor.data;
    c->a.block_mask = m;
    return true;
}

/* ALiBi's slopes, [heads] or [batch, heads], and sinks, [heads]. */
static bool read_heads(struct call *c) {
    strobe_attention *a = &c->a;
    struct tensor *slopes = &c->slopes_tensor, *sinks = &c->sinks_tensor;
    if (!tensor_open_optional(c->state, slopes, c->args[ARG_ALIBI_SLOPES], "alibi_slopes")) return false;
    if (tensor_is_open(slopes)) {
        const int64_t shape[2] = {a->batch, a->heads_q};
        const bool one = slopes->ndim == 1;
        if (!tensor_has_shape(slopes, one ? 1 : 2, one ? shape + 1 : shape) || !tensor_is_on(slopes, &c->q)) return false;
        if (slopes->element != STROBE_FP32) return refuse_dtype(slopes, "float32");
        if (a->heads_q > 1 && slopes->stride[slopes->ndim - 1] != 1) return refuse_stride(slopes, slopes->ndim - 1);
        c->alibi.struct_size = sizeof c->alibi, c->alibi.slopes = slopes->data;
        c->alibi.stride_batch = one ? 0 : slopes->stride[0];
        a->alibi = &c->alibi;
    }
    if (!tensor_open_optional(c->state, sinks, c->args[ARG_SINKS], "sinks")) return false;
    if (!tensor_is_open(sinks)) return true;
    if (!tensor_has_shape(sinks, 1, &a->heads_q) || !tensor_is_on(sinks, &c->q)) return false;
    if (a->heads_q > 1 && sinks->stride[0] != 1) return refuse_stride(sinks, 0);
    const bool is_double = c->q.element == STROBE_FP64 && sinks->element == STROBE_FP64;
    if (sinks->element != STROBE_FP32 && !is_double) return refuse_dtype(sinks, "float32, or float64 with a float64 q,");
    c->sinks.struct_size = sizeof c->sinks, c->sinks.data = sinks->data, c->sinks.dtype = sinks->element;
    a->sinks = &c->sinks;
    return true;
}

static bool read_unsigned(PyObject *from, const char *name, uint64_t *to) {
    if (from == Py_None) return true;
    PyObject *index = PyNumber_Index(from);
    *to = index ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    if (!PyErr_Occurred()) return true;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "%s is %R; an integer in [0, 2**64) is accepted", name, from);
    return false;
}

static bool read_dropout(struct call *c) {
    strobe_dropout *d = &c->dropout;
    if (!read_float(c->args[ARG_DROPOUT], "dropout", &d->p) || !read_unsigned(c->args[ARG_SEED], "seed", &d->seed) ||
        !read_unsigned(c->args[ARG_OFFSET], "offset", &d->offset))
        return false;
    if (d->p == 0) return true;
    if (c->args[ARG_SEED] == Py_None) {
        PyErr_Format(PyExc_ValueError, "seed is None with dropout %R; an integer in [0, 2**64) is accepted",
                     c->args[ARG_DROPOUT]);
        return false;
    }
    d->struct_size = sizeof *d;
    c->a.dropout = d;
    return true;
}

int scales_shape(const struct call *c, bool of_queries, int64_t block, int64_t shape[3]) {
    const strobe_attention *a = &c->a;
    const bool packed = of_queries ? is_packed_q(c) : is_packed_k(c);
    if (!of_queries && is_paged(c) && block > 0) { /* beside every slot */
        memcpy(shape, c->k.shape, 3 * sizeof *shape);
        return 3;
    }
    const int64_t heads = of_queries ? a->heads_q : a->heads_kv;
    const int64_t rows = packed ? (of_queries ? c->q.shape[0] : c->k.shape[0]) : of_queries ? a->seq_q : a->seq_k;
    const int64_t blocks = block == 0 ? 1 : (rows + block - 1) / block;
    shape[0] = packed && block > 0 ? blocks : a->batch;
    shape[1] = packed ? heads : blocks;
    shape[2] = heads;
    return packed ? 2 : 3;
}

bool place_scales(const struct call *c, const struct tensor *t, bool of_queries, int64_t block, int64_t stride[3]) {
    int64_t wanted[3], repeated[3];
    const int axes = scales_shape(c, of_queries, block, wanted);
    for (int n = 0; n < axes; ++n) repeated[n] = t->ndim == axes && t->shape[n] == 1 ? 1 : wanted[n];
    if (t->ndim != axes || memcmp(t->shape, repeated, sizeof *repeated * (size_t)axes) != 0)
        return tensor_has_shape(t, axes, wanted);
    if (!tensor_is_on(t, &c->q)) return false;
    if (t->element != STROBE_FP32) return refuse_dtype(t, "float32");
    int64_t own[3] = {0};
    for (int n = 0; n < axes; ++n) own[n] = t->shape[n] == 1 ? 0 : t->stride[n];
    stride[0] = axes == 3 || block == 0 ? own[0] : 0;
    stride[1] = axes == 3 ? own[1] : block == 0 ? 0 : own[0];
    stride[2] = own[axes - 1];
    return true;
}

bool read_pair(PyObject *from, const char *name, int64_t *first, int64_t *second) {
    if (from == Py_None) return true;
    PyObject *a = NULL, *b = NULL;
    if (PySequence_Check(from) && PySequence_Size(from) == 2)
        a = PySequence_GetItem(from, 0), b = PySequence_GetItem(from, 1);
    PyErr_Clear();
    if (!a || !b) PyErr_Format(PyExc_TypeError, "%s is %R; a pair (rows, keys) is accepted", name, from);
    const bool read = a && b && read_int(a, name, first) && read_int(b, name, second);
    Py_XDECREF(a);
    Py_XDECREF(b);
    if (read && (*first < 0 || *second < 0)) {
        PyErr_Format(PyExc_ValueError, "%s is %R; rows and keys that share a scale, 0 for all of a sequence, are accepted",
                     name, from);
        return false;
    }
    return read;
}

static bool read_scale(struct call *c, struct tensor *t, enum argument argument, const char *name, const float **to,
                       int64_t stride[3]) {
    if (!tensor_open_optional(c->state, t, c->args[argument], name)) return false;
    if (!tensor_is_open(t)) return true;
    const bool of_queries = argument == ARG_Q_SCALE;
    if (!place_scales(c, t, of_queries, of_queries ? c->scales.block_q : c->scales.block_k, stride)) return false;
    c->scales.struct_size = sizeof c->scales;
    c->a.scales = &c->scales;
    *to = t->data;
    return true;
}

static bool read_scales(struct call *c) {
    strobe_scales *s = &c->scales;
    s->block_q = s->block_k = 1;
    return read_pair(c->args[ARG_SCALE_BLOCK], "scale_block", &s->block_q, &s->block_k) &&
           read_scale(c, &c->q_scale, ARG_Q_SCALE, "q_scale", &s->q, s->stride_q) &&
           read_scale(c, &c->k_scale, ARG_K_SCALE, "k_scale", &s->k, s->stride_k) &&
           read_scale(c, &c->v_scale, ARG_V_SCALE, "v_scale", &s->v, s->stride_v);
}

static bool read_tuning(struct call *c) {
    PyObject *name = c->args[ARG_KERNEL], *split = c->args[ARG_SPLIT_KEYS];
    if (name == Py_None && split == Py_None) return true;
    c->tuning.struct_size = sizeof c->tuning;
    c->a.tuning = &c->tuning;
    if (!read_int(split, "split_keys", &c->tuning.split_keys)) return false;
    if (name == Py_None) return true;
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "kernel is %R; the name of a kernel (strobe.kernels()) is accepted", name);
        return false;
    }
    return read_string(name, "kernel", &c->tuning.kernel); /* lives as long as the argument */
}

bool read_features(struct call *c) {
    return (!c->a.varlen || check_lengths(c)) && read_bias_and_mask(c) && read_block_mask(c) && read_mask_lists(c) &&
           read_heads(c) && read_dropout(c) && read_scales(c) && read_score(c) && read_tuning(c);
}
