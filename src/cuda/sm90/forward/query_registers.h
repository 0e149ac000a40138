/* SPDX-License-Identifier: BSD-3-Clause
 *
 * query_registers.h: Q in the consumers' registers: the A operands of the steps of 16 columns. At 256 columns a half of
 * them would fit, and loses. Included by plain.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_QUERY_REGISTERS_H
#define STROBE_CUDA_SM90_FORWARD_QUERY_REGISTERS_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/wgmma_rows.h"
#include "cuda/sm90/forward/products.h"

#define SCORES_ROWS_STEP JOIN(wgmma_rk_, KEYS)

enum { Q_STEPS = HEAD_DIM / 16 };

struct query_registers {
    uint32_t of_step[Q_STEPS][4];
};

/* Loads the warp's sixteen rows of a group's slot. Lane l gives the address of row l % 8 of four matrices of 8 x 8: of the
 * first and the last eight rows, in two neighbouring eights of columns. */
INLINE void load_query(struct query_registers *query, const unsigned char *slot) {
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x % 128 / 32 * 16 + lane % 16;
    const uint32_t from = shared_address(slot) + row * ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < Q_STEPS; ++step) ldmatrix_x4(query->of_step[step], (from ^ step % 4 * 32) + step / 4 * Q_SLAB);
}

/* Issues S = Q K^T. */
INLINE void issue_scores_of(float (&s)[SCORES], const struct query_registers *query, uint64_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Q_STEPS; ++step)
        SCORES_ROWS_STEP(s, query->of_step[step], k + step / 4 * (SLAB_STEP / 16) + step % 4 * 2, step > 0);
    wgmma_commit();
}

#endif
