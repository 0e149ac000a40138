/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_bytes.h: a block of keys of the decode kernels where K and V lie in shared memory as bytes, int8 or e4m3, with
 * scales of keys beside them. Bytes are widened to fp16, exactly, when they are operands of mma; nothing is put together
 * before, because columns may have any order if Q's, or O's, have the same:
 *
 *     S = Q K^T    ldmatrix hands a lane the bytes 4 t .. 4 t + 3 of sixteen of a key: two pairs, which are elements 2 t, 2
 * t + 1 and 8 + those of the product's depth (order_as_bytes() for Q) O += P V     ldmatrix, transposed, hands it columns 2
 * g and 2 g + 1 of sixteen, of two keys: tiles 2 c and 2 c + 1 of the accumulators are the even and the odd columns of 16
 * c.., and a lane has four neighbours of a row
 *
 * The products are of fp16 beside a bf16 q too. Each row of Q is multiplied by a power of two that makes its largest element
 * nearly fp16's largest; what this rounds is 2^-39 of that. Weights times V's scales are taken relative to the warp's
 * largest scale so far, a power of two as well which O follows. */
#ifndef STROBE_CUDA_SM80_DECODE_BYTES_H
#define STROBE_CUDA_SM80_DECODE_BYTES_H

#include "cuda/device/widen.h"
#include "cuda/sm80/decode_load.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/softmax.h"

/* Weights are stored times WEIGHT_LARGEST / unit, and O is relative to that: unit, a power of two, is at least the largest
 * of V's scales so far. Scales below LEAST_UNIT or above its inverse do not change it. */
#define WEIGHT_LARGEST 0x1p15f
#define LEAST_UNIT     0x1p-100f

#if defined(STORED_DTYPE)

static_assert(STAGE_BYTES % ROW_BYTES == 0 && Q_BYTES % ROW_BYTES == 0, "chunks have bits of their own in an address");

/* K's bytes 4 t .. 4 t + 3 as two pairs, in the order of order_as_bytes(). */
INLINE void widen_keys(uint32_t word, uint32_t *low, uint32_t *high) {
#if defined(STORED_INT8)
    *low = widen_int8(word), *high = widen_int8(word >> 8);
#elif E4M3_BY_INSTRUCTION
    *low = cvt_f16x2_of_e4m3x2((uint16_t)word), *high = cvt_f16x2_of_e4m3x2((uint16_t)(word >> 16));
#else
    *low = widen_e4m3_or_nan(__byte_perm(word, 0, 0x1404)), *high = widen_e4m3_or_nan(__byte_perm(word, 0, 0x3424));
#endif
}

/* V's bytes of two columns of two keys: the even column, and the odd one. */
INLINE void widen_columns(uint32_t word, uint32_t *even, uint32_t *odd) {
#if defined(STORED_INT8)
    *even = widen_int8(word), *odd = widen_int8(word >> 8);
#elif E4M3_BY_INSTRUCTION
    const uint32_t first = cvt_f16x2_of_e4m3x2((uint16_t)word), second = cvt_f16x2_of_e4m3x2((uint16_t)(word >> 16));
    *even = __byte_perm(first, second, 0x5410), *odd = __byte_perm(first, second, 0x7632);
#else
    *even = widen_e4m3_or_nan(word << 8), *odd = widen_e4m3_or_nan(word);
#endif
}

/* Scores of the keys from `key` on and of 16 rows of Q from `row` on. */
INLINE void product_keys(float (*s)[4], const unsigned char *q, int row, const unsigned char *k, int key) {
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
            uint32_t words[4];
            ldmatrix_x4(words, (k_start ^ (uint32_t)(4 * part << 4)) + (uint32_t)(8 * n * ROW_BYTES));
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                uint32_t low, high;
                widen_keys(words[x], &low, &high);
                mma(s[n], left[x], low, high);
            }
        }
    }
}

/* O += the weights times V of the keys from `key` on. */
INLINE void product_columns(float (*o)[4], const float (*weights)[4], const unsigned char *v, int key) {
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
#pragma unroll
            for (int x = 0; x < 4; ++x) widen_columns(words[x], &even[x], &odd[x]);
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                mma(o[2 * (chunk + x)], left, even[2 * x], even[2 * x + 1]);
                mma(o[2 * (chunk + x) + 1], left, odd[2 * x], odd[2 * x + 1]);
            }
        }
    }
}

/* Scores times the scales of their keys, from the warp's first on, and of their rows of Q, from the warp's first on. */
INLINE void scale_byte_scores(const float *keys, const float *rows, float (*s)[4]) {
    const int lane = (int)threadIdx.x % 32;
    const float low = rows[lane / 4], high = rows[lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        const float2 scale = *(const float2 *)&keys[8 * n + lane % 4 * 2];
        s[n][0] *= scale.x * low, s[n][1] *= scale.y * low, s[n][2] *= scale.x * high, s[n][3] *= scale.y * high;
    }
}

/* The inverse of a power of two that is neither the least nor the largest. */
INLINE float inverse_of_power(float x) { return __uint_as_float(0x7f000000u - __float_as_uint(x)); }

/* The unit is at least `most`, which O follows. */
INLINE void raise_unit(float most, struct state *state, float *unit) {
    if (most <= *unit) return;
    const float above = fminf(__uint_as_float((__float_as_uint(most) + 0x7fffffu) & 0x7f800000u), 1 / LEAST_UNIT);
    const float keep = *unit * inverse_of_power(above);
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) state->o[n][x] *= keep;
    *unit = above;
}

/* Weights times V's scales, from the warp's first key on; only keys with a weight count where some are hidden: another's
 * scale may be anything. */
INLINE void scale_byte_weights(const float *scales, bool hidden, struct state *state, float *unit, float (*s)[4]) {
    float scale[N_TILES][2], most = 0;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
        const float2 its = *(const float2 *)&scales[8 * n + (int)threadIdx.x % 4 * 2];
        scale[n][0] = its.x, scale[n][1] = its.y;
    }
    if (hidden)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (s[n][e] == 0 && s[n][2 + e] == 0) scale[n][e] = 0;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) most = fmaxf(most, fmaxf(fabsf(scale[n][0]), fabsf(scale[n][1])));
#pragma unroll
    for (int w = 16; w > 0; w /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
    raise_unit(most, state, unit);
    const float factor = WEIGHT_LARGEST * inverse_of_power(*unit);
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[n][x] *= scale[n][x % 2] * factor;
}

/* O in units of its own. */
INLINE void finish_byte_weights(struct state *state, float unit) {
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) state->o[n][x] *= unit / WEIGHT_LARGEST;
}

#endif
#endif
