/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stmatrix.h: four 8 x 8 matrices of 16-bit elements from a warp's registers, one register each, to shared memory. Lane l
 * gives the address of row l % 8 of matrix l / 8, a multiple of 16 bytes. From sm_90 on. */
#ifndef STROBE_CUDA_PTX_STMATRIX_H
#define STROBE_CUDA_PTX_STMATRIX_H

#include <stdint.h>

/* Lane l holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4. PTX ISA 9.7.14.5.16 "stmatrix". */
static __device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Each matrix transposed: lane l holds elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4) of it. PTX ISA 9.7.14.5.16
 * "stmatrix". */
static __device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, const uint32_t *r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

#endif
