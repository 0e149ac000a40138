/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tf32.h: products of numbers of 11 bits in the range of fp32 on the tensor cores, a warp's. From sm_80 on; fp32
 * accumulation. With g = lane / 4 and t = lane % 4, a register is one element,
 *     a0 (row g, k t)  a1 (row g + 8, k t)  a2 (row g, k t + 4)  a3 (row g + 8, k t + 4)
 *     b0 (k t, column g)  b1 (k t + 4, column g)
 * and the accumulators lie as those of mma.h. */
#ifndef STROBE_CUDA_PTX_TF32_H
#define STROBE_CUDA_PTX_TF32_H

#include <stdint.h>

/* PTX ISA 9.7.14.5.14 "mma", .m16n8k8, tf32: of an operand the lowest 13 bits are not looked at. */
static __device__ __forceinline__ void mma_m16n8k8_tf32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
