/* SPDX-License-Identifier: BSD-3-Clause
 *
 * key_scales.h: scales of the keys of a quantised cache. No stored number is multiplied: K's scale of a key
 * multiplies its scores, V's its weights, behind their sum. Included by kernels that are compiled with CUDA's enumerated
 * dtypes and a warp's accumulators as ptx/mma.h has them. */
#ifndef STROBE_CUDA_DEVICE_KEY_SCALES_H
#define STROBE_CUDA_DEVICE_KEY_SCALES_H

#include "cuda/device/job.h"
#include "cuda/ptx/cp_async_word.h"
#include "cuda/ptx/shared_address.h"

/* Where the scale of a key lies. */
INLINE const float *scale_of_key(const float *scale, const int64_t *stride, const struct params *p, const struct job *t,
                                 int64_t batch, int64_t slot) {
    const int64_t block = p->cache.scale_block;
    const int64_t at = block == 0 ? t->b * stride[0] : batch * stride[0] + (block == 1 ? slot : slot / block) * stride[1];
    return scale + at + t->kv * stride[2];
}

/* Copies it to shared memory. */
INLINE void copy_scale(float *to, const float *scale, const int64_t *stride, const struct params *p, const struct job *t,
                       int64_t batch, int64_t slot) {
    cp_async_4(shared_address(to), scale_of_key(scale, stride, p, t, batch, slot));
}

/* Scores times the scales of their keys; scales: of the warp's first key on. */
INLINE void scale_scores(const float *scales, int m_tiles, int n_tiles, float (*s)[4]) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 scale = *(const float2 *)&scales[8 * n + (int)threadIdx.x % 4 * 2];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            float *x = s[m * n_tiles + n];
            x[0] *= scale.x, x[1] *= scale.y, x[2] *= scale.x, x[3] *= scale.y;
        }
    }
}

/* What weights are multiplied by beside V's scale, and O divided by at the end, so that weights times scales of fp16 are as
 * far from its smallest and largest numbers as V itself is: a power of two near the largest stored number. */
INLINE float weight_unit(const struct params *p) {
#if defined(ELEMENT_FP16)
    return p->v.dtype == CUDA_INT8 ? 128.0f : p->v.dtype == CUDA_FP8 ? 256.0f : 1.0f;
#else
    return 1.0f;
#endif
}

/* Weights times the scales of V, of the warp's first key on. A weight of 0 stays: the scale of an invisible key may be a
 * NaN. */
INLINE void scale_weights(const float *scales, int m_tiles, int n_tiles, float unit, float (*s)[4]) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 scale = *(const float2 *)&scales[8 * n + (int)threadIdx.x % 4 * 2];
        const float factor[2] = {scale.x * unit, scale.y * unit};
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                float *weight = &s[m * n_tiles + n][x];
                *weight = *weight == 0 ? 0 : *weight * factor[x % 2];
            }
    }
}

#endif
