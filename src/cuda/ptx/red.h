/* SPDX-License-Identifier: BSD-3-Clause
 *
 * red.h: sums in global memory that many blocks of threads add to, in no particular order. A warp adds 32 x 4 values to a
 * run of 128: which value lies where differs with the GPU, so that every instruction covers whole sectors of L2. Kernels
 * that add and kernels that read are built for the same GPUs. */
#ifndef STROBE_CUDA_PTX_RED_H
#define STROBE_CUDA_PTX_RED_H

/* PTX ISA 9.7.13.9 "red", .add.f32; .v4 from sm_90 on, its address a multiple of 16 bytes. */
static __device__ __forceinline__ void red_add_4(float *run, int lane, const float c[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(run + 4 * lane), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
#else
    for (int x = 0; x < 4; ++x)
        asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(run + 32 * x + lane), "f"(c[x]) : "memory");
#endif
}

/* The values that a lane added. */
static __device__ __forceinline__ float4 red_read_4(const float *run, int lane) {
#if __CUDA_ARCH__ >= 900
    return *(const float4 *)(run + 4 * lane);
#else
    return make_float4(run[lane], run[32 + lane], run[64 + lane], run[96 + lane]);
#endif
}

#endif
