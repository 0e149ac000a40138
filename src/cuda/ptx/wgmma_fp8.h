/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_fp8.h: Hopper's products of e4m3, D[64][N] (+)= A[64][32] B[32][N], depth 32 bytes a step, fp32 accumulation of
 * which about 14 bits are kept (PTX ISA 9.7.15). Both operands in shared memory have the depth axis contiguous; there is no
 * transposed form. Accumulators lie as in wgmma.h. With q = l % 4, a lane l holds of A in registers
 *     a0 (row l / 4, k 4q..4q + 3)  a1 (row l / 4 + 8, the same)  a2 (row l / 4, k 16 + 4q..)  a3 (row l / 4 + 8, k 16 +
 * 4q..)
 *
 * wgmma_e4m3_ss_<N>(d, a, b, add), wgmma_e4m3_rs_<N>(d, a, b, add): add 0 starts anew. Included after wgmma.h. */
#ifndef STROBE_CUDA_PTX_WGMMA_FP8_H
#define STROBE_CUDA_PTX_WGMMA_FP8_H

#include "cuda/ptx/wgmma.h"

#define WGMMA_E4M3(n, d, operands) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" d "}, " operands ", p, 1, 1;"
#define WGMMA_4(mode, d, i)        mode(d[i]), mode(d[(i) + 1]), mode(d[(i) + 2]), mode(d[(i) + 3])
#define WGMMA_D36                  WGMMA_D32 ", %32, %33, %34, %35"
#define WGMMA_D68                  WGMMA_D64 ", %64, %65, %66, %67"

static __device__ __forceinline__ void wgmma_e4m3_ss_128(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;" WGMMA_E4M3(128, WGMMA_D64, "%64, %65") "}"
                 : WGMMA_64("+f", d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_e4m3_rs_72(float (&d)[36], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %41, 0;" WGMMA_E4M3(72, WGMMA_D36, "{%36, %37, %38, %39}, %40") "}"
                 : WGMMA_32("+f", d, 0), WGMMA_4("+f", d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_e4m3_rs_136(float (&d)[68], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %73, 0;" WGMMA_E4M3(136, WGMMA_D68, "{%68, %69, %70, %71}, %72") "}"
                 : WGMMA_64("+f", d, 0), WGMMA_4("+f", d, 64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#endif
