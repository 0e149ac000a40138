/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rotary.h: rotary position embedding, the same text for the CPU and the GPU: each operation is one rounding of fp32. An
 * angle that comes from no table is a part of a circle in 2^-64: position times frequency modulo 2^64 is exact, so that a
 * long sequence loses nothing, and its cosine and sine are polynomials in an eighth of a circle. */
#ifndef STROBE_MATH_ROTARY_H
#define STROBE_MATH_ROTARY_H

#include "math/float16.h"

/* A product and a sum that no compiler fuses. */
STROBE_INLINE float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b; /* the host's text is compiled with -ffp-contract=off */
#endif
}

STROBE_INLINE float rounded_sum(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

/* The first and the second element of a pair, turned. */
STROBE_INLINE float turned_first(float first, float second, float c, float s) {
    return rounded_sum(rounded_product(first, c), -rounded_product(second, s));
}

STROBE_INLINE float turned_second(float first, float second, float c, float s) {
    return rounded_sum(rounded_product(second, c), rounded_product(first, s));
}

struct rotary_angle {
    float cos, sin;
};

/* Of `phase` 2^-64 circles, to 2e-7. Taylor's polynomials, in an angle of at most pi / 4 around the nearest quarter. */
STROBE_INLINE struct rotary_angle rotary_angle_of(uint64_t phase) {
    const uint32_t part = (uint32_t)((phase + 0x80000000u) >> 32);
    const uint32_t quarter = (part + 0x20000000u) >> 30;
    const float x = rounded_product((float)(int32_t)(part - (quarter << 30)), 1.46291807926715969e-9f); /* 2 pi / 2^32 */
    const float square = rounded_product(x, x);
    const float s4 = rounded_sum(rounded_product(square, 2.7557319e-6f), -1.9841270e-4f);
    const float s3 = rounded_sum(rounded_product(square, s4), 8.3333333e-3f);
    const float s2 = rounded_sum(rounded_product(square, s3), -0.16666667f);
    const float sin = rounded_sum(x, rounded_product(rounded_product(x, square), s2));
    const float c4 = rounded_sum(rounded_product(square, 2.4801587e-5f), -1.3888889e-3f);
    const float c3 = rounded_sum(rounded_product(square, c4), 4.1666667e-2f);
    const float c2 = rounded_sum(rounded_product(square, c3), -0.5f);
    const float cos = rounded_sum(1, rounded_product(square, c2));
    const float sign_of_cos = quarter == 1 || quarter == 2 ? -1.0f : 1.0f, sign_of_sin = quarter >= 2 ? -1.0f : 1.0f;
    const struct rotary_angle angle = {sign_of_cos * (quarter & 1 ? sin : cos), sign_of_sin * (quarter & 1 ? cos : sin)};
    return angle;
}

#endif
