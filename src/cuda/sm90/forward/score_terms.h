/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_terms.h: what happens to the scores of a block between the products, in this order: scale, softcap, bias, ALiBi,
 * masks, band. FEATURE_CLASS says what a variant has: FEATURES_NONE has the band alone, and does nothing to a block that
 * every row sees whole. Classes of one feature have a faster way of their own: alibi.h, softcap.h, bias_tile.h; dropout.h
 * has what happens to P.
 *
 * Accumulator v of a thread belongs to row first + lane / 4 + 8 (v / 2 % 2) of the tile and to key 8 (v / 4) + 2 (lane % 4)
 * + v % 2 of the block. */
#ifndef STROBE_CUDA_SM90_FORWARD_SCORE_TERMS_H
#define STROBE_CUDA_SM90_FORWARD_SCORE_TERMS_H

#include "cuda/device/score_function.h"
#include "cuda/device/score_terms.h"
#include "cuda/ptx/memory.h"
#include "cuda/sm90/forward/alibi.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"
#include "cuda/sm90/forward/walk.h"
#include "math/exp2.h"

INLINE void apply_softcap(const struct sm90_forward_params *p, float (&s)[KEYS / 2]) {
    const float rate = 2 * (float)LOG2_E * p->scale / p->softcap;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) s[v] = softcapped(s[v], p->softcap, rate);
}

/* Where a row's bias or mask is read: for the keys that the band shows, columns [low, high), since others may lie outside of
 * the tensor. `at` is the row's element at the thread's first column in this block. */
struct shown {
    int low, high;
    int64_t at;
};

INLINE struct shown shown_of(const struct tile *t, const struct view *x, int row, int origin) {
    const struct shown shown = {first_key_of(t, row) - origin, row < t->rows ? end_key_of(t, row) - origin : 0,
                                t->batch * x->batch + t->head * x->head + row * x->row + origin};
    return shown;
}

#define SHOWS(shown, column) ((column) >= (shown).low && (column) < (shown).high)

/* Adds the bias in a block that all rows of the warp see whole, from an aligned tensor: two columns at once. */
INLINE void add_whole_bias(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int row,
                           int origin, int i) {
    const int64_t at = t->batch * p->bias.batch + t->head * p->bias.head + row * p->bias.row + origin;
    if (p->bias.dtype == CUDA_FP32) {
        const float2 *bias = (const float2 *)((const float *)p->bias.data + at);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const float2 two = bias[4 * n];
            s[4 * n + 2 * i] = biased(s[4 * n + 2 * i], two.x), s[4 * n + 2 * i + 1] = biased(s[4 * n + 2 * i + 1], two.y);
        }
    } else {
        const uint32_t *bias = (const uint32_t *)((const uint16_t *)p->bias.data + at);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const uint32_t two = bias[4 * n];
            s[4 * n + 2 * i] = biased(s[4 * n + 2 * i], element_to_float((uint16_t)two));
            s[4 * n + 2 * i + 1] = biased(s[4 * n + 2 * i + 1], element_to_float((uint16_t)(two >> 16)));
        }
    }
}

INLINE void add_bias(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int row, int origin,
                     int i) {
    const struct shown shown = shown_of(t, &p->bias, row, origin);
    if (p->bias.dtype == CUDA_FP32) {
        const float *bias = (const float *)p->bias.data + shown.at;
#pragma unroll
        for (int v = 2 * i; v < KEYS / 2; v += v % 2 ? 3 : 1) {
            const int column = 8 * (v / 4) + v % 2;
            s[v] = biased(s[v], SHOWS(shown, column) ? bias[column] : 0);
        }
    } else {
        const uint16_t *bias = (const uint16_t *)p->bias.data + shown.at;
#pragma unroll
        for (int v = 2 * i; v < KEYS / 2; v += v % 2 ? 3 : 1) {
            const int column = 8 * (v / 4) + v % 2;
            s[v] = biased(s[v], element_to_float(SHOWS(shown, column) ? bias[column] : 0));
        }
    }
}

/* Hides what a boolean mask hides, by the thread's bits of the block: bits 2 n and 2 n + 1 are its two keys of the block's
 * nth eight. */
