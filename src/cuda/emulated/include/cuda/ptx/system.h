/* SPDX-License-Identifier: BSD-3-Clause
 *
 * system.h: for src/cuda/ptx/system.h. Memory that processes share is that of the host. */
#ifndef STROBE_CUDA_EMULATED_PTX_SYSTEM_H
#define STROBE_CUDA_EMULATED_PTX_SYSTEM_H

#include <stdint.h>

#include <sched.h>

static inline void system_store_release(uint32_t *to, uint32_t value) { __atomic_store_n(to, value, __ATOMIC_SEQ_CST); }
static inline uint32_t system_load_acquire(const uint32_t *from) {
    emulated_yield(); /* who asks may be waiting for another process */
    sched_yield();
    return __atomic_load_n(from, __ATOMIC_SEQ_CST);
}
static inline void system_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#endif
