/* SPDX-License-Identifier: BSD-3-Clause
 *
 * integer.h: products of integers, and signs of bytes. */
#ifndef STROBE_CUDA_PTX_INTEGER_H
#define STROBE_CUDA_PTX_INTEGER_H

#include <stdint.h>

/* All 64 bits of a product, by one instruction: of a product with a sum in C the compiler can make more. volatile: products
 * stay in the order of the text, in which those that do not wait for each other are neighbours. PTX ISA 9.7.1.3 "mul". */
static __device__ __forceinline__ uint64_t full_product(uint32_t a, uint32_t b) {
    uint64_t product;
    asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}

/* The larger of both pairs of halves, unsigned; one instruction from sm_90 on. PTX ISA 9.7.1.11 "max", .u16x2. */
static __device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t both;
    asm("max.u16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
    return both;
#else
    const uint32_t low_a = a & 0xffff, low_b = b & 0xffff, high_a = a >> 16, high_b = b >> 16;
    return (low_a > low_b ? low_a : low_b) | (high_a > high_b ? high_a : high_b) << 16;
#endif
}

/* Each half of the result is 0xffff where the highest bit of the byte of x that is named for it is set, else 0. PTX ISA
 * 9.7.9.7 "prmt", default mode with the sign replicated. */
template <int low, int high> static __device__ __forceinline__ uint32_t signs_of_bytes(uint32_t x) {
    uint32_t mask;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(x), "n"(0x8888 | low * 0x11 | high * 0x1100));
    return mask;
}

#endif
