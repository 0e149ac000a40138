/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.c: checks the arguments of strobe_merge and hands them to the backend of the device. */
#include "core/validate.h"

#include "core/kernel.h"

static strobe_status read_partials(struct merge *m, const strobe_partials *partials) {
    TRY(strobe__struct_copy(&m->p, sizeof m->p, partials, "partials"));
    if (m->p.parallel) {
        TRY(strobe__struct_copy(&m->parallel, sizeof m->parallel, m->p.parallel, "parallel"));
        TRY(strobe__check_parallel(&m->parallel));
        m->p.parallel = &m->parallel;
    }
    if (m->p.dtype == STROBE_DTYPE_DEFAULT) m->p.dtype = STROBE_FP32;
    return STROBE_OK;
}

static strobe_status check_extents(const strobe_partials *p) {
    TRY(strobe__check_range("batch", p->batch, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("seq_q", p->seq_q, 0, LARGEST_EXTENT));
    TRY(strobe__check_range("heads_q", p->heads_q, 1, INT32_MAX));
    TRY(strobe__check_range("dim_v", p->dim_v, 1, LARGEST_EXTENT));
    TRY(strobe__check_range("count", p->count, 1, INT32_MAX));
    TRY(strobe__check_range("device", p->device, STROBE_CPU, STROBE_CUDA));
    TRY(strobe__check_range("device_index", p->device_index, 0, p->device == STROBE_CPU ? 0 : INT32_MAX));
    return strobe__check_range("reserved", p->reserved, 0, 0);
}

static void default_pair(strobe_partial *pair, const strobe_partials *p) {
    if (pair->out.dtype == STROBE_DTYPE_DEFAULT) pair->out.dtype = p->dtype;
    if (pair->lse.dtype == STROBE_DTYPE_DEFAULT) pair->lse.dtype = STROBE_FP32;
    const int64_t row = strobe__product(p->heads_q, p->dim_v);
    strobe__default_stride(pair->out.stride, strobe__product(p->seq_q, row), row, p->dim_v);
    strobe__default_stride(pair->lse.stride, strobe__product(p->heads_q, p->seq_q), 1, p->seq_q);
}

static strobe_status check_pair(const strobe_partial *pair, const strobe_partials *p, const char *out_name,
                                const char *lse_name, bool written) {
    const struct tensor_check out = {
        .name = out_name,
        .tensor = &pair->out,
        .extent = {p->batch, p->seq_q, p->heads_q},
        .inner = p->dim_v,
        .dtypes = DTYPE_BIT(STROBE_FP32) | DTYPE_BIT(STROBE_FP16) | DTYPE_BIT(STROBE_BF16),
        .written = written,
    };
    const struct tensor_check lse = {
        .name = lse_name,
        .tensor = &pair->lse,
        .extent = {p->batch, p->seq_q, p->heads_q},
        .inner = 1,
        .dtypes = DTYPE_BIT(STROBE_FP32),
        .written = written,
        .optional = written,
    };
    TRY(strobe__check_tensor(&out, true));
    return strobe__check_tensor(&lse, true);
}

/* Whether elements lie at the same offsets from their first. */
static bool lie_alike(const strobe_tensor *x, const strobe_tensor *y, const strobe_partials *p) {
    const int64_t extent[3] = {p->batch, p->seq_q, p->heads_q};
    for (int axis = 0; axis < 3; ++axis)
        if (extent[axis] > 1 && x->stride[axis] != y->stride[axis]) return false;
    return x->dtype == y->dtype;
}

static strobe_status check_memory(const strobe_tensor *written, const char *name, const strobe_tensor *same,
                                  const char *same_name, const strobe_tensor *other, const char *other_name,
                                  const strobe_partials *p) {
    if (!written->data) return STROBE_OK;
    if (written->data == other->data)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s is the memory of %s; memory of its own is accepted", name,
                            other_name);
    if (same && written->data == same->data && !lie_alike(written, same, p))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "%s is the memory of %s with other strides or another dtype; the same, or memory of its own, is "
                            "accepted",
                            name, same_name);
    return STROBE_OK;
}

/* A row is read before it is written, so a result may take the place of a part, but not in another layout. */
static strobe_status check_memory_apart(const strobe_partial *pair, const strobe_partial *result, const strobe_partials *p) {
    if (p->batch == 0 || p->seq_q == 0) return STROBE_OK;
    TRY(check_memory(&result->out, "out", &pair->out, "parts[].out", &pair->lse, "parts[].lse", p));
    return check_memory(&result->lse, "lse", &pair->lse, "parts[].lse", &pair->out, "parts[].out", p);
}

strobe_partial strobe__merge_part(const struct merge *m, int64_t index) {
    strobe_partial part = m->p.parts[index];
    default_pair(&part, &m->p);
    return part;
}

strobe_status strobe_merge(const strobe_partials *partials, void *stream) {
    if (!partials) return strobe__fail(STROBE_INVALID_ARGUMENT, "partials is NULL; a descriptor is accepted");
    struct merge m = {0};
    TRY(read_partials(&m, partials));
    TRY(check_extents(&m.p));
    strobe_partial result = {m.p.out, m.p.lse};
    default_pair(&result, &m.p);
    TRY(check_pair(&result, &m.p, "out", "lse", true));
    if (m.p.batch && m.p.seq_q) TRY(check_memory(&result.lse, "lse", NULL, NULL, &result.out, "out", &m.p));
    m.p.out = result.out, m.p.lse = result.lse;
    if (!m.p.parts) return strobe__fail(STROBE_INVALID_ARGUMENT, "parts is NULL; count partial results are accepted");
    for (int64_t i = 0; i < m.p.count; ++i) {
        const strobe_partial part = strobe__merge_part(&m, i);
        TRY(check_pair(&part, &m.p, "parts[].out", "parts[].lse", false));
        TRY(check_memory_apart(&part, &result, &m.p));
    }
    if (m.p.device == STROBE_CPU && stream)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);

    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b)
        if (backend->merge && (int32_t)backend->device == m.p.device) return backend->merge(&m, stream);
    return strobe__fail(STROBE_UNSUPPORTED,
                        "device is %d (CUDA), for which this build has no kernel; 0 (the CPU) is accepted", m.p.device);
}
