/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_row.h: exact rows and keys. Where sums are not finite, a warp computes the gradients again pair by pair: in a block
 * that the band or a mask crosses, the matrix product brings 0 * NaN to a row from a key that is hidden from it, and to a
 * key from a row. Finite data never come here. Lane l has the columns l, l + 32, ... A row or key whose columns have all
 * become NaN cannot change any more, and ends early. */
#ifndef STROBE_CUDA_SM90_BACKWARD_EXACT_ROW_H
#define STROBE_CUDA_SM90_BACKWARD_EXACT_ROW_H

#include "cuda/device/lanes.h"
#include "cuda/sm90/backward/score_terms.h"

enum { LANE_COLUMNS = HEAD_DIM / 32 };

INLINE float element_at(const struct sm90_rows *rows, int64_t start, int column) {
    return element_to_float(((const element *)rows->data)[start + column]);
}

/* The dot product of two rows, by the whole warp. */
INLINE float dot_of_rows(const struct sm90_rows *a, int64_t a_start, const struct sm90_rows *b, int64_t b_start) {
    float sum = 0;
    for (int x = (int)threadIdx.x % 32; x < a->columns; x += 32)
        sum += element_at(a, a_start, x) * element_at(b, b_start, x);
    return warp_sum(sum);
}

/* to += weight * row; a weight of 0 adds nothing, whatever the row holds. */
INLINE void add_row(float (&to)[LANE_COLUMNS], float weight, const struct sm90_rows *rows, int64_t start) {
    if (weight == 0) return;
#pragma unroll
    for (int n = 0; n < LANE_COLUMNS; ++n) {
        const int x = (int)threadIdx.x % 32 + 32 * n;
        if (x < rows->columns) to[n] += weight * element_at(rows, start, x);
    }
}

/* Of the columns from `first` to `end`. */
INLINE void store_row(const struct sm90_rows *to, int64_t start, const float (&from)[LANE_COLUMNS], float factor, int first,
                      int end) {
#pragma unroll
    for (int n = 0; n < LANE_COLUMNS; ++n) {
        const int x = (int)threadIdx.x % 32 + 32 * n;
        if (x >= first && x < end && x < to->columns)
            ((GRADIENT *)to->data)[start + x] = (GRADIENT)PACK_GRADIENT(from[n] * factor, 0);
    }
}

INLINE bool all_nan(const float (&sums)[LANE_COLUMNS], const struct sm90_rows *rows) {
    bool all = true;
#pragma unroll
    for (int n = 0; n < LANE_COLUMNS; ++n)
        all = all && ((int)threadIdx.x % 32 + 32 * n >= rows->columns || sums[n] != sums[n]);
    return __all_sync(0xffffffffu, all);
}

/* Where a pair's rows start. */
struct pair_rows {
    int64_t q, dout, k, v;
};

/* A pair's element of P as dV takes it, without dropout's factor, and its dS, without scale; both 0 where it is hidden. */
struct exact {
    float weight, gradient;
};

INLINE struct exact exact_pair(const struct sm90_backward_params *p, const struct pair_of_spans *in,
                               const struct slope *slope, int batch, int i, int j, const struct pair_rows *at, float lse,
                               float delta) {
    struct exact pair = {0, 0};
    if (HAS_MASKS) {
        const struct owner owner = owner_of(&p->visible, batch, slope->head, j / UNIT);
        if (unit_is_hidden(&p->visible, &owner, i / UNIT) || !bits_show(&p->visible, &owner, j, i)) return pair;
        if (!masks_show(&p->mask, &p->blocks, p->block_q, p->block_k, batch, slope->head, i, j)) return pair;
    }
    const float dot = dot_of_rows(&p->q_rows, at->q, &p->k_rows, at->k);
    const float dp = dot_of_rows(&p->dout_rows, at->dout, &p->v_rows, at->v);
    const float score = !HAS_SCORE_TERMS && !HAS_SOFTCAP ? dot
                        : p->softcap > 0                 ? softcapped(dot, p->softcap, p->cap_rate)
                                                         : dot * p->scale;
    const float alibi = alibi_of(slope, i, j) * (ALIBI_ALONE ? p->inverse_scale : 1);
    const float bias = HAS_BIAS && p->bias.data ? bias_at(&p->bias, score_at(&p->bias, batch, slope->head, i, j)) : 0;
    if (bias == -INFINITY) return pair; /* hidden, also from a row whose lse is NaN */
    struct score_place place = score_place_of(p, in, batch, slope->head);
    place.i += i, place.j += j;
    const float input = score - alibi + bias, given = HAS_SCORE_FUNCTION ? score_value(SCORE_OF(p), &place, input) : input;
    if (HAS_SCORE_FUNCTION && given == -INFINITY) return pair;
    const float weight = ex2(fmaf(given, p->exponent, lse));
    if (weight == 0) return pair;
    const bool kept = !HAS_DROPOUT || !p->dropout ||
                      dropout_keeps(&p->place, dropout_row(&p->place, batch, slope->head, i), j);
    pair.weight = kept ? weight : 0;
    pair.gradient = weight * (undropped(p, kept ? 1 : -1, dp) - delta);
    if (HAS_SCORE_FUNCTION) pair.gradient = score_F_CHAIN(pair.gradient, score_slope(SCORE_OF(p), &place, input));
    if (HAS_SOFTCAP && p->softcap > 0) pair.gradient *= softcap_derivative(p, weight, lse, bias - alibi);
    return pair;
}

