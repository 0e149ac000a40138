/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_turned.h: a block of keys of the decode kernels over bytes for up to eight rows, which are few beside the sixteen
 * of a product's left side: so keys, or columns of V, are on that side, and rows of Q on the other, of eight. There are half
 * as many products, weights and accumulators of O.
 *
 *     S^T = K Q^T      a lane has keys g and g + 8 of sixteen, g = lane / 4, and rows 2 t and 2 t + 1, t = lane % 4
 *     O^T += V^T P^T   columns 2 g and 2 g + 1 of sixteen, and the same rows; P^T by movmatrix
 *
 * Q stays in registers. Order of columns, scales and the unit of weights as in decode_bytes.h. */
#ifndef STROBE_CUDA_SM80_DECODE_TURNED_H
#define STROBE_CUDA_SM80_DECODE_TURNED_H

#include "cuda/sm80/decode_bytes.h"

#if TURNED

#include "cuda/ptx/movmatrix.h"

static_assert(WARPS_M == 1 && STORED_BYTES == 1 && N_TILES % 2 == 0 && DIM % 64 == 0, "what is compiled");

struct query {
    uint32_t of[DIM / 16][2];
};

/* The rows of Q's tile as operands of the products of 16 columns each. */
INLINE void take_query(struct query *to, const unsigned char *q) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t start = shared_address(q) + chunk_at(DIM * ELEMENT_BYTES, lane % 8, lane / 8);
#pragma unroll
    for (int n = 0; n < DIM / 16; n += 2) {
        uint32_t words[4];
        ldmatrix_x4(words, start ^ (uint32_t)(2 * n << 4));
        to->of[n][0] = words[0], to->of[n][1] = words[1], to->of[n + 1][0] = words[2], to->of[n + 1][1] = words[3];
    }
}

/* Scores of the keys from `key` on. */
INLINE void product_keys_turned(float (*s)[4], const struct query *q, const unsigned char *k, int key) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t k_start = shared_address(k) + stage_chunk_at(key + lane % 8, lane / 8);
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
        for (int part = 0; part < DIM / 64; ++part) {
            const uint32_t from = (k_start ^ (uint32_t)(4 * part << 4)) + (uint32_t)(16 * n * ROW_BYTES);
            uint32_t first[4], second[4]; /* keys, and those eight further */
            ldmatrix_x4(first, from);
            ldmatrix_x4(second, from + 8 * ROW_BYTES);
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                uint32_t left[4];
                widen_keys(first[x], &left[0], &left[2]);
                widen_keys(second[x], &left[1], &left[3]);
                mma(s[n], left, q->of[4 * part + x][0], q->of[4 * part + x][1]);
            }
        }
}

/* O += the weights times V of the keys from `key` on. */
INLINE void product_columns_turned(float (*o)[4], const float (*weights)[4], const unsigned char *v, int key) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t v_start = shared_address(v) + stage_chunk_at(key + lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n) {
        const uint32_t first = movmatrix_trans(pack(weights[n][0], weights[n][1]));
        const uint32_t second = movmatrix_trans(pack(weights[n][2], weights[n][3]));
#pragma unroll
        for (int chunk = 0; chunk < DIM / 16; chunk += 2) {
            uint32_t words[4];
            ldmatrix_x4_trans(words, (v_start ^ (uint32_t)(chunk << 4)) + (uint32_t)(16 * n * ROW_BYTES));
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                uint32_t left[4];
                widen_columns(words[2 * x], &left[0], &left[1]);
                widen_columns(words[2 * x + 1], &left[2], &left[3]);
                mma(o[chunk + x], left, first, second);
            }
        }
    }
}

/* Scores times the scales of their keys, from the warp's first on, and of the rows of Q. */
INLINE void scale_scores_turned(const float *keys, const float *rows, float (*s)[4]) {
    const int lane = (int)threadIdx.x % 32;
    const float low = rows[lane % 4 * 2], high = rows[lane % 4 * 2 + 1];
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n) {
        const float first = keys[16 * n + lane / 4], second = keys[16 * n + 8 + lane / 4];
        s[n][0] *= first * low, s[n][1] *= first * high, s[n][2] *= second * low, s[n][3] *= second * high;
    }
}

/* As online_softmax(). */
INLINE void online_softmax_turned(float (*s)[4], struct state *state, float c) {
    float m[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        m[half] = state->m[half];
#pragma unroll
        for (int n = 0; n < SCORE_TILES; ++n) m[half] = fmaxf(m[half], fmaxf(s[n][half], s[n][2 + half]));
#pragma unroll
        for (int w = 4; w < 32; w *= 2) m[half] = fmaxf(m[half], __shfl_xor_sync(0xffffffffu, m[half], w));
    }
    if (__any_sync(0xffffffffu, m[0] != state->m[0] || m[1] != state->m[1])) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float correction = weight_of(state->m[half], m[half], c);
            state->m[half] = m[half], state->l[half] *= correction;
#pragma unroll
            for (int n = 0; n < O_TILES; ++n) state->o[n][half] *= correction, state->o[n][2 + half] *= correction;
        }
    }
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            s[n][x] = weight_of(s[n][x], state->m[half_of(x)], c);
            state->l[half_of(x)] += s[n][x];
        }
}

/* As scale_byte_weights(). */
INLINE void scale_weights_turned(const float *scales, bool hidden, struct state *state, float *unit, float (*s)[4]) {
    float scale[SCORE_TILES][2], most = 0;
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            scale[n][e] = scales[16 * n + 8 * e + (int)threadIdx.x % 32 / 4];
            if (hidden && s[n][2 * e] == 0 && s[n][2 * e + 1] == 0) scale[n][e] = 0;
            most = fmaxf(most, fabsf(scale[n][e]));
        }
#pragma unroll
    for (int w = 16; w > 0; w /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
    raise_unit(most, state, unit);
    const float factor = WEIGHT_LARGEST * inverse_of_power(*unit);
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[n][x] *= scale[n][x / 2] * factor;
}

#else

/* Where rows are on the left side, the products read them from shared memory. */
struct query {
    const unsigned char *tile;
};
INLINE void take_query(struct query *to, const unsigned char *q) { to->tile = q; }

#endif
#endif
