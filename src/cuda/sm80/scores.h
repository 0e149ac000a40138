/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scores.h: what happens between S = QK^T and softmax, on accumulators of one warp: softcap, bias, ALiBi, mask; and dropout
 * after it. The backward pass over keys holds S^T, so a lane's element is named by where it lies in the accumulators, and
 * `transposed`, a constant, says which way round rows and keys are.
 *
 * Visibility is one bit for each element of a 16-row tile, computed before the product. Causal skip: a block of keys that
 * no row of the warp sees is not multiplied. A hidden score is replaced by -inf and not added to, so that a NaN in its K
 * goes nowhere. */
#ifndef STROBE_CUDA_SM80_SCORES_H
#define STROBE_CUDA_SM80_SCORES_H

#include "cuda/device/job.h"
#include "cuda/device/score_function.h"
#include "cuda/device/score_terms.h"
#include "cuda/sm80/visible_blocks.h"

/* Where a warp's accumulators lie in the matrix of scores: a patch of it. */
struct patch {
    int row, key; /* packed row and key of its first element */
};

/* A score: its packed row and its key. */
struct pair {
    int packed, j;
};

/* Element (half, e) of the lane in tile n of 16-row tile m. */
INLINE struct pair pair_of(struct patch at, bool transposed, int m, int n, int half, int e) {
    const int lane = (int)threadIdx.x % 32, down = 16 * m + lane / 4 + 8 * half, across = 8 * n + lane % 4 * 2 + e;
    const struct pair pair = {at.row + (transposed ? across : down), at.key + (transposed ? down : across)};
    return pair;
}

/* The bit of element x, of four, of tile n. The bits of a row are neighbours, so a range of columns is a run of bits. */
INLINE int bit_of(int n, int x) { return 16 * (x / 2) + 2 * n + x % 2; }

/* Bits of the columns below `end`, in the lower of the lane's two rows of a 16-row tile. */
INLINE uint32_t bits_below(int end) {
    const int rest = end - (int)threadIdx.x % 4 * 2, inside = rest % 8 < 2 ? rest % 8 : 2;
    return rest <= 0 ? 0 : (1u << (rest / 8 * 2 + inside)) - 1;
}

/* What the band shows, as bits: a range of columns for each of the lane's two rows. */
INLINE uint32_t band_bits(const struct params *p, const struct job *t, struct patch at, bool transposed, int m,
                          int n_tiles) {
    const int width = 8 * n_tiles;
    uint32_t bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const struct pair first = pair_of(at, transposed, m, 0, half, 0);
        int64_t low, end;
        if (transposed) { /* rows i with j - right <= i + diagonal <= j + left, all heads of the group */
            const int64_t least = first.j - t->band.diagonal - t->band.right,
                          most = first.j - t->band.diagonal + t->band.left;
            low = (int64_t)clamp(least, t->rows) * p->group - at.row;
            end = first.j < t->keys ? (int64_t)clamp(most + 1, t->rows) * p->group - at.row : 0;
        } else {
            const int i = place_of(p, t, first.packed).i;
            low = band_first(&t->band, i) - at.key;
            end = i < t->rows ? band_end(&t->band, i) - at.key : 0;
        }
        bits |= (bits_below(clamp(end, width)) & ~bits_below(clamp(low, width))) << (16 * half);
    }
    return bits;
}

/* Whether anything beside the band can hide a pair before it has a score. */
INLINE bool has_masks(const struct params *p) {
    return FEATURES && (p->bool_mask.data || p->block_mask.data || p->visible.of_function);
}

INLINE bool masks_show_pair(const struct params *p, const struct job *t, struct pair pair) {
    const struct place at = place_of(p, t, pair.packed);
    if (p->visible.of_function) {
        const struct owner owner = owner_of(&p->visible, t->b, at.h, at.i / UNIT);
        if (!bits_show(&p->visible, &owner, at.i, pair.j)) return false;
    }
    return masks_show(&p->bool_mask, &p->block_mask, p->block_q, p->block_k, t->b, at.h, at.i, pair.j);
}

