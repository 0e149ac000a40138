/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_terms.h: what happens to the scores of a block pair between the products of the Hopper backward, and to dS on the
 * way back, in the order scale, softcap, ALiBi, bias, mask; and dropout to P. FEATURE_CLASS says what a variant has.
 *
 * Scores are transposed: accumulator v of a thread belongs to key at.key + lane / 4 + 8 (v / 2 % 2) and to row at.row + 2
 * (lane % 4) + 8 (v / 4) + v % 2. A hidden pair has a weight of 0, and a pair with a weight of 0 has a dS of 0, whatever the
 * other operands hold. A weight that dropout leaves out is made negative: dS takes its absolute value, dV takes 0. */
#ifndef STROBE_CUDA_SM90_BACKWARD_SCORE_TERMS_H
#define STROBE_CUDA_SM90_BACKWARD_SCORE_TERMS_H

#include "cuda/device/score_function.h"
#include "cuda/device/score_terms.h"
#include "cuda/sm90/backward/dropout.h"
#include "cuda/sm90/backward/walk.h"

enum { ALIBI_ALONE = FEATURE_CLASS == FEATURES_ALIBI };
enum { SOFTCAP_ALONE = FEATURE_CLASS == FEATURES_SOFTCAP, DROPOUT_ALONE = FEATURE_CLASS == FEATURES_DROPOUT };

/* The accumulators of a block's scores are processed in PARTS parts, so that a product can start after the first. */
enum { PART = ROWS / 2 / PARTS };

/* The row and the key of accumulator v, relative to the thread's first. */
#define ROW_OF(v) (8 * ((v) / 4) + (v) % 2)
#define KEY_OF(v) (8 * ((v) / 2 % 2))

/* A block pair: a warp's sixteen keys from `key` on, and the block of rows from `row` on. */
struct block_pair {
    uint32_t stage;         /* of the rows */
    int key, row, lane_row; /* lane_row: the thread's first row, in the block */
    bool full;              /* the band hides no pair of it */
    uint32_t note;          /* with masks: see walk.h */
    uint2 bits;
    struct kept kept; /* with dropout alone */
};

/* With masks: what is hidden of the pair, by the note of its block of rows and the thread's number among UNIT_THREADS. */
INLINE void add_note(struct block_pair *at, const struct note *note, int thread) {
    at->note = (uint32_t)uniform((int)note->block), at->bits = bits_of_note(note, thread);
}

INLINE int first_key(const struct block_pair *at) { return at->key + (int)threadIdx.x % 32 / 4; }
INLINE int first_row(const struct block_pair *at) { return at->row + (int)threadIdx.x % 4 * 2; }

/* The rows, relative to the thread's first, that see each of its two keys in the band, from low to high: band32_first_row()
 * and band32_end_row() of math/mask.h, written out, see tile.h. */
struct seen {
    int low[2], high[2];
};

