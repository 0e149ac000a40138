/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scores.h: what happens between S = QK^T and the softmax, on a block of scores s [keys][TILE_ROWS] of a tile: softcap,
 * bias, ALiBi and mask, in this order, and dropout after the softmax. Without score terms (softcap, bias, ALiBi) scores stay
 * raw, and the scale is part of the exponential's factor. With them, scores are scaled first and are in natural units from
 * then on. */
#ifndef STROBE_CPU_SCORES_H
#define STROBE_CPU_SCORES_H

#include <math.h>

#include "cpu/vector/rows.h"

/* Whether there is a score term, so that scores need a pass of their own before the mask. */
static inline bool scores_have_terms(const struct problem *p) { return p->a.softcap > 0 || p->a.bias || p->a.alibi; }

/* Whether pairs inside the band can be hidden: by a boolean or block mask, or by a bias of -inf. */
static inline bool scores_have_element_masks(const struct problem *p) {
    return p->a.bool_mask || p->a.block_mask || p->a.bias;
}

/* The factor of scores, raw or in natural units, in the exponential: exp(score) = exp2(score * factor). It is not negative:
 * a negative scale changes the signs of Q instead (query_factor), and the largest raw score has the largest exponential. */
static inline float exponent_factor(const struct problem *p) {
    return (float)(scores_have_terms(p) ? LOG2_E : fabs(p->a.scale) * LOG2_E);
}

/* The factor of Q when it is packed. */
static inline float query_factor(const struct problem *p) {
    return scores_have_terms(p) ? (float)p->a.scale : p->a.scale < 0 ? -1.0f : 1.0f;
}

/* tanh x: x + x^3 p(x^2) with a minimax polynomial for |x| <= 0.625, error 1.6e-9, and 1 - 2 / (1 + e^2x) beyond. */
static inline vec v_tanh(vec x) {
    const vec size = v_abs(x), square = v_mul(x, x);
    vec p = v_fma(v_set(0.002292744816f), square, v_set(-0.008343945516f));
    p = v_fma(p, square, v_set(0.02176891865f));
    p = v_fma(p, square, v_set(-0.05395925958f));
    p = v_fma(p, square, v_set(0.1333330356f));
    p = v_fma(p, square, v_set(-0.3333333317f));
    const vec near = v_fma(v_mul(p, square), x, x);
    const vec exponent = v_mul(size, v_set((float)(2 * LOG2_E)));
    const vec bounded = v_select_less(v_set(40.0f), exponent, v_set(40.0f), exponent);
    const vec far = v_sub(v_set(1), v_div(v_set(2), v_add(v_set(1), v_exp2(bounded))));
    const vec with_sign = v_select_less(x, v_set(0), v_sub(v_set(0), far), far);
    return v_select_less(size, v_set(0.625f), near, with_sign);
}

/* s = softcap tanh(s / softcap); slope, unless NULL, gets the derivative of the new s by the old one. */
static inline void scores_softcap(float *s, float *slope, int64_t keys, float softcap) {
    for (int64_t at = 0; at < keys * TILE_ROWS; at += LANES) {
        const vec t = v_tanh(v_mul(v_load(s + at), v_set(1 / softcap)));
        v_store(s + at, v_mul(t, v_set(softcap)));
        if (slope) v_store(slope + at, v_sub(v_set(1), v_mul(t, t)));
    }
}

static inline void scores_bias(float *s, const struct tile_rows *t, int64_t j0, int64_t keys) {
    const strobe_bias *bias = &t->p->bias;
    for (int64_t r = 0; r < t->n; ++r) {
        const int64_t at = t->s.b * bias->stride[0] + packed_head(t, r) * bias->stride[1] +
                           packed_row(t, r) * bias->stride[2];
        for (int64_t j = 0; j < keys; ++j) s[j * TILE_ROWS + r] += (float)element_load(bias->data, bias->dtype, at + j0 + j);
    }
}

static inline void scores_alibi(float *s, const struct tile_rows *t, int64_t j0, int64_t keys) {
    const strobe_alibi *alibi = &t->p->alibi;
    const int64_t diagonal = strobe__alibi_diagonal(t->p, &t->s);
    for (int64_t r = 0; r < t->n; ++r) {
        const float slope = alibi->slopes[t->s.b * alibi->stride_batch + packed_head(t, r)];
        for (int64_t j = 0; j < keys; ++j) {
            const int64_t distance = packed_row(t, r) + diagonal - (j0 + j);
            s[j * TILE_ROWS + r] -= slope * (float)(distance < 0 ? -distance : distance);
        }
    }
}

