/* SPDX-License-Identifier: BSD-3-Clause
 *
 * semaphore.h: a counter in global memory by which CTAs wait for each other (PTX ISA 9.7.9.8 "ld", 9.7.13.8 "red"). What a
 * CTA wrote before it posts is seen by the CTA that has waited for that count. The deterministic backward keeps its dQ order
 * by such counters. */
#ifndef STROBE_CUDA_PTX_SEMAPHORE_H
#define STROBE_CUDA_PTX_SEMAPHORE_H

#include <stdint.h>

/* Spins until the counter is exactly `count`. */
static __device__ __forceinline__ void semaphore_wait(const uint32_t *counter, uint32_t count) {
    uint32_t now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    while (now != count);
}

/* Adds one to the counter. */
static __device__ __forceinline__ void semaphore_post(uint32_t *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/* What the counter is now, without making the thread's own loads wait for it and forget what the first-level cache has:
 * whoever adds to sums in the L2 cache by the copy engine needs neither. */
static __device__ __forceinline__ uint32_t semaphore_now(const uint32_t *counter) {
    uint32_t now;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    return now;
}

#endif
