/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_rows.h: for src/cuda/ptx/wgmma_rows.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_ROWS_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_ROWS_H

#include "cuda/ptx/wgmma.h"

static inline void wgmma_rk_64(float (&d)[32], const uint32_t *a, uint64_t b, int add) {
    emulated_wgmma_of({d, a, 0, b, 64, add, false, false, false});
}
static inline void wgmma_rk_128(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    emulated_wgmma_of({d, a, 0, b, 128, add, false, false, false});
}
static inline void wgmma_rn_128(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    emulated_wgmma_of({d, a, 0, b, 128, add, false, false, true});
}
static inline void wgmma_rn_256(float (&d)[128], const uint32_t *a, uint64_t b, int add) {
    emulated_wgmma_of({d, a, 0, b, 256, add, false, false, true});
}

#endif
