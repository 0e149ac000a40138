/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cluster_push.h: numbers from registers to the shared memory of another CTA of the cluster, whose mbarrier counts their
 * bytes. Who has waited for it sees them: no fence is needed, which costs as much as a way to memory. */
#ifndef STROBE_CUDA_PTX_CLUSTER_PUSH_H
#define STROBE_CUDA_PTX_CLUSTER_PUSH_H

#include "cuda/ptx/cluster.h"

/* The two halves of a barrier of all threads of all CTAs, with which nothing becomes visible but mbarriers whose
 * initialisation was fenced (mbarrier_init_fence()). All threads, nothing of the cluster's between them. PTX ISA 9.7.13.4.
 */
static __device__ __forceinline__ void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* to, barrier: by cluster_address(), of the same CTA; to: a multiple of 8, of 16. PTX ISA 9.7.9.12 "st.async". */
static __device__ __forceinline__ void push_2(uint32_t to, float2 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x.x),
                 "f"(x.y), "r"(barrier)
                 : "memory");
}
static __device__ __forceinline__ void push_4(uint32_t to, float4 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}

#endif
