/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.cu: what libstrobe_dist does to memory of a GPU beside attention. Each kernel is bound by memory: rows are
 * copied, added in fp32, or rounded, 16 bytes a thread or more where alignment allows it. */
#include "cuda/ptx/convert.h"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/system.h"
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

/* Loads of some units are under way before the first of them is stored. */
template <typename unit> INLINE void move_chunk(const struct move_params *p, uint32_t first) {
    enum { AT_ONCE = 4 };
    const uint32_t all = (uint32_t)(p->entries * p->rows) * p->inner, left = all - first, rows = (uint32_t)p->rows;
    const uint32_t end = first + (left < MOVED_CHUNK ? left : MOVED_CHUNK);
    for (uint32_t at = first + threadIdx.x; at < end; at += AT_ONCE * blockDim.x) {
        unit x[AT_ONCE];
        unit *to[AT_ONCE];
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) {
            const uint32_t unit_at = at + n * blockDim.x;
            if (unit_at >= end) continue;
            const uint32_t r = unit_at / p->inner, u = unit_at - r * p->inner, entry = r / rows, head = u / p->units;
            const int64_t row = r - entry * rows;
            to[n] = (unit *)(p->to + entry * p->to_stride[0] + row * p->to_stride[1] + head * p->to_stride[2]) +
                    (u - head * p->units);
            x[n] = ((const unit *)(p->from + entry * p->from_stride[0] + row * p->from_stride[1] +
                                   head * p->from_stride[2]))[u - head * p->units];
        }
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n)
            if (at + n * blockDim.x < end) *to[n] = x[n];
    }
}

extern "C" __global__ void strobe__dist_move_all(const __grid_constant__ struct moves_params p) {
    uint32_t n = 0;
    for (uint32_t chunk = blockIdx.x; chunk < p.chunks; chunk += gridDim.x) {
        while (n + 1 < p.count && chunk >= p.first_chunk[n + 1]) ++n;
        const uint32_t first = (chunk - p.first_chunk[n]) * MOVED_CHUNK;
        if (p.move[n].unit_bytes == 16)
            move_chunk<uint4>(&p.move[n], first);
        else if (p.move[n].unit_bytes == 8)
            move_chunk<uint2>(&p.move[n], first);
        else if (p.move[n].unit_bytes == 4)
            move_chunk<uint32_t>(&p.move[n], first);
        else
            move_chunk<uint16_t>(&p.move[n], first);
    }
}

/* One element, or eight that lie side by side, as fp32. */
template <bool wide> INLINE void load_elements(const void *p, int32_t type, int64_t at, float *x) {
    enum { COUNT = wide ? 8 : 1 };
    if (type == ROUNDED_FP32) {
        const float *const from = (const float *)p + at;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) x[n] = from[n];
        return;
    }
    uint16_t bits[COUNT];
    if constexpr (wide)
        *(uint4 *)bits = *(const uint4 *)((const uint16_t *)p + at);
    else
        bits[0] = ((const uint16_t *)p)[at];
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
        x[n] = type == ROUNDED_BF16 ? __uint_as_float((uint32_t)bits[n] << 16) : f16_to_float(bits[n]);
}

