/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_row.h: exact rows. A row whose O is not finite is computed again, by a warp, from the keys that it sees alone: in a
 * block that the mask crosses, the matrix product brings 0 * NaN to a row from a key that is hidden from it. Consumers note
 * such rows in the workspace and compute them when all tiles are done. Finite data never come here. */
#ifndef STROBE_CUDA_SM90_EXACT_ROW_H
#define STROBE_CUDA_SM90_EXACT_ROW_H

#include <math.h>

#include "cuda/device/lanes.h"
#include "cuda/device/score_terms.h"
#include "cuda/sm90/forward/pages.h"
#include "cuda/sm90/forward/schedule.h"
#include "cuda/sm90/forward/score_terms.h"
#include "cuda/sm90/forward/shared.h"
#if defined(FP8_INPUTS)
#include "cuda/sm90/fp8/scales.h"
#include "math/fp8.h"
#endif

/* An element of V, and one of Q or K, and what it is still to be multiplied with. */
#if defined(FP8_INPUTS)
INLINE float element_at(const void *data, int64_t at) { return e4m3_to_float(((const uint8_t *)data)[at]); }
#if defined(INT8_SCORES)
INLINE float score_element_at(const void *data, int64_t at) { return ((const int8_t *)data)[at]; }
#else
#define score_element_at element_at
#endif
#define SCORE_SCALE(p, t, i, j) (scale_of_row(p, t, i) * scale_of_key(p, t, (p)->scales.k, (p)->scales.k_stride, j))
#define VALUE_SCALE(p, t, j)    scale_of_key(p, t, (p)->scales.v, (p)->scales.v_stride, j)
#define WRITES_LSE              1
#else
INLINE float element_at(const void *data, int64_t at) { return element_to_float(((const element *)data)[at]); }
#define score_element_at        element_at
#define SCORE_SCALE(p, t, i, j) 1
#define VALUE_SCALE(p, t, j)    1
#define WRITES_LSE              HAS_BIAS_TILES
#endif

/* Elements from the tensor's data to key j of head 0; false if the key has no page. */
INLINE bool find_key(const struct sm90_forward_params *p, const struct tile *t, const int64_t stride[3], int j,
                     int64_t *at) {
    if (HAS_PAGES) {
        const int page = page_of_number(p, number_of_key(p, t->batch, j));
        *at = page * stride[0] + slot_of_key(p, j) * stride[1];
        return page != NO_PAGE;
    }
    *at = (p->cu_seqlens_k ? 0 : t->batch * stride[0]) + (t->first_key + j) * stride[1];
    return true;
}

/* The score of row i and key j, in natural units; -inf where masks hide it. All lanes share the dot product. */
INLINE float exact_score(const struct sm90_forward_params *p, const struct tile *t, int64_t q, int64_t k, int64_t i,
                         int64_t j) {
    float dot = 0;
    for (int x = threadIdx.x % 32; x < p->dim; x += 32)
        dot += score_element_at(p->q_data, q + x) * score_element_at(p->k_data, k + x);
    float s = warp_sum(dot) * SCORE_SCALE(p, t, (int)i, (int)j) * p->scale;
    if (p->softcap > 0) s = p->softcap * tanhf(s / p->softcap);
    if (HAS_MASKS && !masks_show(&p->mask, &p->blocks, p->block_q, p->block_k, t->batch, t->head, (int)i, (int)j))
        return -INFINITY;
    if (HAS_MASKS && !bits_show(&p->visible, &t->owner, (int)i, (int)j)) return -INFINITY;
    if (HAS_BIAS && p->bias.data) s = biased(s, bias_at(&p->bias, score_at(&p->bias, t->batch, t->head, (int)i, (int)j)));
    const float distance = fabsf((float)(i + p->start + t->keys - t->rows - j));
    if (HAS_ROW_OFFSETS)
        s -= p->alibi_factor * alibi_slope(p, t) * distance;
    else if (p->alibi)
        s -= p->alibi[t->batch * p->alibi_stride + t->head] * distance;
    if (HAS_SCORE_FUNCTION && s != -INFINITY) {
        struct score_place at = score_place_of(p, t);
        at.i += (int)i, at.j += (int)j;
        s = score_value(SCORE_OF(p), &at, s);
    }
    return s;
}

/* The keys that a row sees, of the tile's part alone. */
INLINE int first_key_of_part(const struct tile *t, int i) {
    return HAS_PARTS ? max(first_key_of(t, i), t->first_block * KEYS) : first_key_of(t, i);
}
INLINE int end_key_of_part(const struct tile *t, int i) {
    return HAS_PARTS ? min(end_key_of(t, i), t->end_block * KEYS) : end_key_of(t, i);
}

