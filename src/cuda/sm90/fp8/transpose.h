/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transpose.h: V of a block of keys, as the copy engine brought it, becomes V^T: products of FP8 want the depth axis, keys,
 * contiguous, and have no transposed form. Two warps of the producer do it, between the stages of V and those of V^T.
 *
 *     V [KEYS][128 bytes]    ldmatrix.trans of pairs of bytes: a lane has, of two neighbouring columns, keys 2 q, 2 q + 1
 *     V^T [HEAD_DIM][128]    prmt takes the columns apart; stmatrix stores sixteen keys of each as 16 bytes
 *
 * The keys of each sixteen lie in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is that of P's registers. Both have
 * the 128-byte swizzle. Row HEAD_DIM of V^T is all ones, seven rows of zeros follow: column HEAD_DIM of P V is l, the sum of
 * the weights as the tensor cores have them. Included by forward.cu alone. */
#ifndef STROBE_CUDA_SM90_FP8_TRANSPOSE_H
#define STROBE_CUDA_SM90_FP8_TRANSPOSE_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/sm90/forward/load.h"

enum { TRANSPOSERS = 2 /* warps */, ONE_E4M3 = 0x38 };

/* The part of one warp: every second sixteen columns. */
INLINE void transpose_block(unsigned char *to, const unsigned char *from, int warp) {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const int row = 2 * (lane % 8) + matrix % 2; /* of the sixteen columns, which are rows of V^T */
    const uint32_t load = shared_address(from) + lane * ROW_BYTES, store = shared_address(to) + row * ROW_BYTES;
#pragma unroll 1
    for (int sixteen = warp; sixteen < HEAD_DIM / 16; sixteen += TRANSPOSERS) {
        uint32_t in[KEYS / 32][4];
#pragma unroll
        for (int n = 0; n < KEYS / 32; ++n)
            ldmatrix_x4_trans(in[n], load + n * 32 * ROW_BYTES + ((sixteen ^ lane % 8) << 4));
#pragma unroll
        for (int n = 0; n < KEYS / 32; ++n) {
            const uint32_t out[4] = {__byte_perm(in[n][0], in[n][1], 0x6420), __byte_perm(in[n][0], in[n][1], 0x7531),
                                     __byte_perm(in[n][2], in[n][3], 0x6420), __byte_perm(in[n][2], in[n][3], 0x7531)};
            stmatrix_x4(store + sixteen * 16 * ROW_BYTES + (((2 * n + matrix / 2) ^ row % 8) << 4), out);
        }
    }
}

/* The rows behind V^T, once for all blocks. All threads. */
INLINE void write_ones(struct shared *s) {
    for (int n = threadIdx.x; n < STAGES * 8 * ROW_BYTES / 4; n += THREADS) {
        const int stage = n / (8 * ROW_BYTES / 4), word = n % (8 * ROW_BYTES / 4);
        ((uint32_t *)(s->vt[stage] + HEAD_DIM * ROW_BYTES))[word] = word < ROW_BYTES / 4 ? 0x01010101u * ONE_E4M3 : 0;
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
            const uint32_t stage = stage_of(count);
            mbarrier_wait(&s->v_full[stage], full_parity(count));
            mbarrier_wait(&s->vt_empty[stage], empty_parity(count));
            transpose_block(s->vt[stage], s->v[stage], warp);
            fence_proxy_async();
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&s->vt_full[stage]), mbarrier_arrive(&s->v_empty[stage]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
}

/* One thread: Q, K and V, tile after tile. */
INLINE void producer_qkv(const struct sm90_forward_params *p, struct shared *s) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0, piece = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        piece = load_queries(p, s, t, piece, &tracer, tiles);
        load_tile(p, s, t, count, &tracer);
        count += t->end_block - t->first_block;
        mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
}

#endif
