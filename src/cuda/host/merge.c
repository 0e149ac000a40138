/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.c (cuda): the launches of device/merge.cu; see merge.h. */
#include "cuda/host/merge.h"

#include "cuda/device/merge.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

CUDA_KERNEL(merge_two);
CUDA_KERNEL(merge_few);
CUDA_KERNEL(merge_most);

static strobe_status launch(const struct merge_params *params, bool early, void *stream) {
    const int64_t rows = (int64_t)params->batch * params->seq_q * params->heads_q;
    const bool few = params->evenly || params->count <= FEW_MERGE_PARTS;
    return (early ? strobe__cuda_launch_early : strobe__cuda_launch)(
        few ? &strobe__kernel_merge_few : &strobe__kernel_merge_most, ceil_div(rows * merge_warps(params), MERGE_WARPS),
        32 * MERGE_WARPS, 0, params, stream);
}

static struct view view_of(const strobe_tensor *t) {
    return (struct view){
        .data = t->data, .batch = t->stride[0], .row = t->stride[1], .head = t->stride[2], .dtype = t->dtype};
}

/* Rows of a head in a part. */
static int64_t rows_of_part(const struct problem *p) {
    return p->varlen.cu_seqlens_q ? p->varlen.total_q : p->a.batch * p->a.seq_q;
}

size_t strobe__cuda_parts_bytes(const struct problem *p, int64_t splits) {
    const int64_t words = splits * rows_of_part(p) * p->a.heads_q * (p->a.dim_v + 2);
    return ((size_t)words * sizeof(float) + 15) / 16 * 16;
}

void strobe__cuda_into_parts(struct params *to, const struct problem *p, int64_t splits, float *workspace) {
    const strobe_attention *a = &p->a;
    const int64_t row = a->heads_q * a->dim_v;
    to->splits = (int32_t)splits;
    to->split_out = rows_of_part(p) * row, to->split_lse = rows_of_part(p) * a->heads_q;
    to->out = (struct view){.data = workspace,
                            .batch = a->seq_q * row,
                            .row = row,
                            .head = a->dim_v,
                            .dtype = STROBE_FP32,
                            .aligned = a->dim_v % 4 == 0};
    to->lse = (struct view){.data = workspace + splits * to->split_out,
                            .batch = a->seq_q * a->heads_q,
                            .row = a->heads_q,
                            .head = 1,
                            .dtype = STROBE_FP32};
}

strobe_status strobe__cuda_merge_splits(const struct params *whole, const struct params *parts, bool early, void *stream) {
    struct merge_params to = {.out = whole->out,
                              .lse = whole->lse,
                              .count = parts->splits,
                              .evenly = 1,
                              .step_out = parts->split_out,
                              .step_lse = parts->split_lse,
                              .sinks = whole->sinks,
                              .cu_q = whole->cu_q,
                              .used_q = whole->used_q,
                              .index64 = whole->index64,
                              .batch = whole->batch,
                              .seq_q = whole->seq_q,
                              .heads_q = whole->heads_kv * whole->group,
                              .dim_v = whole->dim_v};
    to.part[0].out = parts->out, to.part[0].lse = parts->lse;
    return launch(&to, early, stream);
}

/* Whether four columns, at a multiple of four, can be read or written at a time. */
static bool has_aligned_fours(const strobe_tensor *t) {
    const uintptr_t bytes = 4 * (uintptr_t)strobe__dtype_bytes(t->dtype);
    return (uintptr_t)t->data % bytes == 0 && t->stride[0] % 4 == 0 && t->stride[1] % 4 == 0 && t->stride[2] % 4 == 0;
}

static bool is_of_two(const struct merge *m) {
    const strobe_partials *p = &m->p;
    if (p->count > TWO_MERGE_PARTS || p->dim_v % 4 != 0 || !has_aligned_fours(&p->out)) return false;
    for (int64_t n = 0; n < p->count; ++n) {
        const strobe_partial part = strobe__merge_part(m, n);
        if (part.out.dtype != STROBE_FP32 || !has_aligned_fours(&part.out)) return false;
    }
    return true;
}

/* All tensors, of which there may be hundreds: what is not there could only be found by a fault of the device. */
static strobe_status check_pointers(const struct merge_params *to, int32_t index) {
    if (to->batch == 0 || to->seq_q == 0) return STROBE_OK; /* no elements, any address */
    strobe_status status = strobe__cuda_check_pointer("out", to->out.data, index);
    if (!status) status = strobe__cuda_check_pointer("lse", to->lse.data, index);
    for (int32_t n = 0; n < to->count && !status; ++n) {
        status = strobe__cuda_check_pointer("parts[].out", to->part[n].out.data, index);
        if (!status) status = strobe__cuda_check_pointer("parts[].lse", to->part[n].lse.data, index);
    }
    return status;
}

strobe_status strobe__cuda_merge(const struct merge *m, void *stream) {
    const strobe_partials *p = &m->p;
    const char *lack = strobe__cuda_lacks(CUDA_SM80, p->device_index);
    if (lack) return strobe__fail(STROBE_UNSUPPORTED, "device is %d; %s", p->device, lack);
    if (p->count > MOST_MERGE_PARTS)
        return strobe__fail(STROBE_UNSUPPORTED, "count is %lld; 1 to %d is taken on the GPU", (long long)p->count,
                            MOST_MERGE_PARTS);
    const int64_t sizes[] = {p->batch, p->seq_q, p->heads_q, p->dim_v};
    static const char *const names[] = {"batch", "seq_q", "heads_q", "dim_v"};
    for (int n = 0; n < 4; ++n)
        if (sizes[n] > INT32_MAX)
            return strobe__fail(STROBE_UNSUPPORTED, "%s is %lld; less than 2^31 is taken on the GPU", names[n],
                                (long long)sizes[n]);
    struct merge_params to = {.out = view_of(&p->out),
                              .lse = view_of(&p->lse),
                              .count = (int32_t)p->count,
                              .batch = (int32_t)p->batch,
                              .seq_q = (int32_t)p->seq_q,
                              .heads_q = (int32_t)p->heads_q,
                              .dim_v = (int32_t)p->dim_v};
    for (int64_t n = 0; n < p->count; ++n) {
        const strobe_partial part = strobe__merge_part(m, n);
        to.part[n].out = view_of(&part.out), to.part[n].lse = view_of(&part.lse);
    }
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->device_index, &visit);
    if (!status) status = check_pointers(&to, p->device_index);
    const int64_t rows = p->batch * p->seq_q * p->heads_q;
    if (!status && is_of_two(m))
        status = strobe__cuda_launch(&strobe__kernel_merge_two, ceil_div(rows, MERGE_WARPS * ROWS_OF_TWO), 32 * MERGE_WARPS,
                                     0, &to, stream);
    else if (!status)
        status = launch(&to, false, stream);
    strobe__cuda_leave(&visit);
    return status;
}
