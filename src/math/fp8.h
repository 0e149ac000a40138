/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fp8.h: conversion of e4m3 (OCP's FP8 with four exponent bits) to and from fp32. A byte is sign, exponent, three bits of
 * fraction; the bias is 7. There is no infinity: magnitude 0x7f is the only NaN, and the largest number is 448. Rounding is
 * to nearest, ties to even, and saturates, as the GPU's cvt.rn.satfinite does: what is above 448, infinity too, becomes 448,
 * and any NaN becomes 0x7f. It is portable C. */
#ifndef STROBE_MATH_FP8_H
#define STROBE_MATH_FP8_H

#include "math/float16.h"

#define E4M3_LARGEST 448.0f
#define E4M3_NAN     0x7f

STROBE_INLINE float e4m3_to_float(uint8_t byte) {
    const uint32_t sign = (uint32_t)(byte & 0x80u) << 24, magnitude = byte & 0x7fu;
    if (magnitude == E4M3_NAN) return bits_float(sign | 0x7fc00000u);
    if (magnitude < 8) { /* a denormal: magnitude * 2^-9 is exact in fp32 */
        const float value = (float)magnitude * 0x1p-9f;
        return sign ? -value : value;
    }
    return bits_float(sign | ((magnitude << 20) + 0x3c000000u));
}

STROBE_INLINE uint8_t float_to_e4m3(float x) {
    const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    if (magnitude > 0x7f800000u) return E4M3_NAN;
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and above */
    if (magnitude < 0x3c800000u) {                                /* below 2^-6: adding 2^14 aligns units of 2^-9 */
        const float aligned = bits_float(magnitude) + 16384.0f;
        return (uint8_t)(sign | (float_bits(aligned) - 0x46800000u));
    }
    return (uint8_t)(sign | (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20);
}

#endif
