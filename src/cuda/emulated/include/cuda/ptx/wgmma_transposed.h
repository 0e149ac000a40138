/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma_transposed.h: for src/cuda/ptx/wgmma_transposed.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_TRANSPOSED_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_TRANSPOSED_H

#include "cuda/ptx/wgmma.h"

static inline void wgmma_ss_64_first(float (&d)[32], uint64_t a, uint64_t b) { wgmma_ss_64(d, a, b, 0); }
static inline void wgmma_ss_64_less(float (&d)[32], uint64_t a, uint64_t b) { wgmma_ss_64(d, a, b, -1); }
static inline void wgmma_ss_128_first(float (&d)[64], uint64_t a, uint64_t b) { wgmma_ss_128(d, a, b, 0); }
static inline void wgmma_st_64_first(float (&d)[32], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 64, 0, false, false, true});
}
static inline void wgmma_st_64(float (&d)[32], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 64, 1, false, false, true});
}
static inline void wgmma_st_128(float (&d)[64], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 128, 1, false, false, true});
}
static inline void wgmma_st_48_first(float (&d)[24], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 48, 0, false, false, true});
}
static inline void wgmma_st_48(float (&d)[24], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 48, 1, false, false, true});
}
static inline void wgmma_rd_48_first(float (&d)[24], const uint32_t *a, uint64_t b) {
    emulated_wgmma_of({d, a, 0, b, 48, 0, false, false, false});
}
static inline void wgmma_rd_48(float (&d)[24], const uint32_t *a, uint64_t b) {
    emulated_wgmma_of({d, a, 0, b, 48, 1, false, false, false});
}
static inline void wgmma_sd_48(float (&d)[24], uint64_t a, uint64_t b) {
    emulated_wgmma_of({d, nullptr, a, b, 48, 1, false, false, false});
}

#endif
