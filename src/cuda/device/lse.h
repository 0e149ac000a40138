/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lse.h: the logarithm of a row's sum of exponentials at the end of a forward. Weights are 2^(s c - shift), where c is the
 * scale times log2 e, rounded to fp32. So lse = shift scale / c + ln l. The rounding of that factor, ln 2 or nearly, would
 * be the largest error of a large lse, so the factor comes in two floats, and lse is rounded once. */
#ifndef STROBE_CUDA_DEVICE_LSE_H
#define STROBE_CUDA_DEVICE_LSE_H

#include "cuda/device/element.h"

/* l: the row's sum; 0 for a row that sees no key. */
INLINE float lse_of_row(float shift, struct two_floats to_natural, float l) {
    return l == 0 ? -INFINITY : fmaf(shift, to_natural.high, fmaf(shift, to_natural.low, logf(l)));
}

#endif
