/* SPDX-License-Identifier: BSD-3-Clause
 *
 * validate.c: every argument of the descriptor is checked before any work; what is wrong is said with its name, its value
 * and what is accepted. The optional structures are in validate_features.c. Whether a kernel takes a sound problem is not
 * asked here: that is each kernel's reject(). */
#include "core/validate.h"

#include "core/accumulate.h"

#include <math.h>

strobe_status strobe__check_range(const char *name, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is %lld; %lld to %lld is accepted", name, (long long)value,
                        (long long)least, (long long)most);
}

strobe_status strobe__check_dtype(const char *name, int32_t dtype, uint32_t accepted) {
    if (dtype < STROBE_FP32 || dtype > STROBE_INT8)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.dtype is %d; a strobe_dtype, 1 to 6, is accepted", name, dtype);
    if (accepted & DTYPE_BIT(dtype)) return STROBE_OK;
    char names[64] = "";
    size_t length = 0;
    for (int32_t d = STROBE_FP32; d <= STROBE_INT8; ++d)
        if (accepted & DTYPE_BIT(d)) {
            if (length) names[length++] = ',', names[length++] = ' ';
            for (const char *c = strobe__dtype_name(d); *c; ++c) names[length++] = *c;
        }
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.dtype is %s; accepted are %s", name, strobe__dtype_name(dtype), names);
}

strobe_status strobe__check_pointer(const char *name, const void *data, size_t element_bytes) {
    if (!data) return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is NULL; a pointer to its elements is accepted", name);
    if ((uintptr_t)data % element_bytes != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is %p; a multiple of its element's %zu bytes is accepted", name,
                            data, element_bytes);
    return STROBE_OK;
}

/* Whether every element's offset in bytes fits int64_t, with room to add. */
static bool offsets_fit(const struct tensor_check *c) {
    int64_t reach = c->inner * (int64_t)strobe__dtype_bytes(c->tensor->dtype), step;
    for (int axis = 0; axis < 3; ++axis) {
        if (c->extent[axis] <= 1) continue;
        if (c->tensor->stride[axis] == INT64_MIN) return false;
        const int64_t stride = c->tensor->stride[axis] < 0 ? -c->tensor->stride[axis] : c->tensor->stride[axis];
        if (__builtin_mul_overflow(c->extent[axis] - 1, stride, &step) || __builtin_mul_overflow(step, 8, &step) ||
            __builtin_add_overflow(reach, step, &reach))
            return false;
    }
    return reach <= INT64_MAX / 4;
}

/* Whether no two elements share a place: walking the axes from the smallest stride up, each must step over all below it.
 * Sufficient, and true of every view that slicing and permuting a contiguous tensor gives. */
static bool elements_are_apart(const struct tensor_check *c) {
    int64_t stride[3], extent[3];
    int axes = 0;
    for (int axis = 0; axis < 3; ++axis) {
        if (c->extent[axis] <= 1) continue;
        const int64_t s = c->tensor->stride[axis] < 0 ? -c->tensor->stride[axis] : c->tensor->stride[axis];
        int at = axes++;
        for (; at > 0 && stride[at - 1] > s; --at) stride[at] = stride[at - 1], extent[at] = extent[at - 1];
        stride[at] = s, extent[at] = c->extent[axis];
    }
    int64_t span = c->inner;
    for (int axis = 0; axis < axes; ++axis) {
        if (stride[axis] < span) return false;
        span += (extent[axis] - 1) * stride[axis];
    }
    return true;
}

strobe_status strobe__check_tensor(const struct tensor_check *c, bool runs) {
    const strobe_tensor *t = c->tensor;
    TRY(strobe__check_dtype(c->name, t->dtype, c->dtypes));
    if (t->reserved != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s.reserved is %d; 0 is accepted", c->name, t->reserved);
    const bool empty = c->extent[0] == 0 || c->extent[1] == 0 || c->extent[2] == 0;
    if (empty || (c->optional && !t->data)) return STROBE_OK;
    if (!offsets_fit(c))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "%s.stride is {%lld, %lld, %lld}; offsets within 2^61 bytes are accepted", c->name,
                            (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2]);
    if (c->written && !elements_are_apart(c))
        return strobe__fail(
            STROBE_INVALID_ARGUMENT,
            "%s.stride is {%lld, %lld, %lld}; strides that keep the elements of an output apart are accepted", c->name,
            (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2]);
    return runs ? strobe__check_pointer(c->name, t->data, strobe__dtype_bytes(t->dtype)) : STROBE_OK;
}

