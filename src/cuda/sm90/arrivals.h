/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arrivals.h: how a warp says at an mbarrier that it is done with what the barrier guards. One lane arrives for all of them,
 * after __syncwarp() or after an instruction that the whole warp takes part in. The sanitizer's racecheck does not follow
 * that: in builds for racecheck, -DSTROBE_RACECHECK, every lane arrives. Barriers are initialised with ARRIVALS a warp. */
#ifndef STROBE_CUDA_SM90_ARRIVALS_H
#define STROBE_CUDA_SM90_ARRIVALS_H

#include "cuda/device/element.h"
#include "cuda/ptx/mbarrier.h"

#if defined(STROBE_RACECHECK)
#define ARRIVALS 32
#else
#define ARRIVALS 1
#endif

/* Whether the thread is one that arrives. */
INLINE bool is_arriving(void) { return ARRIVALS == 32 || threadIdx.x % 32 == 0; }

/* Once a warp whose lanes are together. */
INLINE void arrive_together(uint64_t *barrier) {
    if (is_arriving()) mbarrier_arrive(barrier);
}

/* Once a warp: what its lanes have read and written before is done. */
INLINE void arrive_as_warp(uint64_t *barrier) {
    __syncwarp();
    arrive_together(barrier);
}

#endif
