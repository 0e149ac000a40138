/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cluster.h: for src/cuda/ptx/cluster.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_CLUSTER_H
#define STROBE_CUDA_EMULATED_PTX_CLUSTER_H

#include "cuda/ptx/bulk.h"

static inline int cluster_rank(void) { return (int)emulated_rank; }
static inline void cluster_barrier(void) { emulated_cluster_barrier(); }

static inline uint32_t cluster_address(const void *pointer, int rank) {
    return emulated_cluster_address(shared_address(pointer), rank);
}

static inline void mbarrier_arrive_at(uint32_t barrier) {
    emulated_mbarrier_arrive((uint64_t *)emulated_shared_pointer(barrier), 1, 0, 0);
}

static inline void bulk_copy_to_cta(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    bulk_load(emulated_shared_pointer(to), from, bytes, (uint64_t *)emulated_shared_pointer(barrier));
}

#endif