/* Of a count that packed or empty tensors, whose strides say nothing of it, leave open. */
static strobe_status check_count(const char *name, int64_t extent, int64_t heads) {
    if (strobe__product(extent, heads) <= LARGEST_COUNT) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT, "%s times heads_q is %lld times %lld; 0 to %lld is accepted", name,
                        (long long)extent, (long long)heads, (long long)LARGEST_COUNT);
}

static strobe_status check_extents(const strobe_attention *a) {
    TRY(strobe__check_range("batch", a->batch, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("seq_q", a->seq_q, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("seq_k", a->seq_k, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("heads_q", a->heads_q, 1, INT32_MAX));
    TRY(strobe__check_range("heads_kv", a->heads_kv, 1, a->heads_q));
    if (a->heads_q % a->heads_kv != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "heads_kv is %lld; a divisor of heads_q, %lld, is accepted",
                            (long long)a->heads_kv, (long long)a->heads_q);
    TRY(check_count("batch", a->batch, a->heads_q));
    TRY(check_count("seq_q", a->seq_q, a->heads_q));
    TRY(strobe__check_range("dim", a->dim, 1, DIM_LIMIT));
    return strobe__check_range("dim_v", a->dim_v, 1, DIM_V_LIMIT);
}

/* Kernels multiply by factors in fp32 that are made of these two, also by scale / softcap: beyond these bounds one would be
 * 0 or infinite, and scores with it. */
static strobe_status check_factors(const strobe_attention *a) {
    static const double least = 1e-30, most = 1e30, least_quotient = 1e-36, most_quotient = 1e36;
    const double scale = fabs(a->scale), quotient = scale / a->softcap;
    if (!(scale >= least && scale <= most))
        return strobe__fail(STROBE_INVALID_ARGUMENT, "scale is %g; a number of a magnitude from 1e-30 to 1e30 is accepted",
                            a->scale);
    if (a->softcap != 0 && !(a->softcap >= least && a->softcap <= most))
        return strobe__fail(STROBE_INVALID_ARGUMENT, "softcap is %g; 0 (none) or a number from 1e-30 to 1e30 is accepted",
                            a->softcap);
    if (a->softcap == 0 || (quotient >= least_quotient && quotient <= most_quotient)) return STROBE_OK;
    return strobe__fail(
        STROBE_INVALID_ARGUMENT,
        "softcap is %g beside a scale of %g; a scale / softcap of a magnitude from 1e-36 to 1e36 is accepted", a->softcap,
        a->scale);
}

static strobe_status check_choices(const strobe_attention *a) {
    if (a->dtype < STROBE_FP32 || a->dtype > STROBE_INT8)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "dtype is %d; a strobe_dtype, 1 to 6, is accepted", a->dtype);
    TRY(strobe__check_range("device", a->device, STROBE_CPU, STROBE_CUDA));
    TRY(strobe__check_range("device_index", a->device_index, 0, a->device == STROBE_CPU ? 0 : INT32_MAX));
    TRY(strobe__check_range("mask", a->mask, STROBE_MASK_NONE, STROBE_MASK_WINDOW_BOTTOM_RIGHT));
    if (a->flags & ~(uint64_t)(STROBE_DETERMINISTIC | STROBE_TF32X3))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "flags is 0x%llx; STROBE_DETERMINISTIC, 0x1, and STROBE_TF32X3, 0x2, are accepted",
                            (unsigned long long)a->flags);
    TRY(check_factors(a));
    if (a->mask == STROBE_MASK_WINDOW_TOP_LEFT || a->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT) {
        TRY(strobe__check_range("window_left", a->window_left, -1, LARGEST_EXTENT));
        TRY(strobe__check_range("window_right", a->window_right, -1, LARGEST_EXTENT));
    }
    TRY(strobe__check_range("q_start", a->q_start, -LARGEST_START, LARGEST_START));
    return strobe__check_range("k_start", a->k_start, -LARGEST_START, LARGEST_START);
}

/* Which kind of rows a tensor of the descriptor has. */
enum side { ROWS, KEYS };

struct argument {
    const char *name;
    const strobe_tensor *tensor;
    enum side side;
    int64_t heads, inner;
    uint32_t dtypes;
    bool written, optional;
};

static strobe_status check_argument(const struct problem *p, const struct argument *g) {
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = a->varlen;
    const void *cu_seqlens = !v ? NULL : g->side == ROWS ? v->cu_seqlens_q : v->cu_seqlens_k;
    int64_t batch = a->batch, seq = g->side == ROWS ? a->seq_q : a->seq_k;
    if (cu_seqlens) { /* one batch entry, as long as all sequences */
        const int64_t total = strobe__packed_total(p, cu_seqlens, g->side == ROWS ? v->total_q : v->total_k);
        const bool none = g->side == ROWS ? p->no_rows : p->no_keys;
        const int64_t unread = a->device != STROBE_CPU && seq > 0 && !none; /* a query's: when it runs; a GPU's: never */
        batch = a->batch > 0, seq = total >= 0 ? total : unread;
    }
    if (a->paged && (g->tensor == &a->k || g->tensor == &a->v)) batch = p->paged.pages, seq = p->paged.page_size;
    const struct tensor_check check = {
        .name = g->name,
        .tensor = g->tensor,
        .extent = {batch, seq, g->heads},
        .inner = g->inner,
        .dtypes = g->dtypes,
        .written = g->written,
        .optional = g->optional,
    };
    return strobe__check_tensor(&check, p->runs);
}

/* An output in the place of an input or of another output would be read, or lost, after it is written. That tensors begin
 * at one address is what can be said for certain: views of one allocation interleave. */
static strobe_status check_apart(const strobe_attention *a, const struct argument *arguments, size_t count) {
    if (a->batch == 0 || a->seq_q == 0 || a->seq_k == 0) return STROBE_OK; /* no elements, any address */
    for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; arguments[i].written && j < count; ++j)
            if (i != j && arguments[i].tensor->data && arguments[i].tensor->data == arguments[j].tensor->data)
                return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is the memory of %s; memory of its own is accepted",
                                    arguments[i].name, arguments[j].name);
    return STROBE_OK;
}

