/* SPDX-License-Identifier: BSD-3-Clause
 *
 * float16.h: conversion of fp16 (IEEE binary16) and bf16, as 16-bit patterns, to and from fp32, rounding to nearest, ties to
 * even. It is portable C: no compiler has to know either type. Signalling NaNs become quiet. */
#ifndef STROBE_MATH_FLOAT16_H
#define STROBE_MATH_FLOAT16_H

#include <stdint.h>
#include <string.h>

#include "math/inline.h"

STROBE_INLINE uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

STROBE_INLINE float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

STROBE_INLINE float bf16_to_float(uint16_t b) { return bits_float((uint32_t)b << 16); }

STROBE_INLINE uint16_t float_to_bf16(float x) {
    const uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u); /* NaN: keep it one */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

STROBE_INLINE float fp16_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) { /* a denormal: magnitude * 2^-24 is exact in fp32 */
        const float value = (float)magnitude * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    return bits_float(sign | ((magnitude << 13) + 0x38000000u));
}

STROBE_INLINE uint16_t float_to_fp16(float x) {
    const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: adding 0.5 aligns units of 2^-24 */
        const float aligned = bits_float(magnitude) + 0.5f;
        return (uint16_t)(sign | (float_bits(aligned) - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}

#endif
