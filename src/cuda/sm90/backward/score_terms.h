/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_terms.h: what happens to scores between the products of the Hopper backward, and to gradients on their way back,
 * in the order scale, softcap, ALiBi, bias, mask; and dropout to weights. Variants with TERMS 0 have the band alone, those
 * with TERMS 1 softcap and ALiBi, with TERMS 2 the rest too, since code that only stands by costs time.
 *
 * Scores are transposed: accumulator v of a thread belongs to key at.key + lane / 4 + 8 (v / 2 % 2) and to row at.row + 2
 * (lane % 4) + 8 (v / 4) + v % 2. A weight of 0 is that of a pair that is hidden, or as good as: its gradient is 0, whatever
 * the other operands hold. A weight that dropout leaves out is negative: dS takes its size, dV does without. */
#ifndef STROBE_CUDA_SM90_BACKWARD_TERMS_H
#define STROBE_CUDA_SM90_BACKWARD_TERMS_H

#include "cuda/sm90/backward/tile.h"

/* Accumulators of a block's scores are gone through in parts, so that a product can start with the first. */
enum { PART = ROWS / 2 / PARTS };

/* Of accumulator v, from the thread's first: its row, its key. */
#define ROW_OF(v) (8 * ((v) / 4) + (v) % 2)
#define KEY_OF(v) (8 * ((v) / 2 % 2))

/* A warp's sixteen keys and a block of rows. */
struct meeting {
    uint32_t stage; /* of the rows */
    int key, row;
    bool full; /* the band shows all to all */
};

INLINE int first_key(const struct meeting *at) { return at->key + (int)threadIdx.x % 32 / 4; }
INLINE int first_row(const struct meeting *at) { return at->row + (int)threadIdx.x % 4 * 2; }

/* Rows, from the thread's first, that the band shows its two keys to. */
struct seen {
    int low[2], high[2];
};

INLINE struct seen seen_of(const struct tile *t, const struct meeting *at) {
    const struct pair_of_spans *in = &t->in;
    const int origin = first_row(at);
    struct seen seen;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = first_key(at) + 8 * i, last = j - in->first_shift;
        seen.low[i] = j - in->end_shift + 1 - origin;
        seen.high[i] = j < in->keys.count ? (last < in->rows.count ? last : in->rows.count - 1) - origin : -1;
    }
    return seen;
}

#define SEEN(seen, v) (ROW_OF(v) >= (seen).low[(v) / 2 % 2] && ROW_OF(v) <= (seen).high[(v) / 2 % 2])

/* Zeroes what the band hides in a part. A hidden pair has no part in any sum, whatever its row of dO or its key of V may
 * hold. */
INLINE void hide(const struct tile *t, const struct meeting *at, float (&x)[ROWS / 2], int part) {
    const struct seen seen = seen_of(t, at);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        if (!SEEN(seen, v)) x[v] = 0;
}

/* A query head, and its ALiBi, which is taken from scores. */
struct slope {
    int head;
    float slope;
    int diagonal;
};

INLINE struct slope slope_of(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch, int head) {
    const struct slope s = {head, p->alibi ? p->alibi[batch * p->alibi_stride + head] : 0,
                            p->alibi_start + in->keys.count - in->rows.count};
    return s;
}

/* Of the query head that a consumer is at. */
INLINE struct slope slope_at(const struct sm90_backward_params *p, const struct tile *t, const struct progress *at) {
    return slope_of(p, &t->in, t->batch, (t->head_kv + 1) * p->group - at->heads);
}

INLINE float alibi_of(const struct slope *slope, int i, int j) {
    return slope->slope * fabsf((float)(i + slope->diagonal - j));
}

/* softcap tanh(dot scale / softcap), by tanh x = 1 - 2 / (1 + e^2x): its absolute error is that of fp32, which is what
 * counts in an exponent. */
INLINE float capped(const struct sm90_backward_params *p, float dot) {
    return fmaf(-2 * p->softcap, reciprocal(1 + ex2(dot * p->cap_rate)), p->softcap);
}

/* d score / d (dot scale), by a weight that is not 0: lse in base 2, negated; added: what softcap's result had added. */
INLINE float softcap_slope(const struct sm90_backward_params *p, float weight, float lse, float added) {
    const float y = ((__log2f(weight) - lse) * (float)LN_2 - added) * p->cap_inverse;
    return 1 - y * y;
}

/* ---- TERMS 2: tensors over scores, [batch][head][row][key] */

INLINE int64_t score_at(const struct view *x, int batch, int head, int i, int j) {
    return batch * x->batch + head * x->head + i * x->row + j;
}

