/* SPDX-License-Identifier: BSD-3-Clause
 *
 * system.h: memory that several GPUs and the host see: what a thread of one tells those of others (PTX ISA 8, memory
 * consistency model, scope .sys). */
#ifndef STROBE_CUDA_PTX_SYSTEM_H
#define STROBE_CUDA_PTX_SYSTEM_H

#include <stdint.h>

/* Who sees the value sees what this thread wrote before, and what it had seen. */
static __device__ __forceinline__ void system_store_release(uint32_t *to, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t system_load_acquire(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

static __device__ __forceinline__ void system_fence(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

#endif
