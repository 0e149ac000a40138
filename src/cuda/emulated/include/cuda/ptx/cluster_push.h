/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cluster_push.h: for src/cuda/ptx/cluster_push.h. The barrier's first half is left to the second. */
#ifndef STROBE_CUDA_EMULATED_PTX_CLUSTER_PUSH_H
#define STROBE_CUDA_EMULATED_PTX_CLUSTER_PUSH_H

#include "cuda/ptx/cluster.h"

static inline void cluster_arrive(void) {}
static inline void cluster_wait(void) { emulated_cluster_barrier(); }

static inline void emulated_push(uint32_t to, const void *x, uint32_t bytes, uint32_t barrier) {
    if (to % bytes) emulated_fault("st.async of %u bytes to an address that is no multiple of them", bytes);
    memcpy(emulated_shared_pointer(to), x, bytes);
    emulated_mbarrier_arrive((uint64_t *)emulated_shared_pointer(barrier), 0, 0, (int64_t)bytes);
}
static inline void push_2(uint32_t to, float2 x, uint32_t barrier) { emulated_push(to, &x, sizeof x, barrier); }
static inline void push_4(uint32_t to, float4 x, uint32_t barrier) { emulated_push(to, &x, sizeof x, barrier); }

#endif
