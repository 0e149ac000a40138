/* SPDX-License-Identifier: BSD-3-Clause
 *
 * finish.h: the end of a tile of the forward. lse = m + ln l, to which the head's sink is added where there is one, is
 * written. The factor by which O has to be multiplied, 1 / l without a sink, is returned. A row that sees no key has l = 0;
 * it gets 0 and lse -inf, or with a sink 0 and the sink. */
#ifndef STROBE_CPU_FINISH_H
#define STROBE_CPU_FINISH_H

#include <math.h>

#include "cpu/vector/scores.h"

static inline void finish_rows(const struct tile_rows *t, const float *m, const float *l, float *factor) {
    const struct problem *p = t->p;
    const double scale = exact_score_scale(p);
    for (int64_t r = 0; r < t->n; ++r) { /* without a branch, so that compilers vectorise it */
        const float inverse = 1 / l[r];
        factor[r] = l[r] == 0 ? 0 : inverse;
    }
    if (!p->a.sinks && !p->a.lse.data) return;
    for (int64_t r = 0; r < t->n; ++r) {
        const double keys_lse = l[r] == 0 ? -(double)INFINITY : (double)m[r] * scale + log((double)l[r]);
        double lse = keys_lse;
        if (p->a.sinks) {
            const double sink = element_load(p->sinks.data, p->sinks.dtype, packed_head(t, r));
            const double high = keys_lse <= sink ? sink : keys_lse; /* a NaN stays */
            lse = high == -(double)INFINITY ? high : high + log(exp(keys_lse - high) + exp(sink - high));
            factor[r] *= l[r] == 0 ? 0 : (float)exp(keys_lse - lse);
        }
        if (p->a.lse.data) element_store(p->a.lse.data, p->a.lse.dtype, tile_offset(t, &p->a.lse, r), lse);
    }
}

#endif
