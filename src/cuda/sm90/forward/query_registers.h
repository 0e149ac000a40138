/* SPDX-License-Identifier: BSD-3-Clause
 *
 * query_registers.h: Q in the consumers' registers, where they have room for it: the A operands of the first Q_STEPS steps
 * of 16 columns, of HEAD_DIM / 16. The others are read from shared memory. Included by plain.cu alone, after its -D
 * constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_QUERY_REGISTERS_H
#define STROBE_CUDA_SM90_FORWARD_QUERY_REGISTERS_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/wgmma_rows.h"
#include "cuda/sm90/forward/products.h"

#if HEAD_DIM == 128 && KEYS == 128 /* at 256, 8 of 16 steps fit, and lose */
#define Q_STEPS 8
#else
#define Q_STEPS 0
#endif
#define SCORES_ROWS_STEP JOIN(wgmma_rk_, KEYS)

enum { HOLDS_QUERY = Q_STEPS * 16 == HEAD_DIM }; /* all of it: its slot is free when it is loaded */

struct query_registers {
    uint32_t of_step[Q_STEPS > 0 ? Q_STEPS : 1][4];
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
INLINE void issue_scores_of(float (&s)[SCORES], const struct query_registers *query, uint64_t q, uint64_t k) {
#if Q_STEPS > 0
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        const int columns = step % 4 * 2;
        const uint64_t keys = k + step / 4 * (SLAB_STEP / 16) + columns;
        if (step < Q_STEPS)
            SCORES_ROWS_STEP(s, query->of_step[step], keys, step > 0);
        else
            SCORES_STEP(s, q + step / 4 * (Q_SLAB / 16) + columns, keys, step > 0);
    }
    wgmma_commit();
#else
    (void)query;
    issue_scores(s, q, k);
#endif
}

#endif
