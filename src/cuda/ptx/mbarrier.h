/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mbarrier.h: barriers in shared memory that count arrivals and bytes (PTX ISA 9.7.13.15). A phase completes when all
 * arrivals are in and all expected bytes have landed. Waiting names the parity of the phase waited for: a fresh barrier
 * has completed "the phase before", parity 1. So the reader of data starts with parity 0 and its writer, who waits for
 * empty room, with parity 1. */
#ifndef STROBE_CUDA_PTX_MBARRIER_H
#define STROBE_CUDA_PTX_MBARRIER_H

#include "cuda/ptx/shared_address.h"

static __device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes the initialised barriers visible to the copy engine. */
static __device__ __forceinline__ void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives, and adds bytes to what the phase has to see. */
static __device__ __forceinline__ void mbarrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "WAIT_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra WAIT_%=;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* What this thread wrote to shared memory is seen by the copy engine and by wgmma (PTX ISA 9.7.13.4, proxies), once a
 * barrier has told them. */
static __device__ __forceinline__ void fence_proxy_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same for global memory: after this the copy engine sees what this thread has seen there. */
static __device__ __forceinline__ void fence_proxy_async_global(void) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

#endif
