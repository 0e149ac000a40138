/* SPDX-License-Identifier: BSD-3-Clause
 *
 * warp_group.h: for src/cuda/ptx/warp_group.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_WARP_GROUP_H
#define STROBE_CUDA_EMULATED_PTX_WARP_GROUP_H

#include "cuda/emulated/machine.h"

#define registers_release(count) ((void)(count))
#define registers_claim(count)   ((void)(count))

static inline void named_barrier_wait(int id, int threads) { emulated_barrier_wait(id, threads); }
static inline void named_barrier_arrive(int id, int threads) { emulated_barrier_arrive(id, threads); }
static inline int unforeseen(int x) { return x; }

#endif
