/* SPDX-License-Identifier: BSD-3-Clause
 *
 * refusals.h: the sentences that several kernels' reject() share. */
#ifndef STROBE_CORE_REFUSALS_H
#define STROBE_CORE_REFUSALS_H

#include "core/problem.h"

/* Features of the header that are laid down for what is coming, and that nothing computes yet. */
static inline const char *strobe__refuse_what_is_nowhere(const struct problem *p) {
    const strobe_attention *a = &p->a;
    if (a->paged) return "paged K and V are given; contiguous or varlen K and V are taken";
    if (a->q.dtype == STROBE_FP8_E4M3 || a->q.dtype == STROBE_INT8)
        return "q is fp8 or int8; fp32, fp16, bf16 and fp64 are taken";
    if (a->k.dtype == STROBE_FP8_E4M3 || a->v.dtype == STROBE_FP8_E4M3)
        return "k or v is fp8; fp32, fp16, bf16, fp64 and int8 are taken";
    if (a->scales && p->scales.q) return "scales of q are given; scales of k and v are taken";
    return NULL;
}

/* The same, for kernels whose K and V may be of another dtype than q, and scaled. */
static inline const char *strobe__refuse_cache(const struct problem *p) {
    if (p->a.k.dtype != p->a.v.dtype) return "k and v differ in dtype; one dtype for both is taken";
    return strobe__refuse_what_is_nowhere(p);
}

/* And for those that take K and V in the dtype of q alone, unscaled. */
static inline const char *strobe__refuse_what_is_to_come(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const char *reason = strobe__refuse_what_is_nowhere(p);
    if (reason) return reason;
    if (a->scales) return "scales of quantised tensors are given; unscaled fp32, fp16, bf16 and fp64 are taken";
    if (a->k.dtype != a->q.dtype || a->v.dtype != a->q.dtype)
        return "q, k and v differ in dtype; one dtype for all is taken";
    return NULL;
}

static inline const char *strobe__refuse_fp64(const struct problem *p) {
    return p->a.q.dtype == STROBE_FP64 ? "q is fp64; fp32, fp16 and bf16 are taken" : NULL;
}

static inline const char *strobe__refuse_split_keys(const struct problem *p) {
    return p->tuning.split_keys ? "tuning.split_keys is set; no split over keys is offered" : NULL;
}

/* The last two, for kernels that do not split keys either. */
static inline const char *strobe__refuse_what_no_kernel_has(const struct problem *p) {
    const char *reason = strobe__refuse_split_keys(p);
    return reason ? reason : strobe__refuse_what_is_to_come(p);
}

#endif
