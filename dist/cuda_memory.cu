/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.cu: what libstrobe_dist does to memory of a GPU beside attention. Each kernel is bound by memory: rows are
 * copied, added in fp32, or rounded, 16 bytes a thread or more where alignment allows it. */
#include "cuda/ptx/convert.h"
#include "cuda_params.h"

#define INLINE static __device__ __forceinline__

INLINE void add(float *to, float from) { *to += from; }
INLINE void add(float4 *to, float4 from) { to->x += from.x, to->y += from.y, to->z += from.z, to->w += from.w; }

/* A block has some rows, and of each a part of the units, in blockIdx.y. */
template <typename unit, bool adds> INLINE void move_units(const struct move_params *p) {
    const int64_t all = p->entries * p->rows;
    for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < all; r += (int64_t)gridDim.x * blockDim.y) {
        const int64_t entry = r / p->rows, row = r - entry * p->rows;
        unsigned char *to = p->to + entry * p->to_stride[0] + row * p->to_stride[1];
        const unsigned char *from = p->from + entry * p->from_stride[0] + row * p->from_stride[1];
        for (uint32_t u = blockIdx.y * blockDim.x + threadIdx.x; u < p->inner; u += gridDim.y * blockDim.x) {
            const uint32_t head = u / p->units, x = u - head * p->units;
            unit *const a = (unit *)(to + head * p->to_stride[2]) + x;
            const unit b = ((const unit *)(from + head * p->from_stride[2]))[x];
            if constexpr (adds)
                add(a, b);
            else
                *a = b;
        }
    }
}

extern "C" __global__ void strobe__dist_move_rows(const __grid_constant__ struct move_params p) {
    if (p.adds && p.unit_bytes == 16)
        move_units<float4, true>(&p);
    else if (p.adds)
        move_units<float, true>(&p);
    else if (p.unit_bytes == 16)
        move_units<uint4, false>(&p);
    else if (p.unit_bytes == 8)
        move_units<uint2, false>(&p);
    else if (p.unit_bytes == 4)
        move_units<uint32_t, false>(&p);
    else
        move_units<uint16_t, false>(&p);
}

/* One element, or eight that lie side by side. */
template <bool wide> INLINE void store_rounded(const struct round_params *p, int64_t at, const float *x) {
    if constexpr (!wide) {
        if (p->type == ROUNDED_FP32)
            ((float *)p->to)[at] = x[0];
        else
            ((uint16_t *)p->to)[at] = (uint16_t)(p->type == ROUNDED_BF16 ? cvt_bf16x2(x[0], 0) : cvt_f16x2(x[0], 0));
    } else if (p->type == ROUNDED_BF16) {
        *(uint4 *)((uint16_t *)p->to + at) = make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]),
                                                        cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
    } else if (p->type == ROUNDED_FP16) {
        *(uint4 *)((uint16_t *)p->to + at) = make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]),
                                                        cvt_f16x2(x[6], x[7]));
    } else {
        float4 *to = (float4 *)((float *)p->to + at);
        to[0] = make_float4(x[0], x[1], x[2], x[3]), to[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

template <bool wide> INLINE void load_unit(const float *from, float *x) {
    if constexpr (wide) {
        const float4 a = *(const float4 *)from, b = *((const float4 *)from + 1);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        x[0] = *from;
    }
}

template <bool wide, bool adds> INLINE void round_units(const struct round_params *p) {
    const int64_t all = p->entries * p->rows;
    const uint32_t width = wide ? 8 : 1;
    for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < all; r += (int64_t)gridDim.x * blockDim.y) {
        const int64_t entry = r / p->rows, row = r - entry * p->rows;
        const int64_t to = entry * p->to_stride[0] + row * p->to_stride[1];
        const float *from = p->from + entry * p->from_stride[0] + row * p->from_stride[1];
        const float *more = adds ? p->more + entry * p->more_stride[0] + row * p->more_stride[1] : from;
        for (uint32_t u = blockIdx.y * blockDim.x + threadIdx.x; u < p->inner; u += gridDim.y * blockDim.x) {
            const uint32_t head = u / p->units, x = (u - head * p->units) * width;
            float sum[8], part[8];
            load_unit<wide>(from + head * p->from_stride[2] + x, sum);
            if constexpr (adds) {
                load_unit<wide>(more + head * p->more_stride[2] + x, part);
                for (uint32_t n = 0; n < width; ++n) sum[n] += part[n];
            }
            store_rounded<wide>(p, to + head * p->to_stride[2] + x, sum);
        }
    }
}

extern "C" __global__ void strobe__dist_round_rows(const __grid_constant__ struct round_params p) {
    if (p.wide && p.more)
        round_units<true, true>(&p);
    else if (p.wide)
        round_units<true, false>(&p);
    else if (p.more)
        round_units<false, true>(&p);
    else
        round_units<false, false>(&p);
}

extern "C" __global__ void strobe__dist_fill_floats(float *to, int64_t count, float value) {
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += (int64_t)gridDim.x * blockDim.x)
        to[n] = value;
}

/* In double, in the order of the ranks. */
extern "C" __global__ void strobe__dist_sum_ranks(float *to, const float *parts, int64_t count, int32_t ranks) {
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += (int64_t)gridDim.x * blockDim.x) {
        double sum = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) sum += parts[rank * count + n];
        to[n] = (float)sum;
    }
}

extern "C" __global__ void strobe__dist_store_words(const __grid_constant__ struct upload_params p) {
    for (int n = (int)threadIdx.x; n < p.count; n += (int)blockDim.x) p.to[n] = p.word[n];
}
