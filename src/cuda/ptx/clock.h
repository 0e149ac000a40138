/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clock.h: the time, as a multiprocessor and as the whole GPU count it (PTX ISA 10, special registers). */
#ifndef STROBE_CUDA_PTX_CLOCK_H
#define STROBE_CUDA_PTX_CLOCK_H

#include <stdint.h>

static __device__ __forceinline__ uint64_t multiprocessor_clock(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}

static __device__ __forceinline__ uint32_t clock_low(void) {
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

static __device__ __forceinline__ uint64_t global_nanoseconds(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

static __device__ __forceinline__ uint32_t multiprocessor_index(void) {
    uint32_t index;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
    return index;
}

#endif
