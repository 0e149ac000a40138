/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softcap.h: online softmax of softcap tanh(x / softcap), in variants that have softcap alone. Where no score of a warp's
 * block is above 0.35 softcap, tanh is an odd polynomial whose factors are part of the exponent's (device/softcap.h). It is
 * monotonous, as tanh is: scores are compared with their row's bound before it, and those far below 0, where it is not
 * exact, have weights that do not count beside that of the row's maximum, which is not far below 0. All else, also a block
 * that the band crosses, takes the exact way. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_SOFTCAP_H
#define STROBE_CUDA_SM90_FORWARD_SOFTCAP_H

#include "cuda/device/score_terms.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/tile.h"

enum softcap_way { BELOW_BOUND, ABOVE_BOUND, EXACT };

/* Which way a warp's block of raw scores goes. A score passes its bound only if the raw score does, as |tanh y| <= |y|. */
INLINE enum softcap_way way_of_block(const struct sm90_forward_params *p, const float (&s)[KEYS / 2], const struct rows *r) {
    const float bound[2] = {r->bound[0] * p->cap.from_natural, r->bound[1] * p->cap.from_natural};
    int most[2] = {(int)0x80000000, (int)0x80000000};
#pragma unroll
    for (int v = 0; v < KEYS / 2; v += 2)
        most[v / 2 % 2] = max(max(most[v / 2 % 2], __float_as_int(s[v])), __float_as_int(s[v + 1]));
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (bound[i] != bound[i]) most[i] = (int)0x80000000; /* NO_BOUND */
    const bool above = bound[0] < 0 || bound[1] < 0 || most[0] > __float_as_int(bound[0]) ||
                       most[1] > __float_as_int(bound[1]);
    const bool far = max(most[0], most[1]) > __float_as_int(p->cap.most);
    if (!__any_sync(0xffffffffu, above || far)) return BELOW_BOUND;
    return __any_sync(0xffffffffu, far) ? EXACT : ABOVE_BOUND;
}

/* Moves m and l to the maxima of a block of raw scores; returns false, with nothing done, if some row's are far below 0. */
INLINE bool raise_capped(const struct sm90_forward_params *p, const float (&s)[KEYS / 2], struct rows *r) {
    const struct lag longest_lag = LONGEST_LAG;
    const float none[2] = {0, 0}, limit = LAGGING_MAXIMUM_LOG2 / (float)LOG2_E;
    float greatest[2];
    row_maxima(s, greatest, none);
#pragma unroll
    for (int i = 0; i < 2; ++i) greatest[i] = softcapped(greatest[i], p->softcap, p->cap.rate);
    const bool low = (r->bound[0] < 0 && greatest[0] + limit < 0) || (r->bound[1] < 0 && greatest[1] + limit < 0);
    if (__any_sync(0xffffffffu, low)) return false;
    raise_maxima(greatest, r, (float)LOG2_E, &longest_lag);
    return true;
}

INLINE void polynomial_exponentials(const struct sm90_forward_params *p, float (&s)[KEYS / 2], struct rows *r) {
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        const float square = s[v] * s[v];
        const float factor = fmaf(square, fmaf(square, p->cap.factor[2], p->cap.factor[1]), p->cap.factor[0]);
        s[v] = ex2(fmaf(s[v], factor, -r->shift[v / 2 % 2]));
        r->sum[v / 2 % 2] += s[v];
    }
}

/* S, raw dot products, becomes P in place; m and l follow. `whole`: all rows of the warp see the block. */
INLINE void capped_softmax(const struct sm90_forward_params *p, const struct tile *t, struct keys shown,
                           float (&s)[KEYS / 2], struct rows *r, bool whole, int first, int key) {
    const struct lag longest_lag = LONGEST_LAG;
    const float none[2] = {0, 0};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
    enum softcap_way way = whole ? way_of_block(p, s, r) : EXACT;
    r->grown = way == ABOVE_BOUND;
    if (way == ABOVE_BOUND && !raise_capped(p, s, r)) way = EXACT;
    if (way != EXACT) {
        polynomial_exponentials(p, s, r);
    } else {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) s[v] = softcapped(s[v], p->softcap, p->cap.rate);
        mask_band(t, shown, s, first, key);
        online_softmax(s, r, (float)LOG2_E, &longest_lag, none);
    }
}

#endif
