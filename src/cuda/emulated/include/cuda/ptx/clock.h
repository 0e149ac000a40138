/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clock.h: for src/cuda/ptx/clock.h; this machine has no clock. */
#ifndef STROBE_CUDA_EMULATED_PTX_CLOCK_H
#define STROBE_CUDA_EMULATED_PTX_CLOCK_H

#include <stdint.h>

static inline uint64_t multiprocessor_clock(void) { return 0; }
static inline uint32_t clock_low(void) { return 0; }
static inline uint64_t global_nanoseconds(void) { return 0; }
static inline uint32_t multiprocessor_index(void) { return 0; }

#endif
