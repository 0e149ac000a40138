/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_scales.cu: the scales of strobe_quantise where they take two passes: cleared before magnitudes are gathered in
 * them, and made of the magnitudes afterwards. A thread has a slot. */
#include "cuda/device/element.h"
#include "cuda/device/quantise.h"

extern "C" __global__ void KERNEL(const __grid_constant__ struct quantise_params p) {
    const struct quantise_tensor *t = &p.t;
    int64_t index = (int64_t)blockIdx.x * 256 + threadIdx.x;
    const int64_t head = index % p.scale_extent[2];
    index /= p.scale_extent[2];
    const int64_t block = index % p.scale_extent[1], batch = index / p.scale_extent[1];
    if (batch >= p.scale_extent[0]) return;
    float *scale = t->scale + batch * t->scale_stride[0] + block * t->scale_stride[1] + head * t->scale_stride[2];
    if (p.phase == QUANTISE_CLEAR)
        *scale = 0;
    else if (*scale == *scale)
        *scale = scale_of_largest(*scale, t->int8);
}
