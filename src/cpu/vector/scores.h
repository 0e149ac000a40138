/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scores.h: what happens between S = QK^T and the softmax, on a block of scores s [keys][TILE_ROWS] of a tile: softcap,
 * bias, ALiBi, the user's function and mask, in this order. Without score terms (softcap, bias, ALiBi) scores stay raw, and
 * the scale is part of the exponential's factor. With them, scores are scaled first and are in natural units from then on.
 * dropout.h has what happens after the softmax. */
#ifndef STROBE_CPU_SCORES_H
#define STROBE_CPU_SCORES_H

#include <math.h>

#include "cpu/vector/score_function.h"
#include "cpu/vector/tanh.h"
#include "cpu/vector/visible.h"
#if defined(STROBE_CPU_ISA_AVX512_H)
#include "cpu/vector/bias_columns.h"
#endif

/* Whether there is a score term, so that scores need a pass of their own before the mask. */
static inline bool scores_have_terms(const struct problem *p) {
    return p->a.softcap > 0 || p->a.bias || p->a.alibi || p->features & FEATURE(SCORE);
}

/* Whether pairs inside the band can be hidden: by a boolean or block mask, by a bias of -inf, or by the user's function. */
static inline bool scores_have_element_masks(const struct problem *p) {
    return p->a.bool_mask || p->a.block_mask || p->a.bias || p->a.score;
}

/* What scores, raw or in natural units, are still to be multiplied by. It is not negative: a negative scale changes the
 * signs of Q instead (query_factor), and the largest raw score has the largest exponential. */
static inline double exact_score_scale(const struct problem *p) { return scores_have_terms(p) ? 1 : fabs(p->a.scale); }
static inline float score_scale(const struct problem *p) { return (float)exact_score_scale(p); }

/* exp(score scale) = exp2(score * factor). */
static inline float exponent_factor(const struct problem *p) { return (float)(exact_score_scale(p) * LOG2_E); }

/* The factor of Q when it is packed. */
static inline float query_factor(const struct problem *p) {
    return scores_have_terms(p) ? (float)p->a.scale : p->a.scale < 0 ? -1.0f : 1.0f;
}

/* s = softcap tanh(scale s / softcap); slope, unless NULL, gets the derivative of the new s by scale s. */
ALWAYS_INLINE void scores_softcap(float *s, float *slope, const struct visible_block *v, int64_t keys, float softcap,
                                  float scale) {
    const vec factor = v_set(scale / softcap);
    for (int64_t j = 0; j < keys; ++j)
        for (int64_t at = j * TILE_ROWS + v->first * LANES; at < j * TILE_ROWS + v->end * LANES; at += LANES) {
            const vec t = v_tanh(v_mul(v_load(s + at), factor));
            v_store(s + at, v_mul(t, v_set(softcap)));
            if (slope) v_store(slope + at, v_sub(v_set(1), v_mul(t, t)));
        }
}

/* The bias of the keys [j0, j0 + keys), of a row that starts at `at`: in place, or widened into `row` up to whole vectors.
 */
static inline const float *bias_row(float row[BLOCK_KEYS], const strobe_bias *bias, int64_t at, int64_t j0, int64_t keys) {
    if (bias->dtype == STROBE_FP32 && keys % LANES == 0) return (const float *)bias->data + at + j0;
    widen_row(row, bias->data, bias->dtype, at + j0, keys);
    for (int64_t j = keys; j % LANES != 0; ++j) row[j] = 0;
    return row;
}

/* Adds a bias that all rows of the tile share; see_block() has found what it hides. */
ALWAYS_INLINE void scores_shared_bias(float *s, const struct tile_rows *t, const struct row_features *f,
                                      const struct visible_block *v, int64_t j0, int64_t keys, float scale) {
    float memory[BLOCK_KEYS];
    const float *row = bias_row(memory, &t->p->bias, f->bias[0], j0, keys);
    for (int64_t j = 0; j < keys; ++j) {
        const vec bias = v_set(row[j]);
        for (int64_t at = j * TILE_ROWS + v->first * LANES; at < j * TILE_ROWS + v->end * LANES; at += LANES)
            v_store(s + at, v_add(v_mul(v_load(s + at), v_set(scale)), bias));
    }
}

/* s = scale s + bias in LANES rows and `count` keys, at most LANES. The bias is transposed, so that rows lie across the
 * lanes. Where it is -inf, the score becomes that, whatever it was, a NaN too. Returns whether it is -inf somewhere. */
ALWAYS_INLINE bool add_bias_square(float *s, const float *const row[LANES], int64_t j, int64_t count, float scale) {
    const vec none = v_set(-INFINITY);
    vec bias[LANES], least = v_set(0);
    for (int lane = 0; lane < LANES; ++lane) {
        bias[lane] = v_load(row[lane] + j);
        least = v_min(bias[lane], least); /* a NaN of the bias leaves it as it is */
    }
    const bool hidden = v_equal_bits(least, none) != 0;
    v_transpose_floats(bias);
    for (int64_t n = 0; n < count; ++n) {
        const vec sum = v_fma(v_load(s + n * TILE_ROWS), v_set(scale), bias[n]);
        v_store(s + n * TILE_ROWS, hidden ? v_select_equal(bias[n], none, none, sum) : sum);
    }
    return hidden;
}

