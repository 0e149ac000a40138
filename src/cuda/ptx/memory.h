/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.h: global memory: what one CTA tells another (PTX ISA 8, memory consistency model), and what is sent for ahead. */
#ifndef STROBE_CUDA_PTX_MEMORY_H
#define STROBE_CUDA_PTX_MEMORY_H

#include <stdint.h>

/* Who sees the value sees what this thread wrote before. */
static __device__ __forceinline__ void store_release(uint64_t *to, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *from) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

/* The line that holds an address, to the multiprocessor's own cache: a load of a byte that nothing waits for. */
static __device__ __forceinline__ uint32_t fetch_line(const void *address) {
    uint32_t value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}

/* The line that holds an address, to L2. */
static __device__ __forceinline__ void prefetch_line(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

#endif