INLINE void apply_bits(float (&s)[KEYS / 2], uint2 bits) {
#pragma unroll
    for (int n = 0; n < KEYS / 4; ++n) {
        if (!(bits.x & 1u << n)) s[n / 2 * 4 + n % 2] = -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 4; ++n) {
        if (!(bits.y & 1u << n)) s[n / 2 * 4 + 2 + n % 2] = -INFINITY;
    }
}

/* The blocks of a block mask are whole eights of keys, so the thread's two columns of each eight share a byte. */
INLINE void apply_block_mask(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int row,
                             int key, int i) {
    const int inside = row < t->rows ? row : t->rows - 1;
    const uint8_t *mask = (const uint8_t *)p->blocks.data + t->batch * p->blocks.batch + t->head * p->blocks.head +
                          inside / p->block_q * p->blocks.row;
    int block = key / p->block_k, left = p->block_k - key % p->block_k;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
        const bool seen = key + 8 * n >= t->keys || mask[block];
        s[4 * n + 2 * i] = seen ? s[4 * n + 2 * i] : -INFINITY;
        s[4 * n + 2 * i + 1] = seen ? s[4 * n + 2 * i + 1] : -INFINITY;
        left -= 8;
        if (left == 0) ++block, left = p->block_k;
    }
}

/* Prefetches the warp's sixteen rows of the next block, from key `key` on, to L2, half a row a lane. */
INLINE void prefetch_scores(const struct view *x, int bytes, const struct tile *t, int first, int key) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 2, half = KEYS / 2 * bytes;
    if (row >= t->rows || key < 0) return;
    const char *line = (const char *)x->data + (t->batch * x->batch + t->head * x->head + row * x->row + key) * bytes +
                       lane % 2 * half;
    for (int at = 0; at < half; at += 128) prefetch_line(line + at);
}

INLINE void apply_bias(const struct sm90_forward_params *p, const struct tile *t, struct keys shown, float (&s)[KEYS / 2],
                       int first, int key) {
    const int lane = threadIdx.x % 32, origin = key + 2 * (lane % 4);
    const bool whole = key + KEYS <= shown.end && key >= shown.begin && t->row + first + 16 <= t->rows;
    if (!p->bias.data) return;
    prefetch_scores(&p->bias, p->bias.dtype == CUDA_FP32 ? 4 : 2, t, first, key - KEYS);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = t->row + first + lane / 4 + 8 * i;
        if (whole && p->bias.aligned)
            add_whole_bias(p, t, s, row, origin, i);
        else
            add_bias(p, t, s, row, origin, i);
    }
}

/* Hides what the masks hide in the block of a note (walk.h). */
INLINE void apply_masks(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int first, int key,
                        uint32_t note, uint2 bits) {
    if (note & (NOTE_BITS | NOTE_NOTHING)) apply_bits(s, bits);
    if (HAS_ALL && note & NOTE_BLOCKS) {
        const int row = t->row + first + (int)threadIdx.x % 32 / 4;
        apply_block_mask(p, t, s, row, key, 0), apply_block_mask(p, t, s, row + 8, key, 1);
    }
}

/* The place of the sequence's first row and key, as the user's function is given it. */
INLINE struct score_place score_place_of(const struct sm90_forward_params *p, const struct tile *t) {
    struct score_place at = {t->batch, t->head, t->kv_head, 0, 0, t->rows, t->keys};
#if HAS_SCORE_FUNCTION
    at.i = p->score.q_start, at.j = p->score.k_start;
#endif
    return at;
}

/* The relative values of a block's diagonals (SCORE_HAS_RELATIVE): of two neighbouring ones in each eight of keys, and in
 * the eight before the first, since a thread's second row is eight below its first. */
enum { RELATIVES = SCORE_HAS_RELATIVE ? KEYS / 4 + 2 : 1 };
#define RELATIVE_OF(v)   ((2 * ((v) / 4 + 1 - (v) / 2 % 2) + (v) % 2) % RELATIVES)
#define RELATIVE_ROWS(n) (8 - 8 * ((n) / 2) - (n) % 2) /* below the diagonal of the thread's first pair */

struct relatives {
    float of[RELATIVES];
};

/* Works out the relative values, which do not depend on scores, while the tensor cores have these. A diagonal that no pair
 * of the sequence is on has none, lest an array be read outside. */