INLINE struct seen seen_of(const struct tile *t, const struct block_pair *at) {
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

/* Sets to 0 what the band hides in a part of P or dS. A hidden pair adds to no sum, whatever its row of dO or its key of V
 * holds. */
INLINE void mask_band(const struct tile *t, const struct block_pair *at, float (&x)[ROWS / 2], int part) {
    const struct seen seen = seen_of(t, at);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        if (!SEEN(seen, v)) x[v] = 0;
}

/* A query head, and its ALiBi: scores lose slope |i + diagonal - j|. */
struct slope {
    int head;
    float slope;
    int diagonal;
};

INLINE struct slope slope_of(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch, int head) {
    const struct slope s = {head, p->alibi ? p->alibi[batch * p->alibi_stride + head] : ALIBI_ALONE,
                            p->alibi_start + in->keys.count - in->rows.count};
    return s;
}

/* The query head that a consumer is at, and its slope. */
INLINE int head_of(const struct sm90_backward_params *p, const struct tile *t, const struct progress *at) {
    return (t->head_kv + 1) * p->group - at->heads;
}

INLINE struct slope slope_at(const struct sm90_backward_params *p, const struct tile *t, const struct progress *at) {
    return slope_of(p, &t->in, t->batch, head_of(p, t, at));
}

INLINE float alibi_of(const struct slope *slope, int i, int j) {
    return slope->slope * fabsf((float)(i + slope->diagonal - j));
}

/* d score / d (dot scale), from a weight that is not 0, so that softcap's result need not be kept. lse: in base 2, negated;
 * added: what was added to softcap's result. */
INLINE float softcap_derivative(const struct sm90_backward_params *p, float weight, float lse, float added) {
    const float y = ((__log2f(weight) - lse) * (float)LN_2 - added) * p->cap_inverse;
    return 1 - y * y;
}

/* ---- FEATURES_ALL: tensors over scores, [batch][head][row][key] */

INLINE float bias_to_float(float x) { return x; }
INLINE float bias_to_float(element x) { return element_to_float(x); }

/* Bias and masks are read for pairs that the band shows, since others may lie outside of their tensors. */
template <typename type>
INLINE void add_bias_of(const type *from, int64_t row, const struct seen &seen, float (&s)[ROWS / 2], int part) {
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        s[v] = biased(s[v], SEEN(seen, v) ? bias_to_float(from[ROW_OF(v) * row + KEY_OF(v)]) : 0);
}

INLINE void add_bias(const struct sm90_backward_params *p, const struct tile *t, int head, const struct block_pair *at,
                     float (&s)[ROWS / 2], int part) {
    const struct view *bias = &p->bias;
    const int64_t from = score_at(bias, t->batch, head, first_row(at), first_key(at));
    if (bias->dtype == CUDA_FP32)
        add_bias_of((const float *)bias->data + from, bias->row, seen_of(t, at), s, part);
    else
        add_bias_of((const element *)bias->data + from, bias->row, seen_of(t, at), s, part);
}

/* Sets to 0 what a boolean mask hides in a part of P or dS, by the thread's bits of the block: bits 2 n and 2 n + 1 are its
 * two rows of the block's nth eight. */
INLINE void apply_bits(uint2 bits, float (&x)[ROWS / 2], int part) {
#pragma unroll
    for (int n = part * (PART / 2); n < (part + 1) * (PART / 2); ++n)
        if (!(bits.x & 1u << n)) x[n / 2 * 4 + n % 2] = 0;
#pragma unroll
    for (int n = part * (PART / 2); n < (part + 1) * (PART / 2); ++n)
        if (!(bits.y & 1u << n)) x[n / 2 * 4 + 2 + n % 2] = 0;
}

/* The blocks of a block mask are whole eights of rows, so a thread's scores of eight rows share a byte for each key. */
INLINE void apply_block_mask(const struct sm90_backward_params *p, const struct tile *t, int head,
                             const struct block_pair *at, float (&s)[ROWS / 2], int part) {
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

/* Makes the weights negative that dropout leaves out. */
INLINE void mark_dropped(const struct sm90_backward_params *p, const struct tile *t, int head, const struct block_pair *at,
                         float (&s)[ROWS / 2], int part) {
    static_assert(!HAS_ALL || PART % 32 == 0, "bits come in words");
#pragma unroll
    for (int word = part * PART; word < (part + 1) * PART; word += 32) {
        const uint32_t kept = kept_bits(p, t->batch, head, at->key, at->row + 2 * word);
#pragma unroll
        for (int v = 0; v < 32; ++v)
            if (!(kept & KEPT_BIT(v))) s[word + v] = -s[word + v];
    }
}

/* P as dV takes it, packed in pairs: weights that dropout has left out, which are negative, become 0. */
INLINE void leave_out_dropped(const struct sm90_backward_params *p, uint32_t (&packed)[ROWS / 4], int part) {
    if (HAS_ALL && p->dropout) {
#pragma unroll
        for (int n = part * (PART / 2); n < (part + 1) * (PART / 2); ++n)
            packed[n] &= ~((packed[n] >> 15 & 0x10001u) * 0xffffu);
    }
}

INLINE float dv_factor(const struct sm90_backward_params *p) { return HAS_DROPOUT ? p->dv_factor : 1; }

/* dP of a pair as the gradient of its weight before dropout. */
INLINE float undropped(const struct sm90_backward_params *p, float weight, float dp) {
    if (!HAS_DROPOUT) return dp;
    return weight < 0 ? 0 : dp * p->dv_factor;
}

INLINE void add_to_dbias(const struct sm90_backward_params *p, const struct tile *t, int head, const struct block_pair *at,
                         const float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2], int part) {
    float *to = (float *)p->dbias_sum.data + score_at(&p->dbias_sum, t->batch, head, first_row(at), first_key(at));
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v)
        if (weights[v] != 0) atomicAdd(to + ROW_OF(v) * p->dbias_sum.row + KEY_OF(v), ds[v]);
}

