/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ldmatrix.h: four 8 x 8 matrices of 16-bit elements from shared memory into a warp's registers, one register each. Lane l
 * gives the address of row l % 8 of matrix l / 8, a multiple of 16 bytes. From sm_75 on. */
#ifndef STROBE_CUDA_PTX_LDMATRIX_H
#define STROBE_CUDA_PTX_LDMATRIX_H

#include "cuda/ptx/shared_address.h"

/* PTX ISA 9.7.14.5.15 "ldmatrix", .m8n8.x4. volatile and "memory": shared memory changes behind the compiler's back. */
static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* The same with each matrix transposed. */
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

#endif
