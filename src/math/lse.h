/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lse.h: the identity behind online softmax, the split-KV merge and ring attention. Two partial results over disjoint keys,
 * (out1, lse1) and (out2, lse2), merge to  lse = log(e^lse1 + e^lse2),  out = e^(lse1 - lse) out1 + e^(lse2 - lse) out2. (0,
 * -inf), the result of no keys, changes nothing in a merge. Two of them merge to (0, -inf), where the formula as it stands
 * gives NaN. */
#ifndef STROBE_MATH_LSE_H
#define STROBE_MATH_LSE_H

#include <math.h>

#include "math/inline.h"

STROBE_INLINE float log_add_exp(float a, float b) {
    const float high = a > b ? a : b, low = a > b ? b : a;
    if (low == -INFINITY || high == INFINITY) return isnan(a) || isnan(b) ? a + b : high;
    return high + log1pf(expf(low - high));
}

/* The rescale of a part in a merge, e^(lse of the part - lse of the whole); 0 for an empty part, in an empty whole too. */
STROBE_INLINE float lse_rescale(float part, float whole) { return part == -INFINITY ? 0.0f : expf(part - whole); }

#endif
