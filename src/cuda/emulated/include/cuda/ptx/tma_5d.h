/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tma_5d.h: for src/cuda/ptx/tma_5d.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_TMA_5D_H
#define STROBE_CUDA_EMULATED_PTX_TMA_5D_H

#include "cuda/ptx/tma.h"

static inline void tma_load_5d(void *to, const CUtensorMap *map, uint64_t *barrier, const int (&at)[5], uint64_t) {
    emulated_load_box(to, map, barrier, at, 5);
}

#endif
