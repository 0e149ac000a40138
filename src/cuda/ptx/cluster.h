/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cluster.h: the CTAs of a cluster (PTX ISA 9.7.13.4 "barrier.cluster", 9.7.9.22 "mapa"): each other's shared memory, and
 * mbarriers in it (distributed shared memory). All threads pass cluster_barrier() before the first access to another CTA's
 * memory, and before any CTA ends. */
#ifndef STROBE_CUDA_PTX_CLUSTER_H
#define STROBE_CUDA_PTX_CLUSTER_H

#include "cuda/ptx/mbarrier.h"

static __device__ __forceinline__ int cluster_rank(void) {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

/* A barrier of all threads of all CTAs. It orders no memory but mbarriers that were initialised before, behind
 * mbarrier_init_fence(): an arrival that released would first wait until all that its CTA has stored stands in the L2 cache.
 */
static __device__ __forceinline__ void cluster_barrier(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The address of CTA `rank`'s copy of what stands at `pointer` in this CTA's shared memory. */
static __device__ __forceinline__ uint32_t cluster_address(const void *pointer, int rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
    return address;
}

/* Arrives at an mbarrier of another CTA, by such an address: this thread, and products and copies that it has waited for,
 * have read what the barrier guards. What it has written is not promised to the other CTA: a release to the cluster would
 * wait until all of the thread's stores and additions stand in the L2 cache. */
static __device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Bytes to another CTA, whose mbarrier counts them. */
static __device__ __forceinline__ void bulk_copy_to_cta(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(shared_address(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

#endif
