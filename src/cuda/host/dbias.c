/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dbias.c (cuda): see dbias.h. */
#include "cuda/host/dbias.h"

#include "cuda/host/device.h"

#define VARIANT(name, dtype) CUDA_KERNEL(name);
#include "cuda_backward_dbias_variants.h"
#undef VARIANT

CUDA_KERNEL(dbias_round);

struct dbias_variant {
    struct variant base;
    int32_t dtype;
    struct cuda_kernel *symbol;
};

static const struct dbias_variant variants[] = {
#define VARIANT(name_, dtype_) {.base = {#name_}, .dtype = STROBE_##dtype_, .symbol = &strobe__kernel_##name_},
#include "cuda_backward_dbias_variants.h"
#undef VARIANT
    {.symbol = NULL},
};

bool strobe__cuda_dbias_choose(struct plan *plan) {
    if (!strobe__cuda_dbias_is_ordered(plan->problem)) return true;
    for (const struct dbias_variant *v = variants; v->symbol && !plan->more[DBIAS_PASS]; ++v)
        if (v->dtype == plan->problem->a.q.dtype) plan->more[DBIAS_PASS] = &v->base;
    return plan->more[DBIAS_PASS] != NULL;
}

bool strobe__cuda_dbias_is_ordered(const struct problem *p) {
    const int64_t whole[3] = {p->a.batch, p->a.heads_q, p->a.seq_q};
    int64_t extent[3];
    if (!p->g.dbias || !(p->a.flags & STROBE_DETERMINISTIC)) return false;
    if (whole[0] == 0 || whole[2] == 0) return false; /* sums of nothing */
    strobe__dbias_extent(p, extent);
    for (int axis = 0; axis < 3; ++axis)
        if (extent[axis] < whole[axis]) return true;
    return false;
}

int64_t strobe__cuda_dbias_sums(const struct problem *p, struct view *sums) {
    if (!p->g.dbias || strobe__cuda_dbias_is_ordered(p)) return 0;
    int64_t extent[3], elements = p->a.seq_k;
    strobe__dbias_extent(p, extent);
    sums->row = extent[2] > 1 ? elements : 0, elements *= extent[2];
    sums->head = extent[1] > 1 ? elements : 0, elements *= extent[1];
    sums->batch = extent[0] > 1 ? elements : 0;
    return elements * extent[0];
}

strobe_status strobe__cuda_dbias_begin(const struct problem *p, const struct params *params, void *stream) {
    struct view sums;
    const int64_t elements = strobe__cuda_dbias_sums(p, &sums);
    if (elements == 0) return STROBE_OK;
    return strobe__cuda_check(
        cudaMemsetAsync(params->dbias_sum.data, 0, (size_t)elements * sizeof(float), (cudaStream_t)stream),
        "cudaMemsetAsync");
}

static strobe_status launch_ordered(const struct plan *plan, struct params params, void *stream) {
    enum { TILE = 64, COLUMNS = 64, THREADS = 128 };
    const struct dbias_variant *variant = (const struct dbias_variant *)plan->more[DBIAS_PASS];
    const struct problem *p = plan->problem;
    const int64_t *stride = p->bias.stride; /* as the kernel asks */
    const int64_t batch = stride[0] ? p->a.batch : 1, heads = stride[1] ? p->a.heads_q : 1;
    const int64_t rows = stride[2] ? ceil_div(p->a.seq_q, TILE) : 1;
    if (!params.visible.of_function) params.visible = (struct visible){.mask_states = NULL}; /* masks it reads itself */
    params.kv_group = params.group, params.group = 1, params.heads_kv = (int32_t)p->a.heads_q;
    params.tiles = (int32_t)ceil_div(p->a.seq_k, TILE);
    params.slices = (int32_t)rows, params.splits = (int32_t)heads;
    return strobe__cuda_launch(variant->symbol, params.tiles * rows * heads * batch, THREADS,
                               4 * TILE * COLUMNS * (int32_t)strobe__dtype_bytes(p->a.q.dtype), &params, stream);
}

strobe_status strobe__cuda_dbias_end(const struct plan *plan, const struct params *params, void *stream) {
    struct view sums;
    if (plan->more[DBIAS_PASS]) return launch_ordered(plan, *params, stream);
    const int64_t blocks = ceil_div(strobe__cuda_dbias_sums(plan->problem, &sums), 256);
    return strobe__cuda_launch(&strobe__kernel_dbias_round, blocks < 65536 ? blocks : 65536, 256, 0, params, stream);
}
