/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array_gradients.cu: rounds the sums of a gradient of one array of the user's function to the caller's dtype, and stores them
 * by its strides; a thread an element. */
#include "cuda/device/array_gradients.h"

#include "cuda/device/element.h"

extern "C" __global__ void __launch_bounds__(ARRAY_GRADIENT_THREADS) KERNEL(const __grid_constant__ struct array_gradient g) {
    const int64_t n = (int64_t)blockIdx.x * ARRAY_GRADIENT_THREADS + threadIdx.x;
    int64_t rest = n, at = 0;
    if (n >= g.count) return;
#pragma unroll
    for (int axis = 3; axis >= 0; --axis) {
        at += rest % g.extent[axis] * g.stride[axis];
        rest /= g.extent[axis];
    }
    store_any(g.to, g.dtype, at, g.sums[n]);
}
