/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_int8.h: Hopper's products of int8, D[64][128] (+)= A[64][32] B[32][128], depth 32 bytes a step, exact sums in int32
 * (PTX ISA 9.7.15). Operands and accumulators lie as in wgmma_fp8.h. wgmma_int8_ss_128(d, a, b): D += A B, both in shared
 * memory; _start: D = A B, whatever D held. */
#ifndef STROBE_CUDA_PTX_WGMMA_INT8_H
#define STROBE_CUDA_PTX_WGMMA_INT8_H

#include "cuda/ptx/wgmma.h"

#define WGMMA_INT8_128(add) "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" WGMMA_D64 "}, %64, %65, " add ";"

static __device__ __forceinline__ void wgmma_int8_ss_128(int32_t (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_INT8_128("1") : WGMMA_64("+r", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_int8_ss_128_start(int32_t (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_INT8_128("0") : WGMMA_64("=r", d, 0) : "l"(a), "l"(b));
}

#endif
