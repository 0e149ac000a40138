/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_transposed.h: more of wgmma.h's products, which the backward pass and latent attention take. PTX ISA 9.7.15. The
 * includer defines STROBE_MMA_TYPE. A and B lie in shared memory, but for rd, whose A is in registers:
 *
 *     wgmma_ss_<N>_first   D = A B, both with the depth axis contiguous
 *     wgmma_ss_64_less     D -= A B, likewise
 *     wgmma_st_<N>_first   D = A B, B with the N axis contiguous
 *     wgmma_st_<N>         D += A B, likewise
 *     wgmma_rd_<N>_first   D = A B, B with the depth axis contiguous
 *     wgmma_rd_<N>         D += A B, likewise
 *     wgmma_sd_<N>         D += A B, both with the depth axis contiguous
 *
 * A first step says so by a constant and takes D as an output alone: were it one that may add, all accumulators would be
 * live around the loop. */
#ifndef STROBE_CUDA_PTX_WGMMA_TRANSPOSED_H
#define STROBE_CUDA_PTX_WGMMA_TRANSPOSED_H

#include "cuda/ptx/wgmma.h"

static __device__ __forceinline__ void wgmma_ss_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 0, 1, 1, 0, 0") : WGMMA_32("=f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_ss_64_less(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(64, WGMMA_D32, "%32, %33, 1, -1, 1, 0, 0") : WGMMA_32("+f", d, 0) : "l"(a), "l"(b));
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

static __device__ __forceinline__ void wgmma_st_128(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(128, WGMMA_D64, "%64, %65, 1, 1, 1, 0, 1") : WGMMA_64("+f", d, 0) : "l"(a), "l"(b));
}

#define WGMMA_D24 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_24(mode, d) WGMMA_8(mode, d, 0), WGMMA_8(mode, d, 8), WGMMA_8(mode, d, 16)

static __device__ __forceinline__ void wgmma_st_48_first(float (&d)[24], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(48, WGMMA_D24, "%24, %25, 0, 1, 1, 0, 1") : WGMMA_24("=f", d) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_st_48(float (&d)[24], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(48, WGMMA_D24, "%24, %25, 1, 1, 1, 0, 1") : WGMMA_24("+f", d) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_rd_48_first(float (&d)[24], const uint32_t *a, uint64_t b) {
    asm volatile(WGMMA_TEXT(48, WGMMA_D24, "{%24, %25, %26, %27}, %28, 0, 1, 1, 0")
                 : WGMMA_24("=f", d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void wgmma_rd_48(float (&d)[24], const uint32_t *a, uint64_t b) {
    asm volatile(WGMMA_TEXT(48, WGMMA_D24, "{%24, %25, %26, %27}, %28, 1, 1, 1, 0")
                 : WGMMA_24("+f", d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void wgmma_sd_48(float (&d)[24], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_TEXT(48, WGMMA_D24, "%24, %25, 1, 1, 1, 0, 0") : WGMMA_24("+f", d) : "l"(a), "l"(b));
}

#endif