/* ---- the user's function */

/* Scores as the function was given them, where its derivatives read them. */
enum { INPUTS = SCORE_NEEDS_INPUT ? ROWS / 2 : 1 };

INLINE struct score_place score_place_of(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch,
                                         int head) {
    struct score_place at = {batch, head, head / p->group, 0, 0, in->rows.count, in->keys.count};
#if HAS_SCORE_FUNCTION
    at.i = p->score.q_start, at.j = p->score.k_start;
#endif
    return at;
}

/* The place of accumulator v. Where not all pairs are there, rows and keys past the end of the sequence have that of the
 * last one, since an array may end there. */
INLINE struct score_place score_place_at(const struct tile *t, const struct score_place *origin, const struct block_pair *at,
                                         bool whole, int v) {
    struct score_place place = *origin;
    const int row = first_row(at) + ROW_OF(v), key = first_key(at) + KEY_OF(v);
    place.i += whole ? row : min(row, t->in.rows.count - 1), place.j += whole ? key : min(key, t->in.keys.count - 1);
    return place;
}

INLINE bool pairs_are_there(const struct tile *t, const struct block_pair *at) {
    return !SCORE_READS_ARRAYS || (at->row + ROWS <= t->in.rows.count && at->key + 16 <= t->in.keys.count);
}

/* The relative values of a block's diagonals (SCORE_HAS_RELATIVE): of two neighbouring ones in each eight of rows, and in
 * the eight before the first, since a thread's second key is eight after its first. */
enum { RELATIVES = SCORE_HAS_RELATIVE ? ROWS / 4 + 2 : 1, PART_RELATIVES = PART / 2 + 2 };
#define RELATIVE_OF(v)   ((2 * ((v) / 4 + 1 - (v) / 2 % 2) + (v) % 2) % RELATIVES)
#define RELATIVE_ROWS(n) (8 * ((n) / 2) - 8 + (n) % 2) /* below the diagonal of the thread's first pair */

struct relatives {
    float of[RELATIVES];
};

/* The place of the thread's first pair, as its diagonal at key 0. */
INLINE struct score_place diagonal_of(const struct sm90_backward_params *p, const struct tile *t, int head,
                                      const struct block_pair *at) {
    struct score_place place = score_place_of(p, &t->in, t->batch, head);
    place.i += first_row(at) - first_key(at);
    return place;
}

/* Whether some pair of the sequence is on a diagonal: of others no array has an element. */
INLINE bool has_pairs(const struct tile *t, int distance) {
    return distance > -t->in.keys.count && distance < t->in.rows.count;
}

INLINE void find_relatives(const struct sm90_backward_params *p, const struct tile *t, int head, const struct block_pair *at,
                           struct relatives *relatives, int part) {
    if (!SCORE_HAS_RELATIVE) return;
    const struct score_place place = diagonal_of(p, t, head, at);
    const int distance = first_row(at) - first_key(at);
    if (pairs_are_there(t, at)) {
#pragma unroll
        for (int n = part * (PART / 2); n < part * (PART / 2) + PART_RELATIVES; ++n)
            relatives->of[n % RELATIVES] = score_relative(SCORE_OF(p), &place, RELATIVE_ROWS(n));
    } else {
#pragma unroll
        for (int n = part * (PART / 2); n < part * (PART / 2) + PART_RELATIVES; ++n)
            relatives->of[n % RELATIVES] = has_pairs(t, distance + RELATIVE_ROWS(n))
                                               ? score_relative(SCORE_OF(p), &place, RELATIVE_ROWS(n))
                                               : 0;
    }
}

/* Of all parts at once, where registers have room for that. */
enum { RELATIVES_COME_FIRST = SCORE_HAS_RELATIVE && ROWS <= 64 };

INLINE void find_all_relatives(const struct sm90_backward_params *p, const struct tile *t, int head,
                               const struct block_pair *at, struct relatives *relatives) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        if (RELATIVES_COME_FIRST) find_relatives(p, t, head, at, relatives, part);
}

template <bool whole>
INLINE void apply_score_value(const struct sm90_backward_params *p, const struct tile *t, const struct score_place *origin,
                              const struct block_pair *at, float (&s)[ROWS / 2], int part) {
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        const struct score_place place = score_place_at(t, origin, at, whole, v);
        s[v] = HAS_BIAS && s[v] == -INFINITY ? s[v] : score_value(SCORE_OF(p), &place, s[v]);
    }
}