/* Where lse and delta of row i lie. */
INLINE int64_t statistic_at(const struct sm90_backward_params *p, int batch, int head, int i) {
    return ((int64_t)batch * p->heads_kv * p->group + head) * p->row_blocks * ROWS + i;
}

/* Row i of dQ, 64 columns from `column` on. */
INLINE void exact_row(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch, int head, int i,
                      int column) {
    const struct slope slope = slope_of(p, in, batch, head);
    const int64_t statistic = statistic_at(p, batch, head, i);
    const int kv = head / p->group, end = band32_end_key(in->end_shift, i, in->keys.count);
    struct pair_rows at = {row_start(&p->q_rows, &in->rows, i, head), row_start(&p->dout_rows, &in->rows, i, head), 0, 0};
    float dq[LANE_COLUMNS] = {0};
    for (int j = band32_first_key(in->first_shift, i); j < end && !all_nan(dq, &p->dq_rows); ++j) {
        at.k = row_start(&p->k_rows, &in->keys, j, kv), at.v = row_start(&p->v_rows, &in->keys, j, kv);
        const struct exact pair = exact_pair(p, in, &slope, batch, i, j, &at, p->row_lse[statistic],
                                             p->row_delta[statistic]);
        add_row(dq, pair.gradient, &p->k_rows, at.k);
    }
    store_row(&p->dq_rows, row_start(&p->dq_rows, &in->rows, i, head), dq, p->scale, column, column + 64);
}

/* Key j of dK and dV. */
INLINE void exact_key(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch, int kv, int j) {
    const int first = band32_first_row(in->end_shift, j), end = band32_end_row(in->first_shift, j, in->rows.count);
    struct pair_rows at = {0, 0, row_start(&p->k_rows, &in->keys, j, kv), row_start(&p->v_rows, &in->keys, j, kv)};
    float dk[LANE_COLUMNS] = {0}, dv[LANE_COLUMNS] = {0};
    for (int head = kv * p->group; head < (kv + 1) * p->group; ++head) {
        const struct slope slope = slope_of(p, in, batch, head);
        for (int i = first; i < end && !(all_nan(dk, &p->dk_rows) && all_nan(dv, &p->dv_rows)); ++i) {
            const int64_t statistic = statistic_at(p, batch, head, i);
            at.q = row_start(&p->q_rows, &in->rows, i, head), at.dout = row_start(&p->dout_rows, &in->rows, i, head);
            const struct exact pair = exact_pair(p, in, &slope, batch, i, j, &at, p->row_lse[statistic],
                                                 p->row_delta[statistic]);
            add_row(dk, pair.gradient, &p->q_rows, at.q);
            add_row(dv, pair.weight, &p->dout_rows, at.dout);
        }
    }
    store_row(&p->dk_rows, row_start(&p->dk_rows, &in->keys, j, kv), dk, p->scale, 0, HEAD_DIM);
    store_row(&p->dv_rows, row_start(&p->dv_rows, &in->keys, j, kv), dv, dv_factor(p), 0, HEAD_DIM);
}

/* ---- recompute marks, in the workspace: one for sixteen keys, those of a warp's sums */

enum { MARKED_KEYS = 16 };

INLINE int64_t marks_of_head(const struct sm90_backward_params *p) { return (p->seq_k + MARKED_KEYS - 1) / MARKED_KEYS; }

INLINE int64_t all_marks(const struct sm90_backward_params *p) { return marks_of_head(p) * p->heads_kv * p->batch; }

/* Marks the warp's sixteen keys from `key` on if its sums of them are not all finite: 0 x = 0 unless x is an infinity or
 * NaN. */
template <int count>
INLINE void mark_keys(const struct sm90_backward_params *p, const struct tile *t, int key, const float (&sums)[count]) {
    float nothing = 0;
#pragma unroll
    for (int v = 0; v < count; ++v) nothing = fmaf(sums[v], 0, nothing);
    if (nothing != 0 && key < t->in.keys.count)
        p->marks[((int64_t)t->batch * p->heads_kv + t->head_kv) / p->shares * marks_of_head(p) + key / MARKED_KEYS] = 1;
}

/* Computes the marked keys again; each of the grid's `warps` warps looks at some of the marks. */
INLINE void exact_keys(const struct sm90_backward_params *p, int64_t warp, int64_t warps) {
    for (int64_t n = warp; n < all_marks(p); n += warps) {
        if (!p->marks[n]) continue;
        const int head = (int)(n / marks_of_head(p)), key = (int)(n % marks_of_head(p)) * MARKED_KEYS;
        const struct pair_of_spans in = spans_of(p, head / p->heads_kv);
        for (int j = key; j < key + MARKED_KEYS && j < in.keys.count; ++j)
            exact_key(p, &in, head / p->heads_kv, head % p->heads_kv, j);
    }
}

#endif
