/* SPDX-License-Identifier: BSD-3-Clause
 *
 * language.h: CUDA C's words and built-in functions as C++ of the host, included before a kernel's text. Vectors such as
 * float4 are CUDA's own headers'. */
#ifndef STROBE_CUDA_EMULATED_LANGUAGE_H
#define STROBE_CUDA_EMULATED_LANGUAGE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_functions.h>
#include <vector_types.h>

#include "cuda/emulated/machine.h"

/* The words that the headers above have no use for without nvcc. */
#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __cluster_dims__
#undef __align__
#define __device__
#define __global__
#define __shared__      thread_local /* a worker of the machine runs one CTA at a time */
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(x, y, z)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __host__
#define __CUDACC__
#define __CUDA_ARCH__ 900

#define threadIdx emulated_thread
#define blockIdx  emulated_cta
#define blockDim  emulated_threads
#define gridDim   emulated_ctas

/* ---- bits and arithmetic */

template <typename to_type, typename from_type> static inline to_type emulated_bits(from_type x) {
    static_assert(sizeof(to_type) == sizeof(from_type), "as many bytes");
    to_type y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline float __uint_as_float(uint32_t x) { return emulated_bits<float>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline uint32_t __float_as_uint(float x) { return emulated_bits<uint32_t>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
#define __log2f(x) log2f(x) /* libc has a function of the name */
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b) {
    volatile float product = a * b; /* no part of a fused multiply-add */
    return product;
}
static inline float __fadd_rn(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

/* A byte of the eight of b:a for each digit of the selector; digit bit 3 repeats the byte's highest bit. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int n = 0; n < 4; ++n) {
        const uint32_t digit = selector >> 4 * n & 0xf;
        uint32_t byte = (uint32_t)(both >> 8 * (digit & 7)) & 0xff;
        if (digit & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * n;
    }
    return result;
}

template <typename type> static inline type min(type a, type b) { return b < a ? b : a; }
template <typename type> static inline type max(type a, type b) { return a < b ? b : a; }

/* ---- memory */

template <typename type> static inline type __ldg(const type *from) { return *from; }
template <typename type> static inline type __ldcg(const type *from) { return *from; }
static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <typename type, typename operation> static inline type emulated_atomic(type *at, operation next) {
    type before, after;
    __atomic_load(at, &before, __ATOMIC_SEQ_CST);
    do after = next(before);
    while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}
template <typename type, typename other> static inline type atomicAdd(type *at, other x) {
    return emulated_atomic(at, [x](type before) { return (type)(before + (type)x); });
}
template <typename type, typename other> static inline type atomicMax(type *at, other x) {
    return emulated_atomic(at, [x](type before) { return before < (type)x ? (type)x : before; });
}
template <typename type, typename other> static inline type atomicMin(type *at, other x) {
    return emulated_atomic(at, [x](type before) { return (type)x < before ? (type)x : before; });
}
template <typename type, typename other> static inline type atomicOr(type *at, other x) {
    return emulated_atomic(at, [x](type before) { return (type)(before | (type)x); });
}
template <typename type, typename other> static inline type atomicExch(type *at, other x) {
    return emulated_atomic(at, [x](type) { return (type)x; });
}
template <typename type, typename other> static inline type atomicCAS(type *at, other compare, other x) {
    return emulated_atomic(at, [compare, x](type before) { return before == (type)compare ? (type)x : before; });
}

/* ---- threads */

static inline int emulated_lane(void) {
    return (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) % EMULATED_LANES;
}

static inline void __syncthreads(void) { emulated_barrier_wait(0, 0); }
static inline int __syncthreads_or(int value) { return emulated_barrier_or(value); }

/* What a lane brings and takes where lanes converge. */
template <typename type> struct emulated_exchange {
    type value;
    int lane; /* whose value it takes */
};

template <typename type>
static inline type emulated_shuffle(uint32_t lanes, type value, int from, int width, const char *what) {
    const int lane = emulated_lane();
    emulated_exchange<type> mine = {value, from / width == lane / width && from >= 0 ? from : lane};
    emulated_converge(
        lanes,
        [](void *arguments[EMULATED_LANES]) {
            emulated_exchange<type> *its[EMULATED_LANES];
            type value[EMULATED_LANES];
            for (int n = 0; n < EMULATED_LANES; ++n)
                if ((its[n] = (emulated_exchange<type> *)arguments[n])) value[n] = its[n]->value;
            for (int n = 0; n < EMULATED_LANES; ++n) {
                if (!its[n]) continue;
                if (!its[its[n]->lane])
                    emulated_fault("a shuffle takes the value of lane %d, which did not come", its[n]->lane);
                its[n]->value = value[its[n]->lane];
            }
        },
        &mine, what);
    return mine.value;
}

template <typename type> static inline type __shfl_sync(uint32_t lanes, type value, int from, int width = EMULATED_LANES) {
    const int lane = emulated_lane();
    return emulated_shuffle(lanes, value, lane / width * width + (from & (width - 1)), width, "__shfl_sync");
}
template <typename type>
static inline type __shfl_xor_sync(uint32_t lanes, type value, int mask, int width = EMULATED_LANES) {
    return emulated_shuffle(lanes, value, (emulated_lane()) ^ mask, width, "__shfl_xor_sync");
}
template <typename type> static inline type __shfl_up_sync(uint32_t lanes, type value, int by, int width = EMULATED_LANES) {
    return emulated_shuffle(lanes, value, emulated_lane() - by, width, "__shfl_up_sync");
}
template <typename type>
static inline type __shfl_down_sync(uint32_t lanes, type value, int by, int width = EMULATED_LANES) {
    return emulated_shuffle(lanes, value, emulated_lane() + by, width, "__shfl_down_sync");
}

static inline uint32_t __ballot_sync(uint32_t lanes, int predicate) {
    uint32_t mine = predicate != 0;
    emulated_converge(
        lanes,
        [](void *arguments[EMULATED_LANES]) {
            uint32_t votes = 0;
            for (int n = 0; n < EMULATED_LANES; ++n)
                if (arguments[n]) votes |= *(uint32_t *)arguments[n] << n;
            for (int n = 0; n < EMULATED_LANES; ++n)
                if (arguments[n]) *(uint32_t *)arguments[n] = votes;
        },
        &mine, "a vote of a warp");
    return mine;
}
static inline int __any_sync(uint32_t lanes, int predicate) { return __ballot_sync(lanes, predicate) != 0; }
static inline int __all_sync(uint32_t lanes, int predicate) { return __ballot_sync(lanes, !predicate) == 0; }
static inline void __syncwarp(uint32_t lanes = 0xffffffffu) { (void)__ballot_sync(lanes, 0); }

template <typename type> static inline type __reduce_max_sync(uint32_t lanes, type value) {
    emulated_converge(
        lanes,
        [](void *arguments[EMULATED_LANES]) {
            const type *most = nullptr;
            for (int n = 0; n < EMULATED_LANES; ++n)
                if (arguments[n] && (!most || *most < *(type *)arguments[n])) most = (type *)arguments[n];
            const type value = *most;
            for (int n = 0; n < EMULATED_LANES; ++n)
                if (arguments[n]) *(type *)arguments[n] = value;
        },
        &value, "__reduce_max_sync");
    return value;
}

#endif
