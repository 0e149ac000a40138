/* SPDX-License-Identifier: BSD-3-Clause
 *
 * widen.h: stored numbers of a cache, int8, e4m3 and beside fp32 the 16-bit types, become elements, exactly. Of 16-bit
 * elements two are made at a time: bytes are moved into the bits of a number of the type, and one fma takes out what that
 * number is too large by, or multiplies it by the power of two between the two types' exponents. */
#ifndef STROBE_CUDA_DEVICE_WIDEN_H
#define STROBE_CUDA_DEVICE_WIDEN_H

#include "cuda/device/element.h"
#include "cuda/ptx/fma_x2.h"

/* Bytes of a stored number that is widened. */
INLINE int stored_bytes(int dtype) {
#if defined(ELEMENT_FP32)
    return dtype == CUDA_INT8 || dtype == CUDA_FP8 ? 1 : 2;
#else
    return 1;
#endif
}

/* Bit 7 of each of four e4m3 bytes that is a NaN, 0x7f or 0xff. */
INLINE uint32_t e4m3_nans(uint32_t four) { return ((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }

/* Number n of the four bytes. */
INLINE float widen_byte(uint32_t four, int n, int dtype) {
    const uint32_t byte = four >> (8 * n) & 0xff;
    if (dtype == CUDA_INT8) return (float)(int8_t)byte;
    if ((byte & 0x7f) == 0x7f) return NAN;
    return __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
}

#if defined(ELEMENT_FP32)
/* 16 stored bytes to 16 (8) elements at to[chunk of 4]. */
INLINE void widen_chunk(uint4 stored, int dtype, float4 (&to)[4]) {
    const uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const uint32_t w = words[n], v = words[n % 2 * 2 + 1], u = words[n % 2 * 2];
        if (dtype == CUDA_BF16)
            to[n] = make_float4(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u), __uint_as_float(v << 16),
                                __uint_as_float(v & 0xffff0000u));
        else if (dtype == CUDA_FP16)
            to[n] = make_float4(f16_to_float((uint16_t)u), f16_to_float((uint16_t)(u >> 16)), f16_to_float((uint16_t)v),
                                f16_to_float((uint16_t)(v >> 16)));
        else
            to[n] = make_float4(widen_byte(w, 0, dtype), widen_byte(w, 1, dtype), widen_byte(w, 2, dtype),
                                widen_byte(w, 3, dtype));
    }
}
#else
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define E4M3_BY_INSTRUCTION 1 /* to fp16 */
#else
#define E4M3_BY_INSTRUCTION 0
#endif

#if defined(ELEMENT_FP16)
#define FMA_X2      fma_f16x2
#define E4M3_SHIFT  1           /* from a byte in the upper half of 16 bits to the exponent's lowest bits */
#define E4M3_FACTOR 0x5c005c00u /* 2^8: the exponents' bias is 15, and 7 */
#else
#define FMA_X2      fma_bf16x2
#define E4M3_SHIFT  4
#define E4M3_FACTOR 0x7b807b80u /* 2^120: 127, and 7 */
#endif

/* Two int8, in the lower halves of 16 bits each, whose upper halves may hold anything. */
INLINE uint32_t widen_int8(uint32_t halves) {
#if defined(ELEMENT_FP16)
    /* byte + 128 is the fraction of 1024 + that */
    return fma_f16x2((halves & 0x00ff00ffu) ^ 0x64806480u, 0x3c003c00u, 0xe480e480u);
#else
    /* 128 + the lower seven bits, less 128 or, of a negative one, 256 */
    return fma_bf16x2((halves & 0x00800080u) | 0x43004300u, 0xbf80bf80u, (halves & 0x007f007fu) | 0x43004300u);
#endif
}

/* Two e4m3, in the upper halves of 16 bits each, none of them a NaN; the lower halves may hold anything. */
INLINE uint32_t widen_e4m3(uint32_t halves) {
    return FMA_X2((halves & 0x80008000u) | (halves & 0x7f007f00u) >> E4M3_SHIFT, E4M3_FACTOR, 0x80008000u);
}

/* The same of any two. */
INLINE uint32_t widen_e4m3_or_nan(uint32_t halves) {
    const uint32_t nans = e4m3_nans(halves) & 0x80008000u;
    return widen_e4m3(halves) | (nans >> 15) * 0x7fffu;
}

/* 16 stored bytes to 16 elements. */
INLINE void widen_chunk(uint4 stored, int dtype, uint4 (&to)[2]) {
    const uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
    uint32_t pairs[8];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        pairs[2 * n] = dtype == CUDA_INT8 ? widen_int8(__byte_perm(words[n], 0, 0x4140))
                                          : widen_e4m3(__byte_perm(words[n], 0, 0x1404));
        pairs[2 * n + 1] = dtype == CUDA_INT8 ? widen_int8(__byte_perm(words[n], 0, 0x4342))
                                              : widen_e4m3(__byte_perm(words[n], 0, 0x3424));
    }
    if (dtype != CUDA_INT8 && (e4m3_nans(stored.x) | e4m3_nans(stored.y) | e4m3_nans(stored.z) | e4m3_nans(stored.w)))
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const uint32_t nans = e4m3_nans(words[n]);
            pairs[2 * n] |= (nans >> 7 & 1) * 0x7fffu | (nans >> 15 & 1) * 0x7fff0000u;
            pairs[2 * n + 1] |= (nans >> 23 & 1) * 0x7fffu | (nans >> 31) * 0x7fff0000u;
        }
    to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}
#endif

#endif
