/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.cu: what libstrobe_dist does to memory of a GPU beside attention. Each kernel is bound by memory: rows are copied,
 * or added in fp32, 16 bytes a thread where alignment allows it. */
#include "cuda_params.h"

#define INLINE static __device__ __forceinline__

INLINE void add(float *to, float from) { *to += from; }
INLINE void add(float4 *to, float4 from) { to->x += from.x, to->y += from.y, to->z += from.z, to->w += from.w; }

/* A block has some rows, and of each a part of the units, in blockIdx.y. */
template <typename unit, bool adds>
INLINE void move_units(const struct move_params *p) {
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