/* How far above a score that passes it the maximum is put, so that scores which grow from key to key, as ALiBi's do, do not
 * multiply the sum by a rounded number, with the same error each time, at every one of them. */
#define EXACT_HEADROOM 2.0f

/* A sum of one number after another, and what its roundings have left out (Kahan's): weights that are nearly equal are all
 * rounded the same way. */
struct long_sum {
    float sum, rest;
};

INLINE void add_to(struct long_sum *s, float x) {
    const float all = x + s->rest, sum = s->sum + all, rest = all - (sum - s->sum);
    s->rest = isfinite(sum) ? rest : 0, s->sum = sum;
}
INLINE void rescale_sum(struct long_sum *s, float factor) { s->sum *= factor, s->rest *= factor; }

/* Row i of O, by online softmax over one key at a time. */
INLINE void exact_row(const struct sm90_forward_params *p, const struct tile *t, int i) {
    const int lane = threadIdx.x % 32, kv = t->head / p->group;
    const bool has_dropout = HAS_DROPOUT && p->dropout;
    const int64_t q = row_at(p, t, p->q_stride, i);
    int64_t k, v;
    const uint64_t dropped = has_dropout ? dropout_row(&p->place, t->batch, t->head, i) : 0;
    const float keep_scale = has_dropout ? p->place.keep_scale : 1;
    float maximum = p->sinks ? p->sinks[head_of(t, i)] : -INFINITY;
    struct long_sum o[8] = {{0, 0}}, l = {p->sinks ? 1.0f : 0.0f, 0};
#pragma unroll 1
    for (int j = first_key_of_part(t, i); j < end_key_of_part(t, i); ++j) {
        if (HAS_MASKS && unit_is_hidden(&p->visible, &t->owner, j / UNIT)) {
            j = j / UNIT * UNIT + UNIT - 1; /* the unit's last key */
            continue;
        }
        if (!find_key(p, t, p->k_stride, j, &k)) continue;
        const float s = exact_score(p, t, q, k + kv * p->k_stride[2], i, j);
        if (s == -INFINITY) continue;
        find_key(p, t, p->v_stride, j, &v);
        const float higher = s > maximum ? s + EXACT_HEADROOM : maximum;
        const float rescale = maximum == -INFINITY ? 0 : expf(maximum - higher);
        const float weight = expf(s - higher);
        const bool kept = !has_dropout || dropout_keeps(&p->place, dropped, j);
        const int64_t row = v + kv * p->v_stride[2];
        rescale_sum(&l, rescale), add_to(&l, weight);
        maximum = higher;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (lane + 32 * n < p->dim_v) {
                rescale_sum(&o[n], rescale);
                if (kept)
                    add_to(&o[n], weight * keep_scale * VALUE_SCALE(p, t, j) * element_at(p->v_data, row + lane + 32 * n));
            }
    }
    OUT_TYPE *out = (OUT_TYPE *)p->out + row_at(p, t, p->out_stride, i) + part_at(t, p->parts.step_out);
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (lane + 32 * n < p->dim_v)
            out[lane + 32 * n] = (OUT_TYPE)PACK_OUT(l.sum > 0 || l.sum != l.sum ? o[n].sum / l.sum : 0, 0);
    if (WRITES_LSE && p->lse && lane == 0)
        p->lse[row_at(p, t, p->lse_stride, i)] = l.sum > 0 || l.sum != l.sum ? maximum + logf(l.sum) : -INFINITY;
}

/* The recompute mark of a warp's sixteen rows of a tile. The marks of a warp form a chain from its last tile to its first:
 * each holds the number of the tile before, -1 at the end. */
INLINE int32_t *recompute_mark(struct sm90_workspace *workspace, int tile, int first) {
    return &workspace->recompute_mark[tile * (int64_t)(4 * GROUPS) + first / 16];
}

/* Puts the warp's rows of a tile, from `first` on, in front of its chain. */
INLINE void mark_for_recompute(struct sm90_workspace *workspace, int tile, int32_t *chain, int first) {
    if (threadIdx.x % 32 == 0) *recompute_mark(workspace, tile, first) = *chain, *chain = tile;
    __syncwarp();
}

/* Computes the marked rows of the warp. But for those that bias_tile.h has made, their lse is right already, because a
 * hidden score is -inf whatever its K holds. */
INLINE void recompute_marked(const struct sm90_forward_params *p, int chain, int first) {
    for (; chain >= 0; chain = *recompute_mark(p->workspace, chain, first)) {
        struct tile t;
        struct cursor cursor = {0, 0};
        describe_tile(p, chain, &cursor, &t, true);
        for (int row = t.row + first; row < t.row + first + 16 && row < t.rows; ++row) exact_row(p, &t, row);
    }
}

#endif
