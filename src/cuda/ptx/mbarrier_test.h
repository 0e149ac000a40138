/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mbarrier_test.h: whether a phase of a barrier in shared memory has completed, without waiting; see mbarrier.h. */
#ifndef STROBE_CUDA_PTX_MBARRIER_TEST_H
#define STROBE_CUDA_PTX_MBARRIER_TEST_H

#include "cuda/ptx/mbarrier.h"

/* Not 0: what the phase's arrivals and copies have written is seen. 0: not yet. */
static __device__ __forceinline__ uint32_t mbarrier_test(uint64_t *barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done;
}

#endif