INLINE void apply_score_function(const struct sm90_backward_params *p, const struct tile *t, int head,
                                 const struct block_pair *at, float (&s)[ROWS / 2], float (&input)[INPUTS],
                                 struct relatives *relatives, int part) {
    const struct score_place origin = score_place_of(p, &t->in, t->batch, head);
    if (SCORE_NEEDS_INPUT) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) input[v % INPUTS] = s[v];
    }
    if (SCORE_HAS_RELATIVE) {
        if (!RELATIVES_COME_FIRST) find_relatives(p, t, head, at, relatives, part);
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) {
            const float relative = relatives->of[RELATIVE_OF(v)];
            s[v] = HAS_BIAS && s[v] == -INFINITY ? s[v] : score_joined(SCORE_OF(p), &origin, s[v], relative);
        }
    } else if (pairs_are_there(t, at)) {
        apply_score_value<true>(p, t, &origin, at, s, part);
    } else {
        apply_score_value<false>(p, t, &origin, at, s, part);
    }
}

/* Adds to the gradients of arrays. Where they do not depend on the score, pairs of a diagonal share their elements, and are
 * added up before. A pair that is hidden has a dS of 0, and adds nothing. */
INLINE void add_score_gradients(const struct sm90_backward_params *p, const struct tile *t, int head,
                                const struct block_pair *at, const float (&ds)[ROWS / 2], const float (&input)[INPUTS],
                                int part) {
    if (SCORE_HAS_RELATIVE && !SCORE_NEEDS_INPUT) {
        const struct score_place first = diagonal_of(p, t, head, at);
        float sums[RELATIVES];
#pragma unroll
        for (int n = 0; n < RELATIVES; ++n) sums[n] = 0;
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) sums[RELATIVE_OF(v)] += ds[v];
#pragma unroll
        for (int n = part * (PART / 2); n < part * (PART / 2) + PART_RELATIVES; ++n) {
            struct score_place place = first;
            place.i += RELATIVE_ROWS(n);
            if (sums[n % RELATIVES] != 0) score_gradients(SCORE_OF(p), &place, 0, sums[n % RELATIVES]);
        }
        return;
    }
    const struct score_place origin = score_place_of(p, &t->in, t->batch, head);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        const struct score_place place = score_place_at(t, &origin, at, false, v);
        if (ds[v] != 0) score_gradients(SCORE_OF(p), &place, input[v % INPUTS], ds[v]);
    }
}

template <bool whole>
INLINE void apply_score_slope(const struct sm90_backward_params *p, const struct tile *t, const struct score_place *origin,
                              const struct block_pair *at, float (&ds)[ROWS / 2], const float (&input)[INPUTS], int part) {
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        const struct score_place place = score_place_at(t, origin, at, whole, v);
        ds[v] = score_F_CHAIN(ds[v], score_slope(SCORE_OF(p), &place, input[v % INPUTS]));
    }
}

/* dS of the scores that the function was given, from dS of those that it gave, and the gradients of its arrays. */
INLINE void through_score_function(const struct sm90_backward_params *p, const struct tile *t, int head,
                                   const struct block_pair *at, float (&ds)[ROWS / 2], const float (&input)[INPUTS],
                                   int part) {
    const struct score_place origin = score_place_of(p, &t->in, t->batch, head);
    if (WANTS_SCORE_GRADIENTS(p)) add_score_gradients(p, t, head, at, ds, input, part);
    if (SCORE_SLOPE_IS_ONE) return;
    if (pairs_are_there(t, at))
        apply_score_slope<true>(p, t, &origin, at, ds, input, part);
    else
        apply_score_slope<false>(p, t, &origin, at, ds, input, part);
}

/* ---- all features, on a part of the accumulators */

