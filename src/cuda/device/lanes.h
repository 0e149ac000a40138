/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lanes.h: sums over the lanes of a warp. Every lane gets the sum, in the same order of additions in every call. */
#ifndef STROBE_CUDA_DEVICE_LANES_H
#define STROBE_CUDA_DEVICE_LANES_H

#include "cuda/device/element.h"

/* Over `lanes` neighbours, a power of two. */
INLINE float lanes_sum(float x, int lanes) {
#pragma unroll
    for (int d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

INLINE float warp_sum(float x) { return lanes_sum(x, 32); }

#endif
