/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_block.h: what a warp of the decode kernels does with a block of keys: scores, score terms and mask, online softmax,
 * O += P V. Its rows and its keys of the block follow from its number. */
#ifndef STROBE_CUDA_SM80_DECODE_BLOCK_H
#define STROBE_CUDA_SM80_DECODE_BLOCK_H

#include "cuda/sm80/decode_shape.h"

#include "cuda/device/score_terms.h"
#include "cuda/sm80/decode_bytes.h"
#include "cuda/sm80/decode_load.h"
#include "cuda/sm80/decode_turned.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/softmax.h"

INLINE int warp_m(void) { return (int)threadIdx.x / 32 % WARPS_M; }
INLINE int warp_n(void) { return (int)threadIdx.x / 32 / WARPS_M; }

/* Keys of a warp's scores that a lane has: the first, steps from it to each, and where the score of a row (`half`) is. */
enum { LANE_KEYS = TURNED ? N_TILES : 2 * N_TILES };
INLINE int first_key_of_lane(int lane) { return TURNED ? lane / 4 : lane % 4 * 2; }
INLINE int step_to_key(int n) { return TURNED ? 8 * n : 8 * (n / 2) + n % 2; }
INLINE float *score_of(float (*s)[4], int half, int n) { return &s[n / 2][TURNED ? n % 2 * 2 + half : 2 * half + n % 2]; }

/* Softcap and ALiBi of the lane's scores of row (`half`), at position i; its first score is at key j. */
INLINE void apply_score_terms(const struct params *p, const struct job *t, struct place at, int half, int j, float (*s)[4]) {
    const float rate = p->softcap > 0 ? (float)(2 * LOG2_E) * p->scale / p->softcap : 0;
    const float slope = p->slopes && at.i < t->rows ? p->slopes[t->b * p->slopes_batch + at.h] : 0;
    const int64_t diagonal = at.i + t->alibi_diagonal - j;
#pragma unroll
    for (int n = 0; n < LANE_KEYS; ++n) {
        float *const x = score_of(s, half, n);
        *x = p->softcap > 0 ? softcapped(*x, p->softcap, rate) : *x * p->scale;
        *x -= slope * fabsf((float)(diagonal - step_to_key(n)));
    }
}

/* What the boolean mask has for a lane's scores: of each row the bytes of two neighbouring keys; turned, where a lane has no
 * neighbours, one byte twice. */
struct mask_pairs {
    uint32_t of[2][N_TILES];
};
INLINE bool mask_shows(const struct mask_pairs *mask, int half, int n) {
    return TURNED ? mask->of[half][n] != 0 : (mask->of[half][n / 2] >> n % 2 * 8 & 0xff) != 0;
}

/* Loads it for the scores that a warp will have of the block at j0; keys that are not there have zeros, and rows that are
 * not there, which nobody stores, see all. Asked for before the block is waited for, so that it is there with it. */
INLINE void load_mask(struct mask_pairs *to, const struct params *p, const struct job *t, int j0) {
    const struct view *const mask = &p->bool_mask;
    const int lane = (int)threadIdx.x % 32, key = j0 + warp_n() * 8 * N_TILES, first = key + first_key_of_lane(lane);
    const uint64_t all = (uint64_t)(uintptr_t)mask->data | (uint64_t)(mask->batch | mask->head | mask->row | key);
    const bool even = (all & 1) == 0; /* all rows begin at even addresses, and so does the block, which a window moves */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const struct place at = place_of(p, t, 16 * warp_m() + row_of_lane(lane, half));
        const bool is_row = at.i < t->rows;
        const int left = is_row ? t->keys - first : 0;
        const uint8_t *const from = (const uint8_t *)mask->data + score_offset(mask, t, at) + first;
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            uint32_t pair = is_row ? 0 : 0xffff;
            if (TURNED)
                pair = 8 * n < left ? __ldg(from + 8 * n) * 0x0101u : pair;
            else if (even && 8 * n + 1 < left)
                pair = __ldg((const uint16_t *)(from + 8 * n));
            else if (8 * n < left)
                pair = __ldg(from + 8 * n) | (8 * n + 1 < left ? (uint32_t)__ldg(from + 8 * n + 1) << 8 : 0);
            to->of[half][n] = pair;
        }
    }
}

