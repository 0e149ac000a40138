/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.h: for src/cuda/ptx/memory.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_MEMORY_H
#define STROBE_CUDA_EMULATED_PTX_MEMORY_H

#include <stdint.h>

static inline void store_release(uint64_t *to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
static inline uint64_t load_acquire(const uint64_t *from) {
    emulated_yield(); /* who asks may be waiting for another thread */
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
static inline uint32_t fetch_line(const void *address) { return *(const volatile unsigned char *)address; }
static inline void prefetch_line(const void *) {}

#endif