static strobe_status check_tensors(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    const bool backward = p->operation == STROBE_BACKWARD;
    const struct argument arguments[] = {
        {"q", &a->q, ROWS, a->heads_q, a->dim, INPUT_DTYPES, p->stores, p->stores},
        {"k", &a->k, KEYS, a->heads_kv, a->dim, INPUT_DTYPES, p->stores, p->stores},
        {"v", &a->v, KEYS, a->heads_kv, a->dim_v, INPUT_DTYPES, p->stores, p->stores},
        {"out", &a->out, ROWS, a->heads_q, a->dim_v, FLOAT_DTYPES, !backward, false},
        {"lse", &a->lse, ROWS, a->heads_q, 1, LSE_DTYPES, !backward, !backward},
        {"dout", &g->dout, ROWS, a->heads_q, a->dim_v, FLOAT_DTYPES, false, false},
        {"dlse", &g->dlse, ROWS, a->heads_q, 1, LSE_DTYPES, false, true},
        {"dq", &g->dq, ROWS, a->heads_q, a->dim, FLOAT_DTYPES, true, false},
        {"dk", &g->dk, KEYS, a->heads_kv, a->dim, FLOAT_DTYPES, true, false},
        {"dv", &g->dv, KEYS, a->heads_kv, a->dim_v, FLOAT_DTYPES, true, false},
    };
    const size_t count = backward ? sizeof arguments / sizeof arguments[0] : p->stores ? 3 : 5;
    for (size_t i = 0; i < count; ++i) TRY(check_argument(p, &arguments[i]));
    return p->runs ? check_apart(a, arguments, count) : STROBE_OK;
}

strobe_status strobe__problem_validate(const struct problem *p) {
    TRY(check_extents(&p->a));
    TRY(check_choices(&p->a));
    TRY(strobe__check_features(p)); /* first: the offsets of packed tensors say how long those are */
    TRY(check_tensors(p));
    return strobe__check_accumulate(p);
}