/* Scale, softcap, ALiBi and bias: what comes before the exponential. Masks come after it, but see MASKS_SCORES. */
INLINE void apply_score_terms(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                              const struct block_pair *at, float (&s)[ROWS / 2], float (&input)[INPUTS],
                              struct relatives *relatives, int part) {
    const int key = first_key(at), row = first_row(at);
    if (FEATURE_CLASS == FEATURES_BIAS) return; /* bias_tile.h */
    if (ALIBI_ALONE) {
        const float distance = (float)(row + slope->diagonal - key), raw = slope->slope * p->inverse_scale;
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v)
            s[v] = fmaf(-raw, fabsf(distance + (float)(ROW_OF(v) - KEY_OF(v))), s[v]);
        return;
    }
    if (HAS_SCORE_TERMS && HAS_SOFTCAP && p->softcap > 0) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] = softcapped(s[v], p->softcap, p->cap_rate);
    } else if (HAS_SCORE_TERMS) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] *= p->scale;
    }
    if (HAS_SCORE_TERMS && HAS_ALIBI && p->alibi) {
#pragma unroll
        for (int v = part * PART; v < (part + 1) * PART; ++v) s[v] -= alibi_of(slope, row + ROW_OF(v), key + KEY_OF(v));
    }
    if (HAS_ALL && p->bias.data) add_bias(p, t, slope->head, at, s, part);
    if (HAS_SCORE_FUNCTION) apply_score_function(p, t, slope->head, at, s, input, relatives, part);
}

/* Sets the weights to 0 that the band or a mask hides, and marks those that dropout leaves out. */
INLINE void apply_masks(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                        const struct block_pair *at, float (&s)[ROWS / 2], int part) {
    if (!MASKS_SCORES && !at->full) mask_band(t, at, s, part);
    if (HAS_MASKS && at->note & NOTE_BITS) apply_bits(at->bits, s, part);
    if (HAS_ALL && at->note & NOTE_BLOCKS) apply_block_mask(p, t, slope->head, at, s, part);
    if (HAS_ALL && p->dropout) mark_dropped(p, t, slope->head, at, s, part);
}

/* dS of the scores before softcap, from dS of those after it. lse: negated, from the thread's first row on. */
INLINE void through_softcap(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                            const struct block_pair *at, float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2],
                            const float *lse, int part) {
    const int key = first_key(at), row = first_row(at);
    const int64_t from = score_at(&p->bias, t->batch, slope->head, row, key);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        float added = -alibi_of(slope, row + ROW_OF(v), key + KEY_OF(v));
        if (HAS_ALL && p->bias.data && weights[v] != 0)
            added += bias_at(&p->bias, from + ROW_OF(v) * p->bias.row + KEY_OF(v));
        ds[v] *= weights[v] == 0 ? 1 : softcap_derivative(p, fabsf(weights[v]), lse[ROW_OF(v)], added);
    }
}

/* The same where softcap is alone, without a division into cases: a weight of 0 counts as 2^-126, and its dS is 0; a row
 * that sees nothing has an lse that is finite. */
INLINE void through_softcap_alone(const struct sm90_backward_params *p, float (&ds)[ROWS / 2],
                                  const float (&weights)[ROWS / 2], const float *lse, int part) {
    const float factor = -p->cap_natural * p->cap_natural;
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) {
        const float y = __log2f(fmaxf(weights[v], 0x1p-126f)) - fmaxf(lse[ROW_OF(v)], -0x1p40f);
        ds[v] = fmaf(factor * y, y * ds[v], ds[v]);
    }
}

/* Sets dS of hidden pairs to 0. */
INLINE void hide_ds(const struct tile *t, const struct block_pair *at, float (&ds)[ROWS / 2],
                    const float (&weights)[ROWS / 2], int part) {
    if (!HAS_ALL && !MASKS_SCORES && !at->full) mask_band(t, at, ds, part);
    if (!HAS_ALL && HAS_MASKS && at->note & NOTE_BITS) apply_bits(at->bits, ds, part);
#pragma unroll
    for (int v = part * PART; v < (part + 1) * PART; ++v) ds[v] = HAS_ALL && weights[v] == 0 ? 0 : ds[v];
}

/* Takes dS back through the user's function, adds it to dbias, and takes it back through softcap. */
INLINE void apply_ds_terms(const struct sm90_backward_params *p, const struct tile *t, const struct slope *slope,
                           const struct block_pair *at, float (&ds)[ROWS / 2], const float (&weights)[ROWS / 2],
                           const float (&input)[INPUTS], const float *lse, int part) {
    if (HAS_SCORE_FUNCTION) through_score_function(p, t, slope->head, at, ds, input, part);
    if (HAS_ALL && p->dbias_sum.data) add_to_dbias(p, t, slope->head, at, ds, weights, part);
    if (SOFTCAP_ALONE)
        through_softcap_alone(p, ds, weights, lse, part);
    else if (HAS_SOFTCAP && p->softcap > 0)
        through_softcap(p, t, slope, at, ds, weights, lse, part);
}

#endif
