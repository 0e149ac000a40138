/* SPDX-License-Identifier: BSD-3-Clause
 *
 * convert.h: two fp32 values to one register of two 16-bit elements, rounded to nearest even; 2^x and 1 / x. */
#ifndef STROBE_CUDA_PTX_CONVERT_H
#define STROBE_CUDA_PTX_CONVERT_H

#include <stdint.h>

/* PTX ISA 9.7.9.22 "cvt"; the first source goes to the high half. bf16x2 from sm_80 on. */
static __device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* PTX ISA 9.7.9.22 "cvt". */
static __device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ float f16_to_float(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

/* Two fp32 values to two e4m3 bytes, the first in the low one; what is too large becomes 448. PTX ISA 9.7.9.22 "cvt",
 * .satfinite.e4m3x2; from sm_89 on. */
static __device__ __forceinline__ uint16_t cvt_e4m3x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Four of them; ptxas makes two instructions of it, where two pairs and a shift would be three. */
static __device__ __forceinline__ uint32_t cvt_e4m3x4(float a, float b, float c, float d) {
    uint32_t four;
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 "
        "%0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return four;
}

/* Two e4m3 bytes to two fp16 values, exactly, a NaN too; from sm_89 on. PTX ISA 9.7.9.22 "cvt". */
static __device__ __forceinline__ uint32_t cvt_f16x2_of_e4m3x2(uint16_t pair) {
    uint32_t both;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(pair));
    return both;
}

/* 2^x, relative error 2^-22; ex2(-inf) is 0, ex2(0) exactly 1. PTX ISA 9.7.3.21 "ex2". */
static __device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, relative error 2^-23; of an infinity 0. PTX ISA 9.7.3.15 "rcp.approx.ftz". */
static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
