/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_shape.h: tiles of the decode kernels, by -D: N_TILES, WARPS_M, WARPS_N, DIM. The rows of a CTA are one tile of 16 a
 * warp, and its warps split the keys of a block where there are more of them than tiles. */
#ifndef STROBE_CUDA_SM80_DECODE_SHAPE_H
#define STROBE_CUDA_SM80_DECODE_SHAPE_H

#define FEATURES 1
#define DIM_V    DIM

#include "cuda/device/element.h"

enum {
    M_TILES = 1,
    BLOCK_M = 16 * WARPS_M,
    BLOCK_N = 8 * N_TILES * WARPS_N,
    THREADS = 32 * WARPS_M * WARPS_N,
    Q_BYTES = BLOCK_M * DIM * ELEMENT_BYTES,
};

#endif
