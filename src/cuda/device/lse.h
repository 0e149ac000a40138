/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lse.h: the end of a row of a forward: the logarithm of its sum of exponentials, and the division by the sum. Weights are
 * 2^(s c - shift), where c is the scale times log2 e, rounded to fp32. So lse = shift scale / c + ln l. The rounding of that
 * factor, ln 2 or nearly, would be the largest error of a large lse, so the factor comes in two floats, and lse is rounded
 * once. */
#ifndef STROBE_CUDA_DEVICE_LSE_H
#define STROBE_CUDA_DEVICE_LSE_H

#include "cuda/device/element.h"

/* How a row ends: its lse, and what its sum of weights times V is multiplied by. rest: what lse lacks by its rounding, where
 * there is no sink; parts of a row that are merged by their lse need it, where lse is large. */
struct row_end {
    float lse, factor, rest;
};

/* l: the row's sum of weights; 0 for a row that sees no key, whose result is 0. rest: what is left of the natural logarithm
 * that weights are relative to, where a shift that is rounded does not have all of it. sink: a logit, NULL for none. A
 * sink's weight beside the others' comes from its distance to their shift and not to their lse, whose rounding a large lse
 * makes large. */
INLINE struct row_end end_of_row(float shift, float rest, struct two_floats to_natural, float l, const float *sink) {
    const float above = sink ? fmaf(-shift, to_natural.low, fmaf(-shift, to_natural.high, *sink)) - rest : -INFINITY;
    struct row_end end = {sink ? *sink : -INFINITY, 0, 0};
    if (l != 0 && above > 0) { /* the sink is the largest: its weight is 1 */
        const float keys = expf(-above), whole = fmaf(l, keys, 1);
        end.lse = *sink + logf(whole), end.factor = keys / whole;
    } else if (l != 0) {
        const float whole = l + expf(above), small = fmaf(shift, to_natural.low, logf(whole) + rest);
        end.lse = fmaf(shift, to_natural.high, small), end.factor = 1 / whole;
        end.rest = fmaf(shift, to_natural.high, -end.lse) + small;
    }
    return end;
}

#endif
