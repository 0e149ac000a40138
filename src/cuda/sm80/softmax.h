/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.h: online softmax on a warp's accumulators, and what it keeps of its rows (FlashAttention-2, algorithm 1). A warp
 * has 16 M_TILES rows and 8 N_TILES keys of a block, and DIM_V columns of O. Included by kernels that are compiled with
 * these. */
#ifndef STROBE_CUDA_SM80_SOFTMAX_H
#define STROBE_CUDA_SM80_SOFTMAX_H

#include "cuda/device/element.h"

enum { COLUMN_TILES = DIM_V / 8 };

/* What a warp keeps of its rows: O, not normalised; this lane's part of l; m, the maximum, of rows (m, half). */
struct state {
    float o[M_TILES * COLUMN_TILES][4];
    float m[M_TILES * 2], l[M_TILES * 2];
};

/* The weight of a score where the row's maximum is m; 0 stands for m where the row has seen no key. The difference is taken
 * before it is multiplied, so that the greatest weight is exactly 1, and a row that sees one key has its V. */
INLINE float weight_of(float score, float m, float c) { return ex2((score - (m == -INFINITY ? 0 : m)) * c); }

/* S becomes P in place; m and l follow, and O is rescaled; a warp none of whose maxima has grown skips that. */
INLINE void online_softmax(float (*s)[4], struct state *state, float c) {
    float m[2 * M_TILES];
    bool any = false;
#pragma unroll
    for (int row = 0; row < 2 * M_TILES; ++row) {
        const int at = row / 2 * N_TILES, x = row % 2 * 2;
        m[row] = state->m[row];
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) m[row] = fmaxf(m[row], fmaxf(s[at + n][x], s[at + n][x + 1]));
        m[row] = fmaxf(m[row], __shfl_xor_sync(0xffffffffu, m[row], 1));
        m[row] = fmaxf(m[row], __shfl_xor_sync(0xffffffffu, m[row], 2));
        any = any || m[row] != state->m[row];
    }
    if (__any_sync(0xffffffffu, any)) {
#pragma unroll
        for (int row = 0; row < 2 * M_TILES; ++row) {
            const float correction = weight_of(state->m[row], m[row], c);
            state->m[row] = m[row];
            state->l[row] *= correction;
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n) {
                state->o[row / 2 * COLUMN_TILES + n][row % 2 * 2] *= correction;
                state->o[row / 2 * COLUMN_TILES + n][row % 2 * 2 + 1] *= correction;
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2 * M_TILES; ++row) {
        const int at = row / 2 * N_TILES, x = row % 2 * 2;
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                s[at + n][x + e] = weight_of(s[at + n][x + e], state->m[row], c);
                state->l[row] += s[at + n][x + e];
            }
    }
}

#endif