/* Whether the mask shows all of a warp's scores: of a tree most blocks, which then cost no more than without a mask. */
INLINE bool mask_shows_all(const struct mask_pairs *mask) {
    uint32_t all = 0x8080;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
            all &= ((mask->of[half][n] & 0x7f7f) + 0x7f7f) | mask->of[half][n]; /* a byte's highest bit: it is not 0 */
    return __all_sync(0xffffffffu, all == 0x8080);
}

/* Score terms and masks, on a warp's scores of the keys from `key` on. Rows that are not there see nothing. */
INLINE void finish_scores(const struct params *p, const struct job *t, const struct shown *shown,
                          const struct mask_pairs *mask, int key, float (*s)[4]) {
    const int lane = (int)threadIdx.x % 32, first = first_key_of_lane(lane);
    const unsigned char *const there = p->cache.page_table && shown->missing ? shown->key + warp_n() * 8 * N_TILES + first
                                                                             : NULL;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const struct place at = place_of(p, t, 16 * warp_m() + row_of_lane(lane, half));
        const int low = clamp(band_first(&t->band, at.i) - key - first, 8 * N_TILES);
        const int end = at.i < t->rows ? clamp(band_end(&t->band, at.i) - key - first, 8 * N_TILES) : 0;
        if (p->scaled) apply_score_terms(p, t, at, half, key + first, s);
#pragma unroll
        for (int n = 0; n < LANE_KEYS; ++n)
            if (step_to_key(n) < low || step_to_key(n) >= end) *score_of(s, half, n) = -INFINITY;
    }
    if (p->bool_mask.data)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < LANE_KEYS; ++n)
                if (!mask_shows(mask, half, n)) *score_of(s, half, n) = -INFINITY;
    if (there)
#pragma unroll
        for (int n = 0; n < LANE_KEYS; ++n)
            if (!there[step_to_key(n)]) *score_of(s, 0, n) = *score_of(s, 1, n) = -INFINITY;
}

/* One block of keys, at j0: scores, mask, online softmax, O += P V. mask: loaded, if there is one. q_scales: of the rows of
 * Q, and unit: of the weights, with numbers of a byte (decode_bytes.h). */
INLINE void process_block(const struct params *p, const struct segment *s, const struct query *q, const float *q_scales,
                          const unsigned char *stage, const struct shown *shown, const struct mask_pairs *mask, int j0,
                          struct state *state, float *unit) {
    const int keys = warp_n() * 8 * N_TILES, key = j0 + keys;
    if (key >= s->t.keys) return;
    bool hidden = key < s->full_first || key + 8 * N_TILES > s->full_end || (p->cache.page_table && shown->missing);
    float scores[SCORE_TILES][4];
    clear(scores, SCORE_TILES);
#if defined(STORED_DTYPE)
    const float *const scales = (const float *)(stage + 2 * K_BYTES) + keys;
#endif
#if TURNED
    product_keys_turned(scores, q, stage, keys);
    scale_scores_turned(scales, q_scales, scores);
#elif defined(STORED_DTYPE)
    product_keys(scores, q->tile, 16 * warp_m(), stage, keys);
    scale_byte_scores(scales, q_scales + 16 * warp_m(), scores);
#else
    product_rows(scores, 1, N_TILES, DIM, q->tile, 16 * warp_m(), stage, keys, DIM);
#endif
    if (p->bool_mask.data) hidden = !mask_shows_all(mask) || hidden;
    if (p->scaled || hidden) finish_scores(p, &s->t, shown, mask, key, scores);
#if TURNED
    online_softmax_turned(scores, state, p->exponent);
    scale_weights_turned(scales + BLOCK_N, hidden, state, unit, scores);
    product_columns_turned(state->o, scores, stage + K_BYTES, keys);
#else
    online_softmax(scores, state, p->exponent);
#if defined(STORED_DTYPE)
    scale_byte_weights(scales + BLOCK_N, hidden, state, unit, scores);
    product_columns(state->o, scores, stage + K_BYTES, keys);
#else
    product_registers(state->o, 1, COLUMN_TILES, 8 * N_TILES, scores, stage + K_BYTES, keys, 0, DIM);
#endif
#endif
}

#endif
