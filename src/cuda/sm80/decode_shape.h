/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_shape.h: tiles of the decode kernels, by -D: N_TILES, WARPS_M, WARPS_N, DIM. The rows of a CTA are one tile of 16 a
 * warp, and its warps split the keys of a block where there are more of them than tiles. TURNED=1: eight rows, over bytes
 * (decode_turned.h). */
#ifndef STROBE_CUDA_SM80_DECODE_SHAPE_H
#define STROBE_CUDA_SM80_DECODE_SHAPE_H

#define FEATURES 1
#if !defined(TURNED)
#define TURNED 0
#endif
#define DIM_V DIM

#include "cuda/device/element.h"

enum {
    M_TILES = 1,
    BLOCK_M = 16 * WARPS_M,
    BLOCK_N = 8 * N_TILES * WARPS_N,
    THREADS = 32 * WARPS_M * WARPS_N,
    Q_BYTES = BLOCK_M * DIM * ELEMENT_BYTES,
    O_TILES = TURNED ? DIM / 16 : DIM / 8, /* of accumulators of O, and of a warp's scores of a block */
    SCORE_TILES = TURNED ? N_TILES / 2 : N_TILES,
};

/* A lane has two rows of its warp's tile: which, and which of them accumulator x of a tile belongs to. */
INLINE int row_of_lane(int lane, int half) { return TURNED ? lane % 4 * 2 + half : lane / 4 + 8 * half; }
INLINE int half_of(int x) { return TURNED ? x % 2 : x / 2; }

/* The sum of what the lanes have of a row; the first of them stores what there is of it once. */
INLINE float sum_of_row(float x) {
#pragma unroll
    for (int w = TURNED ? 4 : 1; w < (TURNED ? 32 : 4); w *= 2) x += __shfl_xor_sync(0xffffffffu, x, w);
    return x;
}
INLINE bool is_first_of_row(int lane) { return TURNED ? lane / 4 == 0 : lane % 4 == 0; }

#endif
