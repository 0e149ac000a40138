/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softcap.h (backward): P = 2^(softcap tanh(x / softcap) log2 e - lse) from raw dot products x, in variants that have
 * softcap alone. Where all scores of a warp's part of a block are below 0.35 softcap, tanh is an odd polynomial whose
 * factors are part of the exponent's (device/softcap.h). */
#ifndef STROBE_CUDA_SM90_BACKWARD_SOFTCAP_H
#define STROBE_CUDA_SM90_BACKWARD_SOFTCAP_H

#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/backward/score_terms.h"

/* lse: negated, from the thread's first row on. */
INLINE void capped_exponentials(const struct sm90_backward_params *p, float (&s)[ROWS / 2], const float *lse, int part) {
    int most = 0;
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) wgmma_keep(s[v]);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; v += 2)
        most = max(max(most, __float_as_int(s[v] * s[v])), __float_as_int(s[v + 1] * s[v + 1]));
    if (__any_sync(0xffffffffu, most > __float_as_int(p->cap.most * p->cap.most))) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v)
            s[v] = ex2(fmaf(softcapped(s[v], p->softcap, p->cap.rate), p->exponent, lse[ROW_OF(v)]));
    } else {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) {
            const float square = s[v] * s[v];
            const float factor = fmaf(square, fmaf(square, p->cap.factor[2], p->cap.factor[1]), p->cap.factor[0]);
            s[v] = ex2(fmaf(s[v], factor, lse[ROW_OF(v)]));
        }
    }
}

#endif
