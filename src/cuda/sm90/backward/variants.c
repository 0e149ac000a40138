/* SPDX-License-Identifier: BSD-3-Clause
 *
 * variants.c: see variants.h. */
#include "cuda/sm90/backward/variants.h"

#include "cuda/host/launch.h"
#include "cuda/sm90/backward/host.h"
#include "cuda/sm90/backward/params.h"

/* backward_pair.cu has a kernel of its own for a fixed dQ order. */
#define ORDERED_backward(name)      strobe__kernel_##name
#define ORDERED_backward_pair(name) strobe__kernel_##name##_ordered

#define VARIANT(name, dtype, gradients, dim, rows, keys, ctas, features, file, ...) \
    CUDA_KERNEL(name);                                                              \
    extern struct cuda_kernel ORDERED_##file(name);                                 \
    CUDA_KERNEL(name##_prepare);                                                    \
    CUDA_KERNEL(name##_finish);
#include "sm90_backward_variants.h"
#undef VARIANT

#define VARIANT(name, dtype_, gradients_, dim_, rows_, keys_, ctas_, features_, file, stored, parts, lag)    \
    {.base = {#name},                                                                                        \
     .dtype = STROBE_##dtype_,                                                                               \
     .gradients = STROBE_##gradients_,                                                                       \
     .features = features_,                                                                                  \
     .dim = dim_,                                                                                            \
     .rows = rows_,                                                                                          \
     .keys = keys_,                                                                                          \
     .ctas = ctas_,                                                                                          \
     .prepare = &strobe__kernel_##name##_prepare,                                                            \
     .symbol = &strobe__kernel_##name,                                                                       \
     .ordered = &ORDERED_##file(name),                                                                       \
     .finish = &strobe__kernel_##name##_finish,                                                              \
     .text = {.source = "cuda/sm90/backward/" #file ".cu",                                                   \
              .is_hopper = true,                                                                             \
              .options = {"KERNEL=strobe__score", "ELEMENT_" #dtype_, "HEAD_DIM=" #stored, "COLUMNS=" #dim_, \
                          "ROWS=" #rows_, "PARTS=" #parts, "LAG=" #lag},                                     \
              .names = {"strobe__score_prepare", "strobe__score", "strobe__score_finish"}}},
static const struct backward_variant variants[] = {
#include "sm90_backward_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define VARIANT(name, ...) " " #name
const char strobe__sm90_backward_variants[] =
#include "sm90_backward_variants.h"
    "";
#undef VARIANT

const struct backward_variant *strobe__sm90_backward_in_fp32(const struct backward_variant *of) {
    for (const struct backward_variant *v = variants; v->symbol; ++v)
        if (v->dtype == of->dtype && v->gradients == STROBE_FP32 && v->features == of->features && v->dim >= of->dim &&
            v->rows == of->rows && v->ctas == of->ctas && ceil_div(v->dim, 64) == ceil_div(of->dim, 64))
            return v;
    return NULL;
}

const struct variant *strobe__sm90_backward_variant(const struct problem *p, int32_t features) {
    const int64_t dim = p->a.dim > p->a.dim_v ? p->a.dim : p->a.dim_v;
    for (const struct backward_variant *v = variants; v->symbol; ++v)
        if (v->dtype == p->a.q.dtype && v->gradients == p->g.dq.dtype && v->features == features && v->dim >= dim &&
            (!strobe__sm90_sums_keys(p) || strobe__sm90_backward_in_fp32(v)))
            return &v->base;
    return NULL;
}
