/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_fp8.h: Hopper's products of e4m3, D[64][N] (+)= A[64][32] B[32][N], depth 32 bytes a step, fp32 accumulation of
 * which about 14 bits are kept (PTX ISA 9.7.15). Both operands in shared memory have the depth axis contiguous; there is no
 * transposed form. Accumulators lie as in wgmma.h. With q = l % 4, a lane l holds of A in registers
 *     a0 (row l / 4, k 4q..4q + 3)  a1 (row l / 4 + 8, the same)  a2 (row l / 4, k 16 + 4q..)  a3 (row l / 4 + 8, k 16 +
 * 4q..)
 *
 * wgmma_e4m3_ss_<N>(d, a, b): D += A B, both in shared memory. wgmma_e4m3_rs_<N>: A in four registers. The functions _start
 * write D = A B, whatever D held: its registers are free before. Included after wgmma.h. */
#ifndef STROBE_CUDA_PTX_WGMMA_FP8_H
#define STROBE_CUDA_PTX_WGMMA_FP8_H

#include "cuda/ptx/wgmma.h"

#define WGMMA_E4M3(n, d, operands, add) \
    "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" d "}, " operands ", " add ", 1, 1;"
#define WGMMA_4(mode, d, i) mode(d[i]), mode(d[(i) + 1]), mode(d[(i) + 2]), mode(d[(i) + 3])
#define WGMMA_D36           WGMMA_D32 ", %32, %33, %34, %35"

static __device__ __forceinline__ void wgmma_e4m3_ss_128(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_E4M3(128, WGMMA_D64, "%64, %65", "1") : WGMMA_64("+f", d, 0) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void wgmma_e4m3_ss_128_start(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(WGMMA_E4M3(128, WGMMA_D64, "%64, %65", "0") : WGMMA_64("=f", d, 0) : "l"(a), "l"(b));
}

/* `d`: the numbers of D's registers, `ab` those of a and b. */
#define WGMMA_E4M3_RS(n, registers, d_numbers, ab, list)                                                                    \
    static __device__ __forceinline__ void wgmma_e4m3_rs_##n(float(&d)[registers], const uint32_t *a, uint64_t b) {         \
        asm volatile(WGMMA_E4M3(n, d_numbers, ab, "1")                                                                      \
                     : list("+f", d)                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                 \
    }                                                                                                                       \
    static __device__ __forceinline__ void wgmma_e4m3_rs_##n##_start(float(&d)[registers], const uint32_t *a, uint64_t b) { \
        asm volatile(WGMMA_E4M3(n, d_numbers, ab, "0")                                                                      \
                     : list("=f", d)                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                 \
    }
#define WGMMA_LIST_32(mode, d) WGMMA_8(mode, d, 0), WGMMA_8(mode, d, 8)
WGMMA_E4M3_RS(32, 16, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "{%16, %17, %18, %19}, %20",
              WGMMA_LIST_32)
#define WGMMA_LIST_40(mode, d) WGMMA_8(mode, d, 0), WGMMA_8(mode, d, 8), WGMMA_4(mode, d, 16)
WGMMA_E4M3_RS(40, 20, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19",
              "{%20, %21, %22, %23}, %24", WGMMA_LIST_40)
#define WGMMA_LIST_64(mode, d) WGMMA_32(mode, d, 0)
WGMMA_E4M3_RS(64, 32, WGMMA_D32, "{%32, %33, %34, %35}, %36", WGMMA_LIST_64)
#define WGMMA_LIST_72(mode, d) WGMMA_32(mode, d, 0), WGMMA_4(mode, d, 32)
WGMMA_E4M3_RS(72, 36, WGMMA_D36, "{%36, %37, %38, %39}, %40", WGMMA_LIST_72)
#undef WGMMA_E4M3_RS

#endif
