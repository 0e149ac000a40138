/* SPDX-License-Identifier: BSD-3-Clause
 *
 * integer.h: for src/cuda/ptx/integer.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_INTEGER_H
#define STROBE_CUDA_EMULATED_PTX_INTEGER_H

#include <stdint.h>

static inline uint64_t full_product(uint32_t a, uint32_t b) { return (uint64_t)a * b; }
static inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    const uint32_t low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff, high = (a >> 16) > (b >> 16) ? a : b;
    return low | (high & 0xffff0000u);
}
template <int low, int high> static inline uint32_t signs_of_bytes(uint32_t x) {
    return __byte_perm(x, 0, 0x8888 | low * 0x11 | high * 0x1100);
}

#endif
