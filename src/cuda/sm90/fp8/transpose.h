/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transpose.h: V of a block of keys, as the copy engine brought it, becomes V^T where it lies: products of FP8 want the
 * depth axis, keys, contiguous, and have no transposed form. Two warps of the producer do it, a slab of 128 x 128 bytes at a
 * time.
 *
 *     V [KEYS][128 bytes]       ldmatrix.trans of pairs of bytes: a lane has, of two neighbouring columns, keys 2 q, 2 q + 1
 *     V^T [128 columns][128]    prmt takes the columns apart; stmatrix stores sixteen keys of each as 16 bytes
 *
 * A warp reads two squares of 32 keys and 32 columns and then writes them to each other's place, mirrored, or each to its
 * own. The keys of each sixteen lie in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is that of P's registers. Both
 * have the 128-byte swizzle. Row HEAD_DIM of V^T is all ONE (softmax.h), seven rows of zeros follow: column HEAD_DIM of P V
 * is l, the sum of the weights as the tensor cores have them, times ONE. Included by forward.cu alone. */
#ifndef STROBE_CUDA_SM90_FP8_TRANSPOSE_H
#define STROBE_CUDA_SM90_FP8_TRANSPOSE_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/load.h"

enum { TRANSPOSERS = 2 /* warps */, HALF_SLAB = HEAD_DIM % 128 != 0 };
static_assert(HEAD_DIM % 64 == 0 && KEYS == 128, "squares of 32 and half slabs");

/* Pairs of squares of a slab, a byte each, for either warp: key and column of the first, then of the second, in units of 32,
 * two bits each from the lowest on. In half a slab the columns from 64 on are no part of V. */
#define SQUARES(a, b, c, d) ((a) | (b) << 2 | (c) << 4 | (uint32_t)(d) << 6)
#define FOUR(a, b, c, d)    ((a) | (b) << 8 | (c) << 16 | (d) << 24)
#define WHOLE_0             FOUR(SQUARES(0, 0, 2, 2), SQUARES(0, 1, 1, 0), SQUARES(2, 3, 3, 2), SQUARES(0, 2, 2, 0))
#define WHOLE_1             FOUR(SQUARES(1, 1, 3, 3), SQUARES(1, 2, 2, 1), SQUARES(3, 0, 0, 3), SQUARES(1, 3, 3, 1))
#define HALF_0              FOUR(SQUARES(0, 0, 1, 1), SQUARES(0, 1, 1, 0), 0u, 0u)
#define HALF_1              FOUR(SQUARES(2, 0, 3, 0), SQUARES(2, 1, 3, 1), 0u, 0u)

/* A square as eight registers of a lane. `at`: the lane's row of V's first 32 keys. */
INLINE void load_square(uint32_t (&in)[8], uint32_t at, uint32_t keys, uint32_t columns) {
    const uint32_t row = at + keys * 32 * ROW_BYTES, swizzle = threadIdx.x % 8;
    ldmatrix_x4_trans(*(uint32_t(*)[4]) & in[0], row + ((2 * columns ^ swizzle) << 4));
    ldmatrix_x4_trans(*(uint32_t(*)[4]) & in[4], row + (((2 * columns + 1) ^ swizzle) << 4));
}

/* The lane's row of V^T among sixteen, as the address of a row of a matrix that it stores: column 2 g or 2 g + 1. The second
 * four of eight lanes have them the other way round, so that the eight rows of a matrix differ modulo eight, and with the
 * swizzle no two are in the same banks. */
INLINE uint32_t row_to_store(void) {
    const uint32_t lane = threadIdx.x % 32;
    return 2 * (lane % 8) + (lane / 8 + lane / 4) % 2;
}

/* `at`: the lane's row of V^T's first sixteen columns. Of each two neighbouring columns a matrix has, by the lane's row, the
 * first or the second. */
INLINE void store_square(const uint32_t (&in)[8], uint32_t at, uint32_t keys, uint32_t columns) {
    const uint32_t lane = threadIdx.x % 32, swizzle = row_to_store() % 8;
    const uint32_t row = at + columns * 32 * ROW_BYTES + (((2 * keys + lane / 16) ^ swizzle) << 4);
    const uint32_t one = lane < 16 ? 0x6420 : 0x7531, other = lane < 16 ? 0x7531 : 0x6420;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t *x = &in[4 * half];
        const uint32_t out[4] = {__byte_perm(x[0], x[1], one), __byte_perm(x[0], x[1], other), __byte_perm(x[2], x[3], one),
                                 __byte_perm(x[2], x[3], other)};
        stmatrix_x4(row + half * 16 * ROW_BYTES, out);
    }
}

/* The part of one warp. */
INLINE void transpose_slab(uint32_t slab, uint32_t squares, int pairs) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t load = slab + lane * ROW_BYTES, store = slab + row_to_store() * ROW_BYTES;
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair, squares >>= 8) {
        uint32_t one[8], other[8];
        load_square(one, load, squares & 3, squares >> 2 & 3);
        load_square(other, load, squares >> 4 & 3, squares >> 6 & 3);
        store_square(one, store, squares & 3, squares >> 2 & 3);
        store_square(other, store, squares >> 4 & 3, squares >> 6 & 3);
    }
}

/* The row of ONE behind V^T and the seven of zeros, whose word number `word` is this one. */
INLINE uint32_t word_of_ones(int word) { return word < ROW_BYTES / 4 ? 0x01010101u * ONE_E4M3 : 0; }

/* The part of one warp. In half a slab the rows behind V^T are keys of V before, which the second warp reads. */
INLINE void transpose_block(unsigned char *v, int warp) {
    const uint32_t slab = shared_address(v);
#pragma unroll 1
    for (int n = 0; n < SLABS - HALF_SLAB; ++n) transpose_slab(slab + n * KV_SLAB, warp ? WHOLE_1 : WHOLE_0, 4);
    if (HALF_SLAB) {
        transpose_slab(slab + (SLABS - 1) * KV_SLAB, warp ? HALF_1 : HALF_0, 2);
        uint32_t *rows = (uint32_t *)(v + HEAD_DIM * ROW_BYTES);
        __syncwarp();
        if (warp == 1)
            for (int word = threadIdx.x % 32; word < 8 * ROW_BYTES / 4; word += 32) rows[word] = word_of_ones(word);
    }
}

/* The rows behind V^T where they have memory of their own: once for all blocks. All threads. */
INLINE void write_ones(struct shared *s) {
    const int words = HALF_SLAB ? 0 : V_STAGES * 8 * ROW_BYTES / 4;
    for (int n = threadIdx.x; n < words; n += THREADS) {
        const int stage = n / (8 * ROW_BYTES / 4), word = n % (8 * ROW_BYTES / 4);
        ((uint32_t *)(s->v[stage] + HEAD_DIM * ROW_BYTES))[word] = word_of_ones(word);
    }
    fence_proxy_async();
}

/* A warp: its part of every block of V, tile after tile. */
INLINE void transposer(const struct sm90_forward_params *p, struct shared *s, int warp) {
    uint32_t count = 0;
    (void)p;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        const uint32_t end = count + (uint32_t)(t->end_block - t->first_block);
#pragma unroll 1
        for (; count < end; ++count) {
            const uint32_t stage = v_stage_of(count);
            mbarrier_wait(&s->v_full[stage], v_full_parity(count));
            transpose_block(s->v[stage], warp);
            fence_proxy_async();
            arrive_as_warp(&s->vt_full[stage]);
        }
        arrive_as_warp(&s->tile_empty[slot_of(tiles)]);
    }
}

#endif
