/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stored_bytes.h: four numbers over a scale as four bytes, as quantised() of math/quantise.h stores each one. */
#ifndef STROBE_CUDA_DEVICE_STORED_BYTES_H
#define STROBE_CUDA_DEVICE_STORED_BYTES_H

#include "cuda/device/element.h"
#include "math/quantise.h"

/* e4m3, of numbers of which none is an infinity. */
INLINE uint32_t four_e4m3(const float *x, float inverse) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return cvt_e4m3x4(rounded_product(x[0], inverse), rounded_product(x[1], inverse), rounded_product(x[2], inverse),
                      rounded_product(x[3], inverse));
#else
    return float_to_e4m3(rounded_product(x[0], inverse)) | float_to_e4m3(rounded_product(x[1], inverse)) << 8 |
           float_to_e4m3(rounded_product(x[2], inverse)) << 16 |
           (uint32_t)float_to_e4m3(rounded_product(x[3], inverse)) << 24;
#endif
}

/* The lowest bytes of four numbers of which 1.5 * 2^23 was added to integers. */
INLINE uint32_t four_lowest(const uint32_t (&level)[4]) {
    return __byte_perm(__byte_perm(level[0], level[1], 0x0040), __byte_perm(level[2], level[3], 0x0040), 0x5410);
}

/* int8, of numbers that the scale was made for: no level is beyond 127 by more than a few roundings, which the sum that
 * rounds to an integer forgets. */
INLINE uint32_t four_int8(const float *x, float inverse) {
    uint32_t level[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) level[n] = __float_as_uint(rounded_sum(rounded_product(x[n], inverse), 12582912.0f));
    return four_lowest(level);
}

/* int8, of any numbers: a NaN goes downwards. */
INLINE uint32_t four_int8_limited(const float *x, float inverse) {
    uint32_t level[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
        level[n] = __float_as_uint(rounded_sum(fminf(fmaxf(rounded_product(x[n], inverse), -127), 127), 12582912.0f));
    return four_lowest(level);
}

#endif