/* Adds a bias of any dtype to LANES rows, which is widened first. Returns whether it is -inf somewhere. */
ALWAYS_INLINE bool scores_bias_widened(float *s, const strobe_bias *bias, const int64_t at[LANES], int64_t j0, int64_t keys,
                                       float scale) {
    float memory[LANES][BLOCK_KEYS];
    const float *row[LANES];
    bool hidden = false;
    int64_t j = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) row[lane] = bias_row(memory[lane], bias, at[lane], j0, keys);
    for (; j + LANES <= keys; j += LANES) hidden = add_bias_square(s + j * TILE_ROWS, row, j, LANES, scale) || hidden;
    if (j < keys) hidden = add_bias_square(s + j * TILE_ROWS, row, j, keys - j, scale) || hidden;
    return hidden;
}

/* Adds the bias. Returns whether it is -inf somewhere, unless see_block() has found that. */
ALWAYS_INLINE bool scores_bias(float *s, const struct tile_rows *t, const struct row_features *f,
                               const struct visible_block *v, int64_t j0, int64_t keys, float scale) {
    const strobe_bias *bias = &t->p->bias;
    const int64_t bytes = (int64_t)strobe__dtype_bytes(bias->dtype);
    bool hidden = false;
    if (f->bias_is_shared) {
        scores_shared_bias(s, t, f, v, j0, keys, scale);
        return false;
    }
    for (int64_t r = v->first * LANES; r < v->end * LANES; r += LANES) {
        int64_t at[LANES], j = 0; /* lanes without a row read the first one */
        for (int64_t lane = 0; lane < LANES; ++lane) {
            at[lane] = f->bias[r + lane < t->n ? r + lane : 0];
            prefetch_row(bias->data, (at[lane] + j0 + BLOCK_KEYS) * bytes, BLOCK_KEYS * bytes);
        }
#if defined(STROBE_CPU_ISA_AVX512_H)
        j = bias_columns(s + r, bias, at, j0, keys, scale, &hidden);
#endif
        if (j < keys) hidden = scores_bias_widened(s + j * TILE_ROWS + r, bias, at, j0 + j, keys - j, scale) || hidden;
    }
    return hidden;
}

ALWAYS_INLINE void scores_alibi(float *s, const struct row_features *f, const struct visible_block *v, int64_t j0,
                                int64_t keys, float scale) {
    float distance[TILE_ROWS]; /* from the block's first key */
    for (int r = 0; r < TILE_ROWS; ++r) distance[r] = (float)(f->alibi_key[r] - j0);
    for (int64_t r = v->first * LANES; r < v->end * LANES; r += LANES) {
        const vec from = v_load(distance + r), slope = v_load(f->minus_slope + r);
        for (int64_t j = 0; j < keys; ++j) {
            float *at = s + j * TILE_ROWS + r;
            v_store(at, v_fma(v_abs(v_sub(from, v_set((float)j))), slope, v_mul(v_load(at), v_set(scale))));
        }
    }
}

/* All of it, on the scores of keys [j0, j0 + keys), for the vectors of rows that see some of them. scale: what the scores
 * are still to be multiplied by, which the first score term does; only 1 without a term. It is inlined, so that a product by
 * a constant 1 is none. Returns whether some pair of the block may be hidden. */
ALWAYS_INLINE bool finish_block_scores(float *s, float *slope, const struct tile_rows *t, const struct row_features *f,
                                       const struct visible_block *v, int64_t j0, int64_t keys, float scale) {
    const struct problem *p = t->p;
    const strobe_attention *a = &p->a;
    bool hidden = v->coverage == BLOCK_PARTIAL;
    if (a->softcap > 0) scores_softcap(s, slope, v, keys, (float)a->softcap, scale);
    if (a->bias) hidden = scores_bias(s, t, f, v, j0, keys, a->softcap > 0 ? 1 : scale) || hidden;
    if (a->alibi) scores_alibi(s, f, v, j0, keys, a->softcap > 0 || a->bias ? 1 : scale);
    if (p->features & FEATURE(SCORE))
        hidden = scores_function(s, t, &f->score, v->first, v->end, j0, keys,
                                 a->softcap > 0 || a->bias || a->alibi ? 1 : scale) ||
                 hidden;
    if (v->coverage == BLOCK_PARTIAL) hide_scores(s, v, keys);
    return hidden;
}

static inline void multiply(float *x, const float *y, const struct visible_block *v, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j)
        for (int64_t at = j * TILE_ROWS + v->first * LANES; at < j * TILE_ROWS + v->end * LANES; at += LANES)
            v_store(x + at, v_mul(v_load(x + at), v_load(y + at)));
}

#endif