/* What the band and the masks show of a 16-row tile, as bits. */
INLINE uint32_t visible_bits(const struct params *p, const struct job *t, struct patch at, bool transposed, int m,
                             int n_tiles) {
    const uint32_t inside = band_bits(p, t, at, transposed, m, n_tiles);
    if (!has_masks(p)) return inside;
    if (has_states(p)) {
        const int row = at.row + (transposed ? 0 : 16 * m), key = at.key + (transposed ? 16 * m : 0);
        const int state = block_state(p, t, transposed, row, transposed ? 8 * n_tiles : 16, key);
        if (state != UNIT_PARTIAL) return state == UNIT_FULL ? inside : 0;
        if (p->group == 1 && !blocks_are_partial(p, t, transposed, row, key))
            return inside & packed_bits(p, t, transposed ? key : row, transposed ? row : key);
    }
    uint32_t bits = 0;
    for (uint32_t rest = inside; rest; rest &= rest - 1) {
        const int bit = __ffs((int)rest) - 1;
        if (masks_show_pair(p, t, pair_of(at, transposed, m, bit % 16 / 2, bit / 16, bit % 2))) bits |= 1u << bit;
    }
    return bits;
}

/* What is visible to a warp's rows, computed once: keys [first, end) to some of them, keys [full_first, full_end) to all
 * of them. For a warp that owns keys: the rows that see some of them, and all of them. */
struct visible_range {
    int first, end, full_first, full_end;
};

/* Whether masks may hide pairs of any block, since nobody has looked. */
INLINE bool hides_anywhere(const struct params *p) { return has_masks(p) && !has_states(p); }

INLINE struct visible_range visible_range_of(const struct params *p, const struct job *t, int row, int rows) {
    struct visible_range s = {t->keys, 0, t->keys, 0};
    const int end = t->rows * p->group, last = row + rows <= end ? row + rows - 1 : end - 1;
    if (row >= end) return s;
    const int i0 = place_of(p, t, row).i, i1 = place_of(p, t, last).i;
    s.first = clamp(band_first(&t->band, i0), t->keys), s.end = (int)band_end(&t->band, i1);
    if (row + rows > end || hides_anywhere(p)) return s;
    s.full_first = clamp(band_first(&t->band, i1), t->keys), s.full_end = (int)band_end(&t->band, i0);
    return s;
}

