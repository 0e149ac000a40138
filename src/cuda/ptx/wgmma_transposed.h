/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_transposed.h: more of wgmma.h's products, which the backward pass takes, with A and B in shared memory. PTX
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

static __device__ __forceinline__ void wgmma_ss_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 0, 1, 1, 0, 0") : WGMMA_32("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_ss_128_first(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(128, WGMMA_D64, "%64, %65, 0, 1, 1, 0, 0") : WGMMA_64("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_st_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 0, 1, 1, 0, 1") : WGMMA_32("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_st_64(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 1, 1, 1, 0, 1") : WGMMA_32("+f", d, 0) : "l"(a), "l"(b));
}

#endif
