/* SPDX-License-Identifier: BSD-3-Clause
 *
 * movmatrix.h: an 8 x 8 matrix of 16-bit elements in a warp's registers, transposed. Lane l has elements 2 (l % 4) and the
 * next of row l / 4, as a tile of accumulators has them. From sm_75 on. */
#ifndef STROBE_CUDA_PTX_MOVMATRIX_H
#define STROBE_CUDA_PTX_MOVMATRIX_H

/* PTX ISA 9.7.14.5.17 "movmatrix". */
static __device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

#endif
