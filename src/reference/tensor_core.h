/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor_core.h: a dot product summed as the tensor cores of a GPU sum it. They do not round: the sum so far and the
 * products of a step are shifted to the exponent of the largest, cut off below a fixed number of bits, added exactly, and
 * the result is cut off to fp32. So an error of many steps does not average out, as that of rounded sums does. The figures
 * are Hopper's (bit for bit those of mma.sync on an H200, docs/numerics.md); earlier ones keep a bit less in shorter steps.
 * The model is Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021. */
#ifndef STROBE_REFERENCE_TENSOR_CORE_H
#define STROBE_REFERENCE_TENSOR_CORE_H

#include <math.h>
#include <stdint.h>

enum { TENSOR_CORE_STEP = 16, TENSOR_CORE_BITS = 25 };

/* The exponent of a term, below that of any number for 0 and for what is not finite. */
static inline int tensor_core_exponent(float a, float b) {
    return a == 0 || b == 0 || !isfinite(a) || !isfinite(b) ? INT32_MIN : ilogbf(a) + ilogbf(b);
}

/* sum + a[0] b[0] + ... + a[n - 1] b[n - 1], in one step. Factors have at most 12 significant bits. */
static inline float tensor_core_step(float sum, const float *a, const float *b, int64_t n) {
    int most = tensor_core_exponent(sum, 1);
    double whole = sum, cut = 0;
    for (int64_t x = 0; x < n; ++x) {
        const int own = tensor_core_exponent(a[x], b[x]);
        if (own > most) most = own;
        whole += (double)a[x] * b[x];
    }
    if (most == INT32_MIN || !isfinite(whole)) return (float)whole;
    cut = trunc(ldexp(sum, TENSOR_CORE_BITS - most));
    for (int64_t x = 0; x < n; ++x) cut += trunc(ldexp((double)a[x] * b[x], TENSOR_CORE_BITS - most));
    cut = ldexp(cut, most - TENSOR_CORE_BITS);
    const float rounded = (float)cut;
    return fabs((double)rounded) > fabs(cut) ? nextafterf(rounded, 0) : rounded;
}

#endif
