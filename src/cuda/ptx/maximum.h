/* SPDX-License-Identifier: BSD-3-Clause
 *
 * maximum.h: the larger of two numbers, by instructions that C has no operator for. */
#ifndef STROBE_CUDA_PTX_MAXIMUM_H
#define STROBE_CUDA_PTX_MAXIMUM_H

/* A NaN where one of them is. PTX ISA 9.7.3.12 "max", .NaN; from sm_80 on. */
static __device__ __forceinline__ float larger_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

#endif