INLINE void find_relatives(const struct sm90_forward_params *p, const struct tile *t, int first, int key,
                           struct relatives *relatives) {
    const int lane = threadIdx.x % 32, distance = t->row + first + lane / 4 - key - 2 * (lane % 4);
    const bool whole = !SCORE_READS_ARRAYS || (key + KEYS <= t->keys && t->row + first + 16 <= t->rows);
    struct score_place at = score_place_of(p, t);
    if (!SCORE_HAS_RELATIVE) return;
    at.i += distance;
    if (whole) {
#pragma unroll
        for (int n = 0; n < RELATIVES; ++n) relatives->of[n] = score_relative(SCORE_OF(p), &at, RELATIVE_ROWS(n));
    } else {
        const int above = distance + t->keys, below = t->keys > 0 ? t->rows - distance : -(1 << 20);
#pragma unroll
        for (int n = 0; n < RELATIVES; ++n)
            relatives->of[n] = RELATIVE_ROWS(n) > -above && RELATIVE_ROWS(n) < below
                                   ? score_relative(SCORE_OF(p), &at, RELATIVE_ROWS(n))
                                   : 0;
    }
#pragma unroll
    for (int n = 0; n < RELATIVES; ++n) wgmma_keep(relatives->of[n]);
}

/* The user's function of each score, which is multiplied by `factor` before it. Rows and keys past the end of the sequence
 * have the place of the last one, since an array may end there. */
INLINE void apply_score_function(const struct sm90_forward_params *p, const struct tile *t, float (&s)[KEYS / 2], int first,
                                 int key, float factor, const struct relatives *relatives) {
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, column = key + 2 * (lane % 4);
    const bool whole = !SCORE_READS_ARRAYS || (key + KEYS <= t->keys && t->row + first + 16 <= t->rows);
    const struct score_place origin = score_place_of(p, t);
    const int last_row = t->rows - 1, last_key = t->keys - 1;
    struct score_place at = origin;
    if (SCORE_HAS_RELATIVE) {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) {
            const float relative = relatives->of[RELATIVE_OF(v)];
            s[v] = HAS_BIAS && s[v] == -INFINITY ? s[v] : score_joined(SCORE_OF(p), &at, s[v] * factor, relative);
        }
    } else if (whole) {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) {
            at.i = origin.i + row + 8 * (v / 2 % 2), at.j = origin.j + column + 8 * (v / 4) + v % 2;
            s[v] = HAS_BIAS && s[v] == -INFINITY ? s[v] : score_value(SCORE_OF(p), &at, s[v] * factor);
        }
    } else if (last_key >= 0) {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) {
            at.i = origin.i + min(row + 8 * (v / 2 % 2), last_row),
            at.j = origin.j + min(column + 8 * (v / 4) + v % 2, last_key);
            s[v] = HAS_BIAS && s[v] == -INFINITY ? s[v] : score_value(SCORE_OF(p), &at, s[v] * factor);
        }
    }
}

/* Scale, softcap, bias, ALiBi, the user's function: all but masks and the band, in the classes SCORE and ALL and in kernels
 * that are compiled with a function. */
INLINE void apply_score_terms(const struct sm90_forward_params *p, const struct tile *t, struct keys shown,
                              float (&s)[KEYS / 2], int first, int key, const struct relatives *relatives) {
    if (!HAS_SCORE_TERMS || FEATURE_CLASS == FEATURES_BIAS) return;
    if (HAS_SCORE_FUNCTION && !HAS_SOFTCAP && !HAS_ALIBI && !HAS_BIAS) {
        apply_score_function(p, t, s, first, key, p->scale, relatives); /* often one multiply-add with what it does first */
        return;
    }
    if (HAS_SOFTCAP && p->softcap > 0) {
        apply_softcap(p, s);
    } else {
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v) s[v] *= p->scale;
    }
    if (HAS_ALL) apply_bias(p, t, shown, s, first, key);
    if (HAS_ALIBI && p->alibi) add_alibi(p, t, s, first, key);
    if (HAS_SCORE_FUNCTION) apply_score_function(p, t, s, first, key, 1, relatives);
}

#endif
