/* SPDX-License-Identifier: BSD-3-Clause
 *
 * add.c (cuda): the launch of device/add.cu. */
#include "cuda/host/add.h"

#include "core/accumulate.h"
#include "cuda/device/add.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

CUDA_KERNEL(add);

/* Blocks of a multiprocessor, of which each has many rows. */
enum { BLOCKS_AT_ONCE = 32 };

static bool has_aligned_fours(const strobe_tensor *t) {
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 4 == 0 && t->stride[1] % 4 == 0 && t->stride[2] % 4 == 0;
}

static struct added added_of(const struct problem *p, const struct addition *a) {
    const strobe_varlen *v = p->a.varlen;
    const int64_t rows = p->a.batch * a->seq * a->heads, blocks = ceil_div(rows, ADD_WARPS),
                  most = (int64_t)strobe__cuda_limits(p->a.device_index).multiprocessors * BLOCKS_AT_ONCE;
    struct added to = {.to = a->to.data, .from = a->from.data};
    to.to_batch = a->to.stride[0], to.to_row = a->to.stride[1], to.to_head = a->to.stride[2];
    to.from_batch = a->from.stride[0], to.from_row = a->from.stride[1], to.from_head = a->from.stride[2];
    if (v) to.cu = a->of_rows ? v->cu_seqlens_q : v->cu_seqlens_k, to.used = a->of_rows ? v->used_q : v->used_k;
    to.seq = (int32_t)a->seq, to.heads = (int32_t)a->heads, to.columns = (int32_t)a->columns;
    to.in_fours = a->columns % 4 == 0 && has_aligned_fours(&a->to) && has_aligned_fours(&a->from);
    to.blocks = blocks < most ? blocks : most;
    return to;
}

strobe_status strobe__cuda_add(const struct problem *p, void *stream) {
    struct addition all[MOST_ADDED];
    struct add_params params = {.batch = (int32_t)p->a.batch, .index64 = p->a.varlen && p->varlen.index_bits == 64};
    const int count = strobe__additions(p, all);
    int64_t blocks = 0;
    for (int n = 0; n < count; ++n) {
        const struct added to = added_of(p, &all[n]);
        if (to.blocks == 0) continue;
        params.gradient[params.count++] = to, blocks += to.blocks;
    }
    if (blocks == 0) return STROBE_OK;
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_launch(&strobe__kernel_add, blocks, 32 * ADD_WARPS, 0, &params, stream);
    strobe__cuda_leave(&visit);
    return status;
}
