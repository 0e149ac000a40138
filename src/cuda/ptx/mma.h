/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mma.h: matrix products of one warp on the tensor cores, one function an instruction. From sm_80 on; fp32 accumulation.
 * With g = lane / 4 and t = lane % 4, a register of two 16-bit elements holds
 *     a0 (row g, k 2t..)  a1 (row g + 8, k 2t..)  a2 (row g, k 2t + 8..)  a3 (row g + 8, k 2t + 8..)
 *     b0 (k 2t.., column g)  b1 (k 2t + 8.., column g)
 * and the accumulators c0, c1 (row g, columns 2t, 2t + 1), c2, c3 (row g + 8): two neighbouring 16 x 8 accumulators, packed
 * to 16 bit, are an A operand. */
#ifndef STROBE_CUDA_PTX_MMA_H
#define STROBE_CUDA_PTX_MMA_H

#include <stdint.h>

/* PTX ISA 9.7.14.5.14 "mma", .m16n8k16, bf16. */
static __device__ __forceinline__ void mma_m16n8k16_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* PTX ISA 9.7.14.5.14 "mma", .m16n8k16, f16. */
static __device__ __forceinline__ void mma_m16n8k16_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
