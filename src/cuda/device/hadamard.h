/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hadamard.h: the transform of incoherent processing by lanes that hold eight neighbouring columns of a row each: far
 * butterflies by shuffles, near ones in registers, in the order of math/quantise.h. */
#ifndef STROBE_CUDA_DEVICE_HADAMARD_H
#define STROBE_CUDA_DEVICE_HADAMARD_H

#include "cuda/device/element.h"

/* The butterflies of `columns` columns, a power of two, of which lanes [0, columns / 8) of a group of up to `lanes` hold
 * eight each; and the norm. `lanes` is known at compile time. All lanes of the warp. */
INLINE void hadamard_lanes(float (&x)[8], int lane, const int lanes, int columns, float norm) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2)
        if (8 * step < columns) {
            const float sign = lane & step ? -1 : 1; /* a product by it is exact: one rounding, as of a sum */
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n] = fmaf(sign, x[n], __shfl_xor_sync(0xffffffffu, x[n], step));
        }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (!(n & step) && step < columns) {
                const float a = x[n], b = x[n + step];
                x[n] = a + b, x[n + step] = a - b;
            }
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = fmaf(x[n], norm, 0.0f); /* a zero is +0 */
}

#endif
