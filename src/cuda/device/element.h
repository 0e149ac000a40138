/* SPDX-License-Identifier: BSD-3-Clause
 *
 * element.h: the element type that a kernel is compiled for, ELEMENT_FP16, ELEMENT_BF16 or ELEMENT_FP32 by -D, and elements
 * of a type known at run time only (bias, outputs in another dtype). */
#ifndef STROBE_CUDA_DEVICE_ELEMENT_H
#define STROBE_CUDA_DEVICE_ELEMENT_H

#include <math.h>

#include "cuda/device/params.h"
#include "cuda/ptx/convert.h"
#include "cuda/ptx/thread.h"
#include "math/exp2.h"
#include "math/float16.h"

#define INLINE static __device__ __forceinline__

/* Elements of an array that has none: NVRTC does not take one of no elements. */
#if defined(__CUDACC_RTC__)
#define NO_ELEMENTS 1
#else
#define NO_ELEMENTS 0
#endif

/* STROBE_MMA_TYPE: the type's name in the instructions of ptx/wgmma.h. */
#if defined(ELEMENT_FP32)
typedef float element;
#define ELEMENT_DTYPE CUDA_FP32
#define ELEMENT_ONE   1.0f
INLINE float element_to_float(element x) { return x; }
#else
typedef uint16_t element;
#if defined(ELEMENT_FP16)
#define STROBE_MMA_TYPE "f16"
#define ELEMENT_DTYPE   CUDA_FP16
#define ELEMENT_ONE     ((element)0x3c00)
INLINE uint32_t pack(float low, float high) { return cvt_f16x2(low, high); }
INLINE float element_to_float(element x) { return f16_to_float(x); }
#else
#define STROBE_MMA_TYPE "bf16"
#define ELEMENT_DTYPE   CUDA_BF16
#define ELEMENT_ONE     ((element)0x3f80)
INLINE uint32_t pack(float low, float high) { return cvt_bf16x2(low, high); }
INLINE float element_to_float(element x) { return bf16_to_float(x); }
#endif
#endif

#define ELEMENT_BYTES ((int)sizeof(element))
#define CHUNK         (16 / ELEMENT_BYTES) /* elements of a 16-byte access */

/* Sets accumulators to 0; not by an initialiser, of which the compiler makes a loop over local memory. */
INLINE void clear(float (*c)[4], int tiles) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) c[n][x] = 0;
}

/* Whether no accumulator is an infinity or a NaN: 0 x = 0 for all others. Four sums, because one would wait for itself. */
INLINE bool are_finite(const float (*c)[4], int tiles) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) sums[x] = fmaf(c[n][x], 0.0f, sums[x]);
    return sums[0] + sums[1] + sums[2] + sums[3] == 0;
}

/* Element `index` of a tensor of any dtype. */
INLINE float load_any(const void *data, int dtype, int64_t index) {
    switch (dtype) {
    case CUDA_FP16: return fp16_to_float(((const uint16_t *)data)[index]);
    case CUDA_BF16: return bf16_to_float(((const uint16_t *)data)[index]);
    case CUDA_FP64: return (float)((const double *)data)[index];
    default: return ((const float *)data)[index];
    }
}

INLINE void store_any(void *data, int dtype, int64_t index, float value) {
    switch (dtype) {
    case CUDA_FP16: ((uint16_t *)data)[index] = (uint16_t)cvt_f16x2(value, 0); break;
    case CUDA_BF16: ((uint16_t *)data)[index] = (uint16_t)cvt_bf16x2(value, 0); break;
    case CUDA_FP64: ((double *)data)[index] = (double)value; break;
    default: ((float *)data)[index] = value;
    }
}

/* Stores eight columns from element `at` of the tensor on, 16 bytes at a time. Returns false, with nothing done, if fewer
 * than eight are left or the tensor does not allow it. */
INLINE bool store_eight(const struct view *to, int64_t at, const float *from, int columns) {
    if (columns < 8 || !to->aligned || to->dtype == CUDA_FP64) return false;
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    if (to->dtype == CUDA_FP32) {
        *(float4 *)((float *)to->data + at) = low;
        *(float4 *)((float *)to->data + at + 4) = high;
    } else if (to->dtype == CUDA_BF16) {
        *(uint4 *)((uint16_t *)to->data + at) = make_uint4(cvt_bf16x2(low.x, low.y), cvt_bf16x2(low.z, low.w),
                                                           cvt_bf16x2(high.x, high.y), cvt_bf16x2(high.z, high.w));
    } else {
        *(uint4 *)((uint16_t *)to->data + at) = make_uint4(cvt_f16x2(low.x, low.y), cvt_f16x2(low.z, low.w),
                                                           cvt_f16x2(high.x, high.y), cvt_f16x2(high.z, high.w));
    }
    return true;
}

#endif
