/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_rows.h: more of wgmma.h's products, D (+)= A B with A in four registers; add 0 starts anew.
 *
 *     wgmma_rk_<N>(d, a, b, add)  B's depth axis is contiguous, as that of K in Q K^T
 *     wgmma_rn_<N>(d, a, b, add)  its N axis is, as that of V in P V: wgmma_rs_<N> that can start anew */
#ifndef STROBE_CUDA_PTX_WGMMA_ROWS_H
#define STROBE_CUDA_PTX_WGMMA_ROWS_H

#include "cuda/ptx/wgmma.h"

/* `numbers`: of D's registers, a_numbers: of A's, b_number and p: of b and add. */
#define WGMMA_RK(n, numbers, a_numbers, b_number, p, ...)                                                           \
    static __device__ __forceinline__ void wgmma_rk_##n(float(&d)[n / 2], const uint32_t *a, uint64_t b, int add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " p                                                             \
                     ", 0;" WGMMA_TEXT(n, numbers, "{" a_numbers "}, " b_number ", p, 1, 1, 0") "}"                 \
                     : __VA_ARGS__                                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                               \
    }
WGMMA_RK(64, WGMMA_D32, "%32, %33, %34, %35", "%36", "%37", WGMMA_32("+f", d, 0))
WGMMA_RK(128, WGMMA_D64, "%64, %65, %66, %67", "%68", "%69", WGMMA_64("+f", d, 0))
#undef WGMMA_RK

#define WGMMA_RN(n, numbers, a_numbers, b_number, p, ...)                                                           \
    static __device__ __forceinline__ void wgmma_rn_##n(float(&d)[n / 2], const uint32_t *a, uint64_t b, int add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " p                                                             \
                     ", 0;" WGMMA_TEXT(n, numbers, "{" a_numbers "}, " b_number ", p, 1, 1, 1") "}"                 \
                     : __VA_ARGS__                                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                               \
    }
WGMMA_RN(128, WGMMA_D64, "%64, %65, %66, %67", "%68", "%69", WGMMA_64("+f", d, 0))
WGMMA_RN(256, WGMMA_D128, "%128, %129, %130, %131", "%132", "%133", WGMMA_64("+f", d, 0), WGMMA_64("+f", d, 64))
#undef WGMMA_RN

#endif
