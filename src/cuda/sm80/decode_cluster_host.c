/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_cluster_host.c: chooses among the compiled variants of sm80/decode_cluster.cu and launches. A cluster has a K/V
 * head of a sequence, and nothing but the grid follows from the problem: there is no workspace. */
#include "cuda/device/decode.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/sm80/decode_host.h"

/* K/V heads of all sequences, and CTAs of all clusters: those that find room on the GPU at the same time, which of clusters
 * is not every multiprocessor. */
enum { MOST_ITEMS = 16, MOST_CTAS = 64 };

#define VARIANT(name, dtype, dim, n, warps, stages, cluster) void strobe__##name(struct decode_params d);
#include "cuda_decode_cluster_variants.h"
#undef VARIANT

struct cluster_variant {
    struct variant base;
    int32_t dtype, dim, threads, shared_bytes, cluster;
    void (*symbol)(struct decode_params d);
};

#define VARIANT(name, dtype_, dim_, n, warps, stages, cluster_)          \
    {.base = {#name},                                                    \
     .dtype = STROBE_##dtype_,                                           \
     .dim = dim_,                                                        \
     .threads = 32 * (warps),                                            \
     .shared_bytes = 2 * (dim_) * (16 + 2 * (stages)*8 * (n) * (warps)), \
     .cluster = cluster_,                                                \
     .symbol = strobe__##name},

static const struct cluster_variant variants[] = {
#include "cuda_decode_cluster_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define VARIANT(name, ...) " " #name
const char strobe__sm80_decode_cluster_variants[] =
#include "cuda_decode_cluster_variants.h"
    "";
#undef VARIANT

const char *strobe__sm80_decode_cluster_reject(const struct problem *p) {
    if (p->a.batch * p->a.heads_kv > MOST_ITEMS) return "batch times heads_kv is above 16; up to 16 is taken";
    return strobe__sm80_decode_reject(p);
}

/* The first that takes the columns and fits the GPU. */
bool strobe__sm80_decode_cluster_choose(struct plan *plan) {
    const strobe_attention *a = &plan->problem->a;
    const int64_t columns = a->dim > a->dim_v ? a->dim : a->dim_v;
    const int32_t shared_bytes = strobe__cuda_limits(a->device_index).shared_bytes;
    for (const struct cluster_variant *v = variants; v->symbol; ++v) {
        if (v->dtype != a->q.dtype || v->dim < columns || v->shared_bytes > shared_bytes ||
            a->batch * a->heads_kv * v->cluster > MOST_CTAS)
            continue;
        plan->variant = &v->base;
        return true;
    }
    return false;
}

size_t strobe__sm80_decode_cluster_workspace(const struct plan *plan) {
    (void)plan;
    return 0;
}

strobe_status strobe__sm80_decode_cluster(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct cluster_variant *v = (const struct cluster_variant *)plan->variant;
    const struct decode_params params = {.p = strobe__cuda_params(p)};
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status)
        status = strobe__cuda_launch((void (*)(void))v->symbol, p->a.batch * p->a.heads_kv * v->cluster, v->threads,
                                     v->shared_bytes, &params, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}
