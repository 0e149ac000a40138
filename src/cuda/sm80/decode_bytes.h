/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_bytes.h: products of a warp of decode.cu where K and V lie in shared memory as bytes, int8 or e4m3. ldmatrix takes
 * two bytes for one element, and hands a lane four bytes of K's row, or of V two neighbouring columns of two keys. Bytes 0
 * and 2 of such a word become a pair of elements, and bytes 1 and 3, so that nothing is put together before it is widened:
 *
 *     S = Q K^T    columns 4 t, 4 t + 2, then 4 t + 1, 4 t + 3 of sixteen are elements 2 t, 2 t + 1, then 8 + those, of the
 *                  product's depth; Q's columns are ordered alike (order_as_bytes())
 *     O += P V     tiles 2 c and 2 c + 1 of the accumulators are the even and the odd columns of 16 c..; a lane then has the
 *                  four columns 16 c + 4 t.. of a row
 */
#ifndef STROBE_CUDA_SM80_DECODE_BYTES_H
#define STROBE_CUDA_SM80_DECODE_BYTES_H

#include "cuda/sm80/decode_load.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/widen.h"

#if defined(STORED_DTYPE)

static_assert(STAGE_BYTES % ROW_BYTES == 0 && Q_BYTES % ROW_BYTES == 0, "chunks have bits of their own in an address");

/* Scores of the keys from `key` on and of 16 rows of Q from `row` on. */
INLINE void product_bytes(float (*s)[4], const unsigned char *q, int row, const unsigned char *k, int key) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t q_start = shared_address(q) + chunk_at(DIM * ELEMENT_BYTES, row + lane % 16, lane / 16);
    const uint32_t k_start = shared_address(k) + stage_chunk_at(key + lane % 8, lane / 8);
#pragma unroll
    for (int part = 0; part < DIM / 64; ++part) {
        uint32_t left[4][4];
#pragma unroll
        for (int x = 0; x < 4; ++x) ldmatrix_x4(left[x], q_start ^ (uint32_t)((8 * part + 2 * x) << 4));
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            uint32_t words[4], even[4], odd[4];
            ldmatrix_x4(words, (k_start ^ (uint32_t)(4 * part << 4)) + (uint32_t)(8 * n * ROW_BYTES));
            widen_words(words, STORED_DTYPE, even, odd);
#pragma unroll
            for (int x = 0; x < 4; ++x) mma(s[n], left[x], even[x], odd[x]);
        }
    }
}

/* O += the weights times V of the keys from `key` on. */
INLINE void product_weights(float (*o)[4], const float (*weights)[4], const unsigned char *v, int key) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t v_start = shared_address(v) + stage_chunk_at(key + lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
        const uint32_t left[4] = {pack(weights[n][0], weights[n][1]), pack(weights[n][2], weights[n][3]),
                                  pack(weights[n + 1][0], weights[n + 1][1]), pack(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
        for (int chunk = 0; chunk < DIM / 16; chunk += 2) {
            uint32_t words[4], even[4], odd[4];
            ldmatrix_x4_trans(words, (v_start ^ (uint32_t)(chunk << 4)) + (uint32_t)(8 * n * ROW_BYTES));
            widen_words(words, STORED_DTYPE, even, odd);
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                mma(o[2 * (chunk + x)], left, even[2 * x], even[2 * x + 1]);
                mma(o[2 * (chunk + x) + 1], left, odd[2 * x], odd[2 * x + 1]);
            }
        }
    }
}

#endif
#endif
