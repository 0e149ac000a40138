/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_transposed.h: forms of wgmma.h's product that the backward pass takes beside those, A and B in shared memory. PTX
 * ISA 9.7.15. The includer defines STROBE_MMA_TYPE.
 *
 *     wgmma_ss_<N>_first   D = A B, both with the depth axis contiguous
 *     wgmma_st_<N>_first   D = A B, B with the N axis contiguous
 *     wgmma_st_<N>         D += A B, likewise
 *
 * A first step says so by a constant and takes D as an output alone: were it one that may add, all accumulators would be
 * live around the loop. */
#ifndef STROBE_CUDA_PTX_WGMMA_TRANSPOSED_H
#define STROBE_CUDA_PTX_WGMMA_TRANSPOSED_H

#include "cuda/ptx/wgmma.h"

#define WGMMA_8(mode, d, i)                                                                                                 \
    mode(d[i]), mode(d[(i) + 1]), mode(d[(i) + 2]), mode(d[(i) + 3]), mode(d[(i) + 4]), mode(d[(i) + 5]), mode(d[(i) + 6]), \
        mode(d[(i) + 7])
#define WGMMA_32(mode, d, i) \
    WGMMA_8(mode, d, i), WGMMA_8(mode, d, (i) + 8), WGMMA_8(mode, d, (i) + 16), WGMMA_8(mode, d, (i) + 24)
#define WGMMA_D32                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
    "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D64                                                                                  \
    WGMMA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
              "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_TEXT(n, d, operands) \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." STROBE_MMA_TYPE "." STROBE_MMA_TYPE " {" d "}, " operands ";"

static __device__ __forceinline__ void wgmma_ss_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 0, 1, 1, 0, 0") : WGMMA_32("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_ss_128_first(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(128, WGMMA_D64, "%64, %65, 0, 1, 1, 0, 0")
                 : WGMMA_32("=f", d, 0), WGMMA_32("=f", d, 32)
                 : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_st_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 0, 1, 1, 0, 1") : WGMMA_32("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_st_64(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 1, 1, 1, 0, 1") : WGMMA_32("+f", d, 0) : "l"(a), "l"(b));
}

#endif
