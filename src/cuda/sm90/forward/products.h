/* SPDX-License-Identifier: BSD-3-Clause
 *
 * products.h: the two products of a block on the tensor cores, Q K^T and P V, and their operands in shared memory. Included
 * by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_PRODUCTS_H
#define STROBE_CUDA_SM90_FORWARD_PRODUCTS_H

#include "cuda/ptx/wgmma_rows.h"
#include "cuda/sm90/forward/shared.h"

#define JOIN_(a, b)     a##b
#define JOIN(a, b)      JOIN_(a, b)
#define SCORES_STEP     JOIN(wgmma_ss_, KEYS)
#define ACCUMULATE_STEP JOIN(wgmma_rs_, HEAD_DIM)

/* The descriptor of stage 0 of K or V, whose eights of rows are KV_EIGHT bytes apart. */
INLINE uint64_t kv_operand(const unsigned char *stage, uint32_t slab_bytes) {
    return wgmma_operand(shared_address(stage), slab_bytes) + ((uint64_t)((KV_EIGHT - 8 * ROW_BYTES) / 16) << 32);
}

/* Issues S = Q K^T. */
INLINE void issue_scores(float (&s)[SCORES], uint64_t q, uint64_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        const int columns = step % 4 * 2;
        SCORES_STEP(s, q + step / 4 * (Q_SLAB / 16) + columns, k + step / 4 * (SLAB_STEP / 16) + columns, step > 0);
    }
    wgmma_commit();
}

/* Issues O += P V. */
INLINE void issue_accumulate(float (&o)[OUTPUTS], const uint32_t (&packed)[SCORES / 2], uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) ACCUMULATE_STEP(o, &packed[4 * step], v + step * (2 * KV_EIGHT / 16));
    wgmma_commit();
}

/* The same or, with add 0, O = P V: O need not be zeros before a tile's first product. */
#if HEAD_DIM == 128 || HEAD_DIM == 256
#define FIRST_STEP JOIN(wgmma_rn_, HEAD_DIM)
INLINE void issue_accumulate_to(float (&o)[OUTPUTS], const uint32_t (&packed)[SCORES / 2], uint64_t v, int add) {
    wgmma_fence();
    FIRST_STEP(o, &packed[0], v, add);
#pragma unroll
    for (int step = 1; step < KEYS / 16; ++step) ACCUMULATE_STEP(o, &packed[4 * step], v + step * (2 * KV_EIGHT / 16));
    wgmma_commit();
}
#endif

#define STAGE_STEP  (SLABS * KV_SLAB / 16) /* from stage to stage in a descriptor */
#define Q_SLOT_STEP (GROUP_BYTES / 16)

#endif
