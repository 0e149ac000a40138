/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stored_bytes.h: four numbers over a scale as four bytes, as quantised() of math/quantise.h stores each one. */
#ifndef STROBE_CUDA_DEVICE_STORED_BYTES_H
#define STROBE_CUDA_DEVICE_STORED_BYTES_H

#include "cuda/device/element.h"
#include "math/quantise.h"

/* e4m3, of numbers that are over a scale already, of which none is an infinity. */
INLINE uint32_t four_levels_e4m3(const float (&level)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return cvt_e4m3x4(level[0], level[1], level[2], level[3]);
#else
    return float_to_e4m3(level[0]) | float_to_e4m3(level[1]) << 8 | float_to_e4m3(level[2]) << 16 |
           (uint32_t)float_to_e4m3(level[3]) << 24;
#endif
}

/* e4m3, of numbers of which none is an infinity. */
INLINE uint32_t four_e4m3(const float *x, float inverse) {
    const float level[4] = {rounded_product(x[0], inverse), rounded_product(x[1], inverse), rounded_product(x[2], inverse),
                            rounded_product(x[3], inverse)};
    return four_levels_e4m3(level);
}

/* The lowest bytes of four numbers of which 1.5 * 2^23 was added to integers. */
INLINE uint32_t four_lowest(const uint32_t (&level)[4]) {
    return __byte_perm(__byte_perm(level[0], level[1], 0x0040), __byte_perm(level[2], level[3], 0x0040), 0x5410);
}

/* int8, of numbers that are over a scale already, the one made for them: none is beyond 127 by more than a few roundings,
 * which the sum that rounds to an integer forgets. */
INLINE uint32_t four_levels_int8(const float (&level)[4]) {
    uint32_t sum[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) sum[n] = __float_as_uint(rounded_sum(level[n], 12582912.0f));
    return four_lowest(sum);
}

/* int8, of numbers that the scale was made for. */
INLINE uint32_t four_int8(const float *x, float inverse) {
    const float level[4] = {rounded_product(x[0], inverse), rounded_product(x[1], inverse), rounded_product(x[2], inverse),
                            rounded_product(x[3], inverse)};
    return four_levels_int8(level);
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