INLINE enum coverage range_covers(const struct visible_range *s, int at, int count) {
    if (at + count <= s->first || at >= s->end) return BLOCK_SKIPPED;
    return at >= s->full_first && at + count <= s->full_end ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* Packed rows [first, end) see some of the `keys` keys from `key` on, [full_first, full_end) see all of them. */
INLINE struct visible_range visible_range_of_keys(const struct params *p, const struct job *t, int key, int keys) {
    struct visible_range s = {t->rows * p->group, 0, t->rows * p->group, 0};
    if (key >= t->keys) return s;
    const int64_t last = key + keys <= t->keys ? key + keys - 1 : t->keys - 1, diagonal = t->band.diagonal;
    s.first = clamp(key - diagonal - t->band.right, t->rows) * p->group;
    s.end = clamp(last - diagonal + t->band.left + 1, t->rows) * p->group;
    if (key + keys > t->keys || hides_anywhere(p)) return s;
    s.full_first = clamp(last - diagonal - t->band.right, t->rows) * p->group;
    s.full_end = clamp(key - diagonal + t->band.left + 1, t->rows) * p->group;
    return s;
}

/* The place of a pair, as the user's function is given it. */
INLINE struct score_place score_place_of(const struct params *p, const struct job *t, struct pair pair) {
    const struct place at = place_of(p, t, pair.packed);
    int q_start = 0, k_start = 0;
#if HAS_SCORE_FUNCTION
    q_start = p->score.q_start, k_start = p->score.k_start;
#endif
    const struct score_place place = {t->b, at.h, t->kv, q_start + at.i, k_start + pair.j, t->rows, t->keys};
    return place;
}

/* Slopes of so many tiles: with the user's function what it was given is kept behind them. */
#define SLOPES(tiles) ((1 + HAS_SCORE_FUNCTION) * (tiles))

/* The user's function of the score of a visible pair; a bias of -inf stays. input, unless NULL: what it was given. */
INLINE float apply_score_function(const struct params *p, const struct job *t, struct pair pair, float x, float *input) {
    if (!HAS_SCORE_FUNCTION) return x;
    const struct score_place place = score_place_of(p, t, pair);
    if (input) *input = x;
    return x == -INFINITY ? x : score_value(SCORE_OF(p), &place, x);
}

/* Applies softcap, bias and ALiBi to the score of a visible key. *slope: d score / d (dot * scale), softcap's derivative. */
INLINE float apply_score_terms(const struct params *p, const struct job *t, struct pair pair, float x, float *slope) {
    if (p->scaled) x *= p->scale;
    if (p->softcap > 0) {
        const float y = tanhf(x / p->softcap);
        x = p->softcap * y;
        *slope = 1 - y * y;
    }
    if (!p->bias.data && !p->slopes) return x;
    const struct place at = place_of(p, t, pair.packed);
    if (p->bias.data) {
        const float bias = load_any(p->bias.data, p->bias.dtype, score_offset(&p->bias, t, at) + pair.j);
        x = biased(x, bias);
    }
    if (p->slopes) {
        const int64_t distance = at.i + t->alibi_diagonal - pair.j;
        x -= p->slopes[t->b * p->slopes_batch + at.h] * (float)(distance < 0 ? -distance : distance);
    }
    return x;
}

/* Score terms, the user's function and mask on the scores of a 16-row tile; slope may be NULL. alike: scores that nothing
 * hides become 0. */
INLINE void finish_scores(const struct params *p, const struct job *t, struct patch at, bool transposed, int m, int n_tiles,
                          uint32_t bits, bool alike, float (*s)[4], float (*slope)[4]) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            float d = 1;
            const bool seen = bits >> bit_of(n, x) & 1;
            if (FEATURES && p->scaled) {
                const struct pair pair = pair_of(at, transposed, m, n, x / 2, x % 2);
                s[n][x] = seen ? apply_score_terms(p, t, pair, s[n][x], &d) : -INFINITY;
                if (HAS_SCORE_FUNCTION && seen)
                    s[n][x] = apply_score_function(p, t, pair, s[n][x], slope ? &slope[n_tiles + n][x] : NULL);
                if (alike && s[n][x] != -INFINITY) s[n][x] = 0;
            } else {
                s[n][x] = seen ? s[n][x] : -INFINITY;
            }
            if (slope) slope[n][x] = d;
        }
}

/* Which weights dropout keeps, as bits. One call of Philox serves four neighbouring keys; a lane has two of them. */
INLINE uint32_t kept_bits(const struct params *p, const struct job *t, struct patch at, bool transposed, int m,
                          int n_tiles) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int index = 0; index < 4 * n_tiles; ++index) {
        const int n = index % (2 * n_tiles) / 2, half = index / (2 * n_tiles), bit = bit_of(n, 2 * half + index % 2);
        const struct pair pair = pair_of(at, transposed, m, n, half, index % 2);
        const struct place place = place_of(p, t, pair.packed);
        const uint64_t row = dropout_row(&p->place, t->b, place.h, place.i), key = (uint64_t)(p->place.key_start + pair.j);
        const struct philox_words words = philox4x32_10(p->place.seed, p->place.offset, row + key / 4);
        const uint32_t low = key & 1 ? words.word[1] : words.word[0], high = key & 1 ? words.word[3] : words.word[2];
        bits |= (uint32_t)((key & 2 ? high : low) >= p->place.threshold) << bit;
        if (transposed || index % 2 || key % 2) continue;
        ++index; /* the neighbour is in the same four */
        bits |= (uint32_t)((key & 2 ? words.word[3] : words.word[1]) >= p->place.threshold) << (bit + 1);
    }
    return bits;
}

#endif
