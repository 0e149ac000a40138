/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (cuda): the launches of the backward pass, in stream order:
 *
 *   row_terms      D and lse of every row, into the workspace
 *   sink_sums      dsinks, where asked
 *   backward_keys  dK, dV                     backward_rows  dQ, and fp32 sums of dbias, where asked
 *   dbias_round    dbias, where asked
 *
 * Memory is linear in the sequence: two fp32 a query row and head, and dbias in fp32. Every sum but those of a broadcast
 * dbias is in a fixed order; see sm80/backward_rows.cu for the price. */
#include "cuda/backward.h"

#include "cuda/device.h"
#include "cuda/launch.h"

#define VARIANT(kind, name, dtype, dim, slice, tiles, warps, stages, features) void strobe__##name(struct params p);
#include "cuda_backward_variants.h"
#undef VARIANT

void strobe__row_terms(struct params p);
void strobe__sink_sums(struct params p);
void strobe__dbias_round(struct params p);

enum side { SIDE_rows, SIDE_keys };

/* own: rows or keys that a block of threads owns; slices: its columns are cut in that many. */
struct backward_variant {
    enum side side;
    int32_t dtype, dim, features, own, slices, threads, shared_bytes;
    void (*symbol)(struct params p);
};

/* Both kernels lay out their own tile twice and stages of the other side's; keys have lse and D of rows beside them. */
#define BYTES(dtype) (STROBE_##dtype == STROBE_FP32 ? 4 : 2)
#define VARIANT(kind, name, dtype_, dim_, slice, tiles, warps, stages, features_)       \
    {.side = SIDE_##kind,                                                               \
     .dtype = STROBE_##dtype_,                                                          \
     .dim = dim_,                                                                       \
     .features = features_,                                                             \
     .own = 16 * (warps),                                                               \
     .slices = ((dim_) / (slice)) * (SIDE_##kind == SIDE_keys && (dim_) > 128 ? 2 : 1), \
     .threads = 32 * (warps),                                                           \
     .shared_bytes = 2 * (16 * (warps) + (stages)*8 * (tiles)) * (dim_)*BYTES(dtype_) + \
                     (SIDE_##kind == SIDE_keys ? (stages)*2 * 8 * (tiles)*4 : 0),       \
     .symbol = strobe__##name},

static const struct backward_variant variants[] = {
#include "cuda_backward_variants.h"
    {0},
};

static const struct backward_variant *choose(const struct problem *p, enum side side) {
    const strobe_attention *a = &p->a;
    const int64_t dim = a->dim > a->dim_v ? a->dim : a->dim_v;
    const bool features = strobe__cuda_needs_features(p);
    const struct backward_variant *best = NULL;
    for (const struct backward_variant *v = variants; v->symbol; ++v) {
        if (v->side != side || v->dtype != a->q.dtype || v->dim < dim || (features && !v->features)) continue;
        if (!best || v->dim < best->dim) best = v;
    }
    return best;
}

/* Whether an element of dbias is a sum over batch entries, heads or rows. */
static bool is_broadcast(const struct problem *p) {
    const int64_t extent[3] = {p->a.batch, p->a.heads_q, p->a.seq_q};
    for (int axis = 0; axis < 3; ++axis)
        if (p->bias.stride[axis] == 0 && extent[axis] > 1) return true;
    return false;
}

const char *strobe__cuda_backward_lacks(const struct problem *p) {
    for (enum side side = SIDE_rows; side <= SIDE_keys; ++side) {
        const struct backward_variant *v = choose(p, side);
        if (!v) return "no variant for its dtype and dim was built (STROBE_CUDA_ONLY)";
        if (v->shared_bytes > strobe__cuda_limits(p->a.device_index).shared_bytes)
            return "its tile does not fit the shared memory of this GPU";
    }
    if (p->g.dbias && (p->a.flags & STROBE_DETERMINISTIC) && is_broadcast(p))
        return "dbias is broadcast and STROBE_DETERMINISTIC is set; such sums are taken without the flag only";
    return NULL;
}

/* The fp32 sums of dbias, contiguous, with extents of 1 where the bias is broadcast. Returns elements. */
static int64_t lay_out_dbias(const struct problem *p, struct view *sum) {
    const strobe_attention *a = &p->a;
    if (!p->g.dbias) return 0;
    const int64_t *from = p->bias.stride;
    int64_t elements = a->seq_k;
    sum->row = from[2] && a->seq_q > 1 ? elements : 0;
    elements *= sum->row ? a->seq_q : 1;
    sum->head = from[1] && a->heads_q > 1 ? elements : 0;
    elements *= sum->head ? a->heads_q : 1;
    sum->batch = from[0] && a->batch > 1 ? elements : 0;
    return elements * (sum->batch ? a->batch : 1);
}

static int64_t statistics(const struct problem *p) { return p->a.batch * p->a.heads_q * p->a.seq_q; }

size_t strobe__cuda_backward_workspace(const struct problem *p) {
    struct view sum = {0};
    return (size_t)(2 * statistics(p) + lay_out_dbias(p, &sum)) * sizeof(float);
}

static strobe_status launch_main(const struct problem *p, struct params params, enum side side, void *stream) {
    const struct backward_variant *v = choose(p, side);
    params.tiles = (int32_t)ceil_div(side == SIDE_rows ? p->a.seq_q * p->group : p->a.seq_k, v->own);
    params.slices = v->slices;
    return strobe__cuda_launch((void (*)(void))v->symbol, (int64_t)params.tiles * v->slices * p->a.batch * p->a.heads_kv,
                               v->threads, v->shared_bytes, &params, stream);
}

static strobe_status launch_all(const struct problem *p, const struct params *params, int64_t dbias_elements, void *stream) {
    strobe_status status = STROBE_OK;
    if (dbias_elements)
        status = strobe__cuda_check(
            cudaMemsetAsync(params->dbias_sum.data, 0, (size_t)dbias_elements * sizeof(float), (cudaStream_t)stream),
            "cudaMemsetAsync");
    if (!status)
        status = strobe__cuda_launch((void (*)(void))strobe__row_terms, ceil_div(statistics(p), 4), 128, 0, params, stream);
    if (!status && p->g.dsinks)
        status = strobe__cuda_launch((void (*)(void))strobe__sink_sums, p->a.heads_q, 256, 0, params, stream);
    if (!status) status = launch_main(p, *params, SIDE_keys, stream);
    if (!status) status = launch_main(p, *params, SIDE_rows, stream);
    const int64_t blocks = ceil_div(dbias_elements, 256);
    if (!status && dbias_elements)
        status = strobe__cuda_launch((void (*)(void))strobe__dbias_round, blocks < 65536 ? blocks : 65536, 256, 0, params,
                                     stream);
    return status;
}

strobe_status strobe__cuda_backward(const struct problem *p, const struct execution *execution) {
    struct params params = strobe__cuda_params(p);
    float *workspace = execution->workspace;
    params.row_lse = workspace, params.row_term = workspace + statistics(p);
    const int64_t dbias_elements = lay_out_dbias(p, &params.dbias_sum);
    if (dbias_elements) params.dbias_sum.data = workspace + 2 * statistics(p);
    int before;
    strobe_status status = strobe__cuda_check_pointers(p, execution);
    if (!status) status = strobe__cuda_enter(p->a.device_index, &before);
    if (status) return status;
    status = launch_all(p, &params, dbias_elements, execution->stream);
    strobe__cuda_leave(before);
    return status;
}