INLINE float bias_to_float(float x) { return x; }
INLINE float bias_to_float(element x) { return element_to_float(x); }

/* fp32, or of the element type. */
INLINE float bias_at(const struct view *bias, int64_t at) {
    return bias->dtype == CUDA_FP32 ? ((const float *)bias->data)[at] : element_to_float(((const element *)bias->data)[at]);
}

/* A bias of -inf hides its key, and a NaN of its K. */
INLINE float biased(float score, float bias) { return bias == -INFINITY ? -INFINITY : score + bias; }

INLINE bool masks_show(const struct sm90_backward_params *p, int batch, int head, int i, int j) {
    if (p->mask.data && !((const uint8_t *)p->mask.data)[score_at(&p->mask, batch, head, i, j)]) return false;
    return !p->blocks.data ||
           ((const uint8_t *)p->blocks.data)[score_at(&p->blocks, batch, head, i / p->block_q, j / p->block_k)];
}

/* Bias and masks are read for pairs that the band shows: others may lie outside of their tensors. */
template <typename type>
INLINE void add_bias_of(const type *from, int64_t row, const struct seen &seen, float (&s)[ROWS / 2], int part) {
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        s[v] = biased(s[v], SEEN(seen, v) ? bias_to_float(from[ROW_OF(v) * row + KEY_OF(v)]) : 0);
}

INLINE void add_bias(const struct sm90_backward_params *p, const struct tile *t, int head, const struct meeting *at,
                     float (&s)[ROWS / 2], int part) {
    const struct view *bias = &p->bias;
    const int64_t from = score_at(bias, t->batch, head, first_row(at), first_key(at));
    if (bias->dtype == CUDA_FP32)
        add_bias_of((const float *)bias->data + from, bias->row, seen_of(t, at), s, part);
    else
        add_bias_of((const element *)bias->data + from, bias->row, seen_of(t, at), s, part);
}

INLINE void hide_masked(const struct sm90_backward_params *p, const struct tile *t, int head, const struct meeting *at,
                        float (&s)[ROWS / 2], int part) {
    const struct seen seen = seen_of(t, at);
    const uint8_t *mask = (const uint8_t *)p->mask.data + score_at(&p->mask, t->batch, head, first_row(at), first_key(at));
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        const uint8_t shown = SEEN(seen, v) ? mask[ROW_OF(v) * p->mask.row + KEY_OF(v)] : 1;
        s[v] = shown ? s[v] : 0;
    }
}

/* Blocks have whole eights of rows: all of a thread's in eight rows share one. */
INLINE void hide_blocks(const struct sm90_backward_params *p, const struct tile *t, int head, const struct meeting *at,
                        float (&s)[ROWS / 2], int part) {
    const uint8_t *mask = (const uint8_t *)p->blocks.data + score_at(&p->blocks, t->batch, head, 0, 0);
    const int row = at->row + 2 * PART * part, keys = t->in.keys.count, j = first_key(at);
    const int column[2] = {(j < keys ? j : keys - 1) / p->block_k, (j + 8 < keys ? j + 8 : keys - 1) / p->block_k};
    int block = row / p->block_q, left = p->block_q - row % p->block_q;
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; v += 4) {
        const bool there = at->row + 2 * v < t->in.rows.count;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint8_t shown = there ? mask[block * p->blocks.row + column[i]] : 1;
            s[v + 2 * i] = shown ? s[v + 2 * i] : 0;
            s[v + 2 * i + 1] = shown ? s[v + 2 * i + 1] : 0;
        }
        left -= 8;
        if (left == 0) ++block, left = p->block_q;
    }
}

/* Which of 32 accumulators, of rows from `row` on, dropout keeps: bit v. One call of Philox serves four keys of a row, which
 * four lanes have; each of them makes those calls whose result belongs to every fourth accumulator, from its own on. */
INLINE uint32_t kept_bits(const struct sm90_backward_params *p, int batch, int head, int key, int row) {
    const int lane = (int)threadIdx.x % 32, member = lane / 4 % 4;
    const int i = row + lane % 4 * 2 + member % 2, j = key + member / 2 * 8 + lane / 16 * 4;
    uint64_t quad = dropout_row(&p->place, batch, head, i) + (uint64_t)(p->place.key_start + j) / 4;
    uint32_t own = 0, all = 0;
#pragma unroll 2
    for (int n = 0; n < 32; n += 4, quad += 8 * (uint64_t)p->place.quads) {
        const struct philox_words words = philox4x32_10(p->place.seed, p->place.offset, quad);
#pragma unroll
        for (int x = 0; x < 4; ++x) own |= (uint32_t)(words.word[x] >= p->place.threshold) << (n + x);
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) all |= (__shfl_xor_sync(0xffffffffu, own, 4 * x) >> member & 0x11111111u) << (member ^ x);
    return all;
}

