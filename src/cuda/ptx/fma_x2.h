/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fma_x2.h: a b + c of two 16-bit elements at a time, each rounded once; denormals are kept. From sm_80 on. */
#ifndef STROBE_CUDA_PTX_FMA_X2_H
#define STROBE_CUDA_PTX_FMA_X2_H

#include <stdint.h>

/* PTX ISA 9.7.4.4 "fma". */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#endif
