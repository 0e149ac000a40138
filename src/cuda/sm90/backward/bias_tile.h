/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bias_tile.h (backward): a bias of the elements' type, in variants that have a bias alone. Each warp has the bias of its
 * sixteen keys and a block of rows copied to shared memory by the tensor copy engine, and asks for that of the next block as
 * soon as it has loaded this one's, transposed, as matrices whose elements lie as its scores do. A bias of -inf needs no
 * care here: what a NaN of a hidden key has met in it is not finite, and computed again (exact_row.h). */
#ifndef STROBE_CUDA_SM90_BACKWARD_BIAS_TILE_H
#define STROBE_CUDA_SM90_BACKWARD_BIAS_TILE_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/backward/score_terms.h"

enum {
    HAS_BIAS_TILES = FEATURE_CLASS == FEATURES_BIAS,
    BIAS_ROW_BYTES = 32, /* of sixteen keys */
    BIAS_TILE = ROWS * BIAS_ROW_BYTES,
    BIAS_WARPS = HAS_BIAS_TILES ? 8 : 0,
};

struct bias_tiles {
    unsigned char
        tile[BIAS_WARPS ? BIAS_WARPS : NO_ELEMENTS]
            [BIAS_WARPS || !NO_ELEMENTS ? BIAS_TILE : 256]; /* aligned to 256 bytes, which the swizzle repeats after */
};

INLINE int bias_warp(void) { return (int)threadIdx.x / 32 - 4; }

/* One lane sends for the bias of the warp's keys from `key` on, and the rows from `row` on. */
INLINE void fetch_bias(const struct sm90_backward_params *p, struct bias_tiles *s, uint64_t *full, int batch, int head,
                       int key, int row) {
    __syncwarp();
    if (threadIdx.x % 32 > 0) return;
    mbarrier_expect(full, BIAS_TILE);
    tma_load_4d(s->tile[bias_warp()], &p->bias_map, full, key, row, p->bias.head ? head : 0, p->bias.batch ? batch : 0,
                TMA_EVICT_FIRST);
}

/* Scale and bias of the `count`th block. Lane l gives the address of row l % 8 of four matrices of 8 x 8: of the first and
 * last eight keys, in two neighbouring eights of rows. */
INLINE void add_bias_tile(const struct sm90_backward_params *p, const struct bias_tiles *s, uint64_t *full,
                          float (&x)[ROWS / 2], uint32_t count) {
    const int lane = (int)threadIdx.x % 32, half = lane / 8 % 2;
    const uint32_t from = shared_address(s->tile[bias_warp()]) + (lane / 16 * 8 + lane % 8) * BIAS_ROW_BYTES +
                          (half ^ lane % 8 / 4) * 16;
    mbarrier_wait(full, count % 2);
#pragma unroll
    for (int v = 0; v < ROWS / 2; ++v) wgmma_keep(x[v]);
#pragma unroll
    for (int c = 0; c < ROWS / 8; c += 2) {
        uint32_t pairs[4];
        ldmatrix_x4_trans(pairs, from + c * 8 * BIAS_ROW_BYTES);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            x[4 * c + 2 * n] = fmaf(x[4 * c + 2 * n], p->scale, element_to_float((element)pairs[n]));
            x[4 * c + 2 * n + 1] = fmaf(x[4 * c + 2 * n + 1], p->scale, element_to_float((element)(pairs[n] >> 16)));
        }
    }
}

#endif
