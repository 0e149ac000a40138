/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mbarrier.h: for src/cuda/ptx/mbarrier.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_MBARRIER_H
#define STROBE_CUDA_EMULATED_PTX_MBARRIER_H

#include "cuda/ptx/shared_address.h"

static inline void mbarrier_init(uint64_t *barrier, uint32_t arrivals) { emulated_mbarrier_init(barrier, arrivals); }
static inline void mbarrier_init_fence(void) {}
static inline void mbarrier_arrive(uint64_t *barrier) { emulated_mbarrier_arrive(barrier, 1, 0, 0); }
static inline void mbarrier_expect(uint64_t *barrier, uint32_t bytes) { emulated_mbarrier_arrive(barrier, 1, bytes, 0); }
static inline void mbarrier_wait(uint64_t *barrier, uint32_t parity) { emulated_mbarrier_wait(barrier, parity); }
static inline void fence_proxy_async(void) {}
static inline void fence_proxy_async_global(void) {}

#endif
