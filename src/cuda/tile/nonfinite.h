/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nonfinite.h: O += P V must not bring 0 * NaN to a row from a key that it does not see. Looking for such keys costs time,
 * so kernels first run as if there were none; a block of threads whose result is not finite then starts again, carefully:
 * keys whose row of V is not finite are zeroed in shared memory, and added one by one to the rows that give them a weight.
 */
#ifndef STROBE_CUDA_TILE_NONFINITE_H
#define STROBE_CUDA_TILE_NONFINITE_H

#include "cuda/tile/load.h"
#include "cuda/tile/scores.h"

INLINE bool chunk_is_finite(const unsigned char *chunk) {
    bool finite = true;
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) finite = finite && element_is_finite(((const element *)chunk)[e]);
    return finite;
}

/* Zeroes the rows of the tile that are not finite and sets their bits in held, [2] in shared memory. Every thread of the
 * block calls it, with the tile complete and visible to all. */
INLINE void hold_back(unsigned char *tile, int tile_rows, int row_elements, uint32_t *held, int threads) {
    const int chunks = row_elements / CHUNK, bytes = row_elements * ELEMENT_BYTES;
    if (threadIdx.x < 2) held[threadIdx.x] = 0;
    __syncthreads();
    for (int at = (int)threadIdx.x; at < tile_rows * chunks; at += threads)
        if (!chunk_is_finite(tile + chunk_at(bytes, at / chunks, at % chunks)))
            atomicOr(&held[at / chunks / 32], 1u << (at / chunks % 32));
    __syncthreads();
    for (int at = (int)threadIdx.x; at < tile_rows * chunks; at += threads)
        if (held[at / chunks / 32] >> (at / chunks % 32) & 1)
            *(uint4 *)(tile + chunk_at(bytes, at / chunks, at % chunks)) = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* o[m][c] += weight of key `local` of the warp's patch, where it is not 0, times the key's row of V, read from `v`, of which
 * `columns` elements are there. */
INLINE void release_held(float (*o)[4], int m_tiles, int columns_tiles, const float (*s)[4], int n_tiles, int local,
                         const element *v, int columns) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t pattern = 0; /* by masks, not by branches, from which the compiler would make a run-time index */
#pragma unroll
            for (int n = 0; n < 2 * n_tiles; ++n)
                pattern |= float_bits(s[m * n_tiles + n / 2][2 * half + n % 2]) &
                           (n == local / 8 * 2 + local % 2 ? 0xffffffffu : 0);
            const float weight = bits_float(__shfl_sync(0xffffffffu, pattern, lane / 4 * 4 + local % 8 / 2));
            if (weight == 0) continue;
#pragma unroll
            for (int c = 0; c < columns_tiles; ++c)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int x = 8 * c + lane % 4 * 2 + e;
                    if (x < columns) o[m * columns_tiles + c][2 * half + e] += weight * element_to_float(v[x]);
                }
        }
}

#endif