/* Sixteen lanes have a row of a head. */
template <bool wide> INLINE void multiply_rows(const struct product_params *p) {
    enum { LANES = 16, COUNT = wide ? 8 : 1 };
    const uint32_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES, groups = blockDim.x / LANES;
    const int64_t all = p->entries * p->rows;
    for (int64_t r = blockIdx.x; r < all; r += gridDim.x) {
        const int64_t entry = r / p->rows, row = r - entry * p->rows;
        for (uint32_t first = 0; first < p->heads; first += groups) {
            const uint32_t head = first + group;
            const bool has = head < p->heads;
            float sum = 0;
            const int64_t a = entry * p->a_stride[0] + row * p->a_stride[1] + head * p->a_stride[2];
            const int64_t b = entry * p->b_stride[0] + row * p->b_stride[1] + head * p->b_stride[2];
            for (uint32_t d = lane * COUNT; has && d < p->dim; d += LANES * COUNT) {
                float x[COUNT], y[COUNT];
                load_elements<wide>(p->a, p->a_type, a + d, x), load_elements<wide>(p->b, p->b_type, b + d, y);
#pragma unroll
                for (int n = 0; n < COUNT; ++n) sum += x[n] * y[n];
            }
#pragma unroll
            for (int other = LANES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
            if (!has || lane != 0) continue;
            const float *const from = p->less_from;
            const float less = from ? from[entry * p->from_stride[0] + row * p->from_stride[1] + head * p->from_stride[2]]
                                    : 0;
            p->to[entry * p->to_stride[0] + row * p->to_stride[1] + head * p->to_stride[2]] = less - sum;
        }
    }
}

extern "C" __global__ void strobe__dist_row_products(const __grid_constant__ struct product_params p) {
    if (p.wide)
        multiply_rows<true>(&p);
    else
        multiply_rows<false>(&p);
}

/* One element, or eight that lie side by side. */
template <bool wide> INLINE void store_rounded(void *p, int32_t type, int64_t at, const float *x) {
    if constexpr (!wide) {
        if (type == ROUNDED_FP32)
            ((float *)p)[at] = x[0];
        else
            ((uint16_t *)p)[at] = (uint16_t)(type == ROUNDED_BF16 ? cvt_bf16x2(x[0], 0) : cvt_f16x2(x[0], 0));
    } else if (type == ROUNDED_BF16) {
        *(uint4 *)((uint16_t *)p + at) = make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]),
                                                    cvt_bf16x2(x[6], x[7]));
    } else if (type == ROUNDED_FP16) {
        *(uint4 *)((uint16_t *)p + at) = make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]),
                                                    cvt_f16x2(x[6], x[7]));
    } else {
        float4 *to = (float4 *)((float *)p + at);
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

/* Units of all rows are numbered through; loads of some are under way before the first of them is stored. */
template <bool wide, bool adds> INLINE void round_units(const struct round_params *p) {
    enum { AT_ONCE = ROUNDED_AT_ONCE };
    const uint64_t all = (uint64_t)(p->entries * p->rows) * p->inner;
    const uint32_t width = wide ? 8 : 1, step = blockDim.x;
    for (uint64_t first = (uint64_t)blockIdx.x * AT_ONCE * step; first < all;
         first += (uint64_t)gridDim.x * AT_ONCE * step) {
        const uint64_t r0 = first / p->inner;
        const uint32_t u0 = (uint32_t)(first - r0 * p->inner);
        float sum[AT_ONCE][8], part[AT_ONCE][8];
        int64_t to[AT_ONCE];
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) {
            const uint32_t offset = threadIdx.x + n * step, over = (u0 + offset) / p->inner;
            if (first + offset >= all) continue;
            const uint32_t u = u0 + offset - over * p->inner, head = u / p->units, x = (u - head * p->units) * width;
            const int64_t r = (int64_t)r0 + over, entry = r / p->rows, row = r - entry * p->rows;
            to[n] = entry * p->to_stride[0] + row * p->to_stride[1] + head * p->to_stride[2] + x;
            load_unit<wide>(p->from + entry * p->from_stride[0] + row * p->from_stride[1] + head * p->from_stride[2] + x,
                            sum[n]);
            if constexpr (adds)
                load_unit<wide>(p->more + entry * p->more_stride[0] + row * p->more_stride[1] + head * p->more_stride[2] + x,
                                part[n]);
        }
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) {
            if (first + threadIdx.x + n * step >= all) continue;
            if constexpr (adds)
                for (uint32_t w = 0; w < width; ++w) sum[n][w] += part[n][w];
            store_rounded<wide>(p->to, p->type, to[n], sum[n]);
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

template <bool wide> INLINE void sum_chunk(const struct summed_rows *r, const struct summed_piece *p, uint32_t first) {
    const uint32_t width = wide ? 8 : 1, left = p->elements - first,
                   end = first + (left < SUMMED_CHUNK ? left : SUMMED_CHUNK);
    const float *const *source = r->source + p->first_source;
    for (uint32_t at = first + threadIdx.x * width; at < end; at += blockDim.x * width) {
        float sum[8], part[8];
        load_unit<wide>(source[0] + at, sum);
#pragma unroll 2
        for (uint32_t s = 1; s < p->sources; ++s) {
            load_unit<wide>(source[s] + at, part);
            for (uint32_t n = 0; n < width; ++n) sum[n] += part[n];
        }
        store_rounded<wide>(p->to, p->type, at, sum);
    }
}

extern "C" __global__ void strobe__dist_sum_rows(const __grid_constant__ struct summed_rows r) {
    uint32_t n = 0;
    for (uint32_t chunk = blockIdx.x; chunk < r.chunks; chunk += gridDim.x) {
        while (n + 1 < r.count && chunk >= r.piece[n + 1].first_chunk) ++n;
        const uint32_t first = (chunk - r.piece[n].first_chunk) * SUMMED_CHUNK;
        if (r.piece[n].wide)
            sum_chunk<true>(&r, &r.piece[n], first);
        else
            sum_chunk<false>(&r, &r.piece[n], first);
    }
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

/* Units of a chunk: four loads of a thread are under way at a time. */
template <typename unit> INLINE void copy_units(unsigned char *to, const unsigned char *from, uint32_t bytes) {
    enum { AT_ONCE = 4 };
    const uint32_t units = bytes / sizeof(unit);
    unit *const a = (unit *)to;
    const unit *const b = (const unit *)from;
    uint32_t u = threadIdx.x;
    for (; u + (AT_ONCE - 1) * blockDim.x < units; u += AT_ONCE * blockDim.x) {
        unit x[AT_ONCE];
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) x[n] = b[u + n * blockDim.x];
#pragma unroll
        for (uint32_t n = 0; n < AT_ONCE; ++n) a[u + n * blockDim.x] = x[n];
    }
    for (; u < units; u += blockDim.x) a[u] = b[u];
    for (uint32_t byte = units * (uint32_t)sizeof(unit) + threadIdx.x; byte < bytes; byte += blockDim.x)
        to[byte] = from[byte];
}

/* This CTA's chunks of pieces, which may lie on another GPU. */
template <uint32_t CHUNK>
INLINE void copy_chunks(const struct copied_piece *piece, uint32_t count, uint32_t chunks, uint32_t cta, uint32_t ctas) {
    uint32_t n = 0;
    for (uint32_t chunk = cta; chunk < chunks; chunk += ctas) {
        while (n + 1 < count && chunk >= piece[n + 1].first_chunk) ++n;
        const uint32_t at = (chunk - piece[n].first_chunk) * CHUNK, left = piece[n].bytes - at;
        const uint32_t bytes = left < CHUNK ? left : CHUNK;
        unsigned char *const to = piece[n].to + at;
        const unsigned char *const from = piece[n].from + at;
        const uint64_t together = (uint64_t)to | (uint64_t)from;
        if (together % 16 == 0)
            copy_units<uint4>(to, from, bytes);
        else if (together % 4 == 0)
            copy_units<uint32_t>(to, from, bytes);
        else
            copy_units<unsigned char>(to, from, bytes);
    }
}

extern "C" __global__ void strobe__dist_copy_pieces(const __grid_constant__ struct copy_params p) {
    copy_chunks<COPIED_CHUNK>(p.piece, p.count, p.chunks, blockIdx.x, gridDim.x);
}

/* CTAs without a chunk of a step have no part in it. All run at the same time, but for kernels of others, which end. */
extern "C" __global__ void strobe__dist_exchange(const __grid_constant__ struct exchange_params p) {
    const bool fills = blockIdx.x < p.fillers;
    const uint32_t ctas = fills ? p.fillers : gridDim.x - p.fillers, cta = fills ? blockIdx.x : blockIdx.x - p.fillers;
    const uint32_t end = fills ? p.fills : p.fills + p.empties;
    for (uint32_t s = fills ? 0 : p.fills; s < end; ++s) {
        const struct exchange_step *const step = &p.step[s];
        if (cta >= step->chunks) continue;
        if (threadIdx.x == 0 && cta == 0) { /* one thread alone asks the host's memory: many would wait for each other */
            while (system_load_acquire(step->before) != 1) {
            }
            store_release(&p.may_go[s], 1);
        } else if (threadIdx.x == 0) {
            while (load_acquire(&p.may_go[s]) != 1) {
            }
        }
        __syncthreads();
        copy_chunks<EXCHANGED_CHUNK>(p.piece + step->first_piece, step->pieces, step->chunks, cta, ctas);
        __syncthreads();
        if (threadIdx.x != 0) continue;
        system_fence();
        if (atomicAdd(&p.done[s], 1u) + 1 < (ctas < step->chunks ? ctas : step->chunks)) continue;
        system_fence();
        p.done[s] = 0, p.may_go[s] = 0;
        system_store_release(step->before, 0);
        system_store_release(step->after, 1);
    }
}

extern "C" __global__ void strobe__dist_store_words(const __grid_constant__ struct upload_params p) {
    for (int n = (int)threadIdx.x; n < p.count; n += (int)blockDim.x) p.to[n] = p.word[n];
}