INLINE void mark_dropped(const struct sm90_backward_params *p, const struct tile *t, int head, const struct meeting *at,
                         float (&s)[ROWS / 2], int part) {
    static_assert(TERMS < 2 || PART % 32 == 0, "bits come in words");
#pragma unroll
    for (int word = part * PART; word < (part + 1) * PART; word += 32) {
        const uint32_t kept = kept_bits(p, t->batch, head, at->key, at->row + 2 * word);
#pragma unroll
        for (int v = 0; v < 32; ++v)
            if (!(kept >> v & 1)) s[word + v] = -s[word + v];
    }
}

/* Weights for dV, packed in pairs: those that dropout has left out become 0. */
INLINE void leave_out_dropped(const struct sm90_backward_params *p, uint32_t (&packed)[ROWS / 4], int part) {
    if (TERMS == 2 && p->dropout) {
#pragma unroll
        for (int n = part * (PART / 2); n < (part + 1) * (PART / 2); ++n)
            packed[n] &= ~((packed[n] >> 15 & 0x10001u) * 0xffffu);
    }
}

INLINE float dv_factor(const struct sm90_backward_params *p) { return TERMS == 2 ? p->dv_factor : 1; }

/* dP of a pair, as it counts for the weight before dropout. */
INLINE float undropped(const struct sm90_backward_params *p, float weight, float dp) {
    if (TERMS < 2) return dp;
    return weight < 0 ? 0 : dp * p->dv_factor;
}

INLINE void add_to_dbias(const struct sm90_backward_params *p, const struct tile *t, int head, const struct meeting *at,
                         const float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2], int part) {
    float *to = (float *)p->dbias_sum.data + score_at(&p->dbias_sum, t->batch, head, first_row(at), first_key(at));
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        if (weights[v] != 0) atomicAdd(to + ROW_OF(v) * p->dbias_sum.row + KEY_OF(v), ds[v]);
}

/* ---- all of it on a part */

INLINE void finish_scores(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                          const struct meeting *at, float (&s)[ROWS / 2], int part) {
    const int key = first_key(at), row = first_row(at);
    if (TERMS && p->softcap > 0) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] = capped(p, s[v]);
    } else if (TERMS) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] *= p->scale;
    }
    if (TERMS && p->alibi) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] -= alibi_of(slope, row + ROW_OF(v), key + KEY_OF(v));
    }
    if (TERMS == 2 && p->bias.data) add_bias(p, t, slope->head, at, s, part);
}

/* What is hidden, by the band or by masks, has a weight of 0. */
INLINE void finish_weights(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                           const struct meeting *at, float (&s)[ROWS / 2], int part) {
    if (!at->full) hide(t, at, s, part);
    if (TERMS == 2 && p->mask.data) hide_masked(p, t, slope->head, at, s, part);
    if (TERMS == 2 && p->blocks.data) hide_blocks(p, t, slope->head, at, s, part);
    if (TERMS == 2 && p->dropout) mark_dropped(p, t, slope->head, at, s, part);
}

/* dS before softcap, from that behind it. lse: of the thread's first row on, negated. */
INLINE void pass_softcap(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                         const struct meeting *at, float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2], const float *lse,
                         int part) {
    const int key = first_key(at), row = first_row(at);
    const int64_t from = score_at(&p->bias, t->batch, slope->head, row, key);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        float added = -alibi_of(slope, row + ROW_OF(v), key + KEY_OF(v));
        if (TERMS == 2 && p->bias.data && weights[v] != 0)
            added += bias_at(&p->bias, from + ROW_OF(v) * p->bias.row + KEY_OF(v));
        ds[v] *= weights[v] == 0 ? 1 : softcap_slope(p, fabsf(weights[v]), lse[ROW_OF(v)], added);
    }
}

INLINE void finish_gradients(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                             const struct meeting *at, float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2],
                             const float *lse, int part) {
    if (TERMS == 2) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) ds[v] = weights[v] == 0 ? 0 : ds[v];
        if (p->dbias_sum.data) add_to_dbias(p, t, slope->head, at, ds, weights, part);
    } else if (!at->full) {
        hide(t, at, ds, part);
    }
    if (TERMS && p->softcap > 0) pass_softcap(p, t, slope, at, ds, weights, lse, part);
}

#endif
