/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softcap.h (device): softcap in variants that have it alone. Up to 0.35 softcap, softcap tanh(x scale / softcap) is x times
 * an even polynomial of the raw dot product x: relative error 3.6e-6, the least that one of its degree with tanh'(0) = 1 can
 * have. */
#ifndef STROBE_CUDA_DEVICE_SOFTCAP_H
#define STROBE_CUDA_DEVICE_SOFTCAP_H

#include "math/exp2.h"

/* rate: 2 log2(e) scale / softcap; most: the largest raw score of the polynomial; from_natural: 1 / scale; factor: the
 * polynomial's coefficients, times the exponent's factor. */
struct softcap_terms {
    float rate, most, from_natural, factor[3];
};

static inline struct softcap_terms softcap_terms_of(double softcap, double scale) {
    const double rate = scale / softcap, square = rate * rate, factor = scale * LOG2_E;
    const struct softcap_terms terms = {(float)(2 * LOG2_E * rate),
                                        (float)(0.35 / rate),
                                        (float)(1 / scale),
                                        {(float)factor, (float)(-0.33300790062527597 * square * factor),
                                         (float)(0.12460566068042342 * square * square * factor)}};
    return terms;
}

#endif