/* Sets scores to -inf where the band hides a key from a row. Bounds are relative to the block and so exact as floats. */
static inline void scores_band(float *s, const struct tile_rows *t, int64_t j0, int64_t keys) {
    float first[TILE_ROWS], end[TILE_ROWS];
    int64_t i = packed_row(t, 0), last_of_row = (i + 1) * t->p->group - 1 - t->first;
    for (int64_t r = 0; r < TILE_ROWS; ++r) {
        const int64_t low = band_first(&t->s.band, i) - j0, high = band_end(&t->s.band, i) - j0;
        first[r] = low <= 0 ? 0 : low < keys ? (float)low : (float)keys;
        end[r] = high <= 0 ? 0 : high < keys ? (float)high : (float)keys;
        if (r == last_of_row && r + 1 < t->n) {
            ++i;
            last_of_row += t->p->group;
        }
    }
    const vec hidden = v_set(-INFINITY);
    /* The last row's keys start last. Where they start at or before the block, as always under a causal mask, no row needs
     * this. */
    const bool starts = band_first(&t->s.band, i) > j0;
    for (int64_t j = 0; j < keys; ++j)
        for (int64_t c = 0; c < TILE_ROWS; c += LANES) {
            const vec key = v_set((float)j);
            vec x = v_load(s + j * TILE_ROWS + c);
            if (starts) x = v_select_less(key, v_load(first + c), hidden, x);
            x = v_select_less(key, v_load(end + c), x, hidden);
            v_store(s + j * TILE_ROWS + c, x);
        }
}

/* Sets scores to -inf where a boolean or block mask or a bias of -inf hides a key, whatever the score is, a NaN too. A block
 * that a block mask hides is computed all the same. */
static inline void scores_element_masks(float *s, const struct tile_rows *t, int64_t j0, int64_t keys) {
    const struct problem *p = t->p;
    for (int64_t r = 0; r < t->n; ++r) {
        const int64_t b = t->s.b, h = packed_head(t, r), i = packed_row(t, r);
        float *column = s + r;
        if (p->a.bool_mask) {
            const int64_t *stride = p->bool_mask.stride;
            const uint8_t *mask = p->bool_mask.data + b * stride[0] + h * stride[1] + i * stride[2] + j0;
            for (int64_t j = 0; j < keys; ++j)
                if (!mask[j]) column[j * TILE_ROWS] = -INFINITY;
        }
        if (p->a.block_mask) {
            const strobe_block_mask *m = &p->block_mask;
            const uint8_t *mask = m->data + b * m->stride[0] + h * m->stride[1] + i / m->block_q * m->stride[2];
            for (int64_t j = 0; j < keys; ++j)
                if (!mask[(j0 + j) / m->block_k]) column[j * TILE_ROWS] = -INFINITY;
        }
        if (p->a.bias) {
            const strobe_bias *bias = &p->bias;
            const int64_t at = b * bias->stride[0] + h * bias->stride[1] + i * bias->stride[2] + j0;
            for (int64_t j = 0; j < keys; ++j)
                if (element_load(bias->data, bias->dtype, at + j) == -(double)INFINITY) column[j * TILE_ROWS] = -INFINITY;
        }
    }
}

/* All of it, on the raw scores of keys [j0, j0 + keys). Returns whether some pair of the block may be hidden. */
static inline bool scores_finish(float *s, float *slope, const struct tile_rows *t, int64_t j0, int64_t keys,
                                 enum coverage coverage) {
    const strobe_attention *a = &t->p->a;
    const bool masked = scores_have_element_masks(t->p);
    if (a->softcap > 0) scores_softcap(s, slope, keys, (float)a->softcap);
    if (a->bias) scores_bias(s, t, j0, keys);
    if (a->alibi) scores_alibi(s, t, j0, keys);
    if (coverage == BLOCK_PARTIAL) scores_band(s, t, j0, keys);
    if (masked) scores_element_masks(s, t, j0, keys);
    return coverage == BLOCK_PARTIAL || masked;
}

/* Writes the factors of dropout to z [keys][TILE_ROWS]: 0, or 1 / (1 - p). */
static inline void dropout_factors(float *z, const struct tile_rows *t, const struct dropout_place *place, int64_t j0,
                                   int64_t keys) {
    for (int64_t r = 0; r < t->n; ++r) {
        const uint64_t row = dropout_row(place, t->s.b, packed_head(t, r), packed_row(t, r));
        for (int64_t j = 0; j < keys;) {
            const uint64_t key = (uint64_t)(place->key_start + j0 + j);
            const struct philox_words words = philox4x32_10(place->seed, place->offset, row + key / 4);
            for (uint64_t word = key % 4; word < 4 && j < keys; ++word, ++j)
                z[j * TILE_ROWS + r] = words.word[word] >= place->threshold ? place->keep_scale : 0;
        }
    }
}

static inline void multiply(float *x, const float *y, int64_t keys) {
    for (int64_t at = 0; at < keys * TILE_ROWS; at += LANES) v_store(x + at, v_mul(v_load(x + at), v_load(y + at)));
}

#endif
