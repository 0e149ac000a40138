/* SPDX-License-Identifier: BSD-3-Clause
 *
 * semaphore.h: for src/cuda/ptx/semaphore.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_SEMAPHORE_H
#define STROBE_CUDA_EMULATED_PTX_SEMAPHORE_H

#include <stdint.h>

#include "cuda/emulated/machine.h"

struct emulated_semaphore {
    const uint32_t *counter;
    uint32_t count;
};

static inline bool emulated_has_count(void *of) {
    const emulated_semaphore *s = (const emulated_semaphore *)of;
    return __atomic_load_n(s->counter, __ATOMIC_ACQUIRE) == s->count;
}

static inline void semaphore_wait(const uint32_t *counter, uint32_t count) {
    emulated_semaphore s = {counter, count};
    emulated_wait(emulated_has_count, &s, "a semaphore");
}
static inline void semaphore_post(uint32_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELEASE); }
static inline uint32_t semaphore_now(const uint32_t *counter) {
    emulated_yield();
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

#endif
