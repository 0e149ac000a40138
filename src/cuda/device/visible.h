/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.h: which parts of a boolean mask and of a block mask are visible, as visible.cu works it out before a kernel
 * starts. Scores are cut into units of 128 rows x 128 keys. A unit has a state for each of the two masks, a byte, and a
 * visible unit is one that neither hides. A boolean mask is also packed, a bit a score, in the order in which a warp group's
 * threads hold the scores of a unit.
 *
 * A kernel walks along one axis of the scores, keys in the forward and rows in the backward; units of the other axis are its
 * owners: states are [batch][head][owner][unit], so that a walk reads neighbours. */
#ifndef STROBE_CUDA_DEVICE_VISIBLE_H
#define STROBE_CUDA_DEVICE_VISIBLE_H

#include "cuda/device/params.h"

/* Rows, and keys, of a unit; threads that share its bits, each of which has a row (key) of the owner's 128 and the eighth
 * after it, and two of each eight scores along the walk. */
enum { UNIT = 128, UNIT_THREADS = 256 };

/* A unit's state. The states of two masks are combined by "and". */
enum { UNIT_HIDDEN = 0, UNIT_PARTIAL = 1, UNIT_FULL = 3 };

/* What visible.cu is given. */
struct visible_pass {
    struct view mask, blocks; /* bytes over scores, and over blocks of scores; data NULL: there is none */
    int32_t block_q, block_k;
    int32_t seq_q, seq_k;
    int32_t transposed; /* owners are keys */
    int32_t mask_aligned;
    int32_t owners[2], heads[2]; /* of the boolean mask and of the block mask: 1 where it repeats */
    int32_t others;              /* units along the walk */
    int32_t states;              /* of an owner: others, rounded up to whole eights */
    int32_t per_block;           /* units of an owner that a block of threads packs */
    int64_t mask_blocks;         /* blocks of threads that pack the boolean mask; those after them look at the block mask */
    int64_t block_units;         /* units of the block mask */
    uint8_t *mask_states, *block_states;
    uint32_t *bits;
};

#if defined(__CUDACC__)
#include "cuda/device/element.h"
#include "cuda/ptx/memory.h"

/* Where the states of an owner begin. */
struct owner {
    int64_t mask, blocks;
};

INLINE struct owner owner_of(const struct visible *v, int batch, int head, int unit) {
    const struct owner at = {batch * v->mask_batch + head * v->mask_head + unit * v->mask_owner,
                             batch * v->block_batch + head * v->block_head + unit * v->block_owner};
    return at;
}

/* The states of eight units of an owner, the `eight`th eight, a byte each, the first one lowest. */
struct eight_states {
    uint64_t mask, blocks;
    int eight;
};

INLINE void load_states(const struct visible *v, const struct owner *at, int eight, struct eight_states *states) {
    states->eight = eight;
    states->mask = v->mask_states ? *(const uint64_t *)(v->mask_states + at->mask + 8 * eight) : ~(uint64_t)0;
    states->blocks = v->block_states ? *(const uint64_t *)(v->block_states + at->blocks + 8 * eight) : ~(uint64_t)0;
}

/* Brings the line of a unit's states to the multiprocessor's cache, for another warp: the values are not waited for. */
INLINE void fetch_states(const struct visible *v, const struct owner *at, int unit) {
    if (v->mask_states) fetch_line(v->mask_states + at->mask + unit);
    if (v->block_states) fetch_line(v->block_states + at->blocks + unit);
}

/* Whether no score of a unit is visible. */
INLINE bool unit_is_hidden(const struct visible *v, const struct owner *at, int unit) {
    const uint8_t mask = v->mask_states ? v->mask_states[at->mask + unit] : UNIT_FULL;
    const uint8_t blocks = v->block_states ? v->block_states[at->blocks + unit] : UNIT_FULL;
    return (mask & blocks) == UNIT_HIDDEN;
}

/* The bits of a unit's threads: x of its first row (key), y of the eighth after it; bits 2 n and 2 n + 1 are scores 8 n +
 * 2 (lane % 4) and the next one along the walk. */
INLINE const uint2 *bits_of_unit(const struct visible *v, const struct owner *at, int unit) {
    return (const uint2 *)v->bits + (at->mask + unit) * UNIT_THREADS;
}

/* Whether the boolean mask or the user's function, as the pass has packed them, show the pair of the owner's row (key)
 * `along` and of score `walk` of its walk: one bit of its unit, where that is partial. */
INLINE bool bits_show(const struct visible *v, const struct owner *at, int along, int walk) {
    const int unit = walk / UNIT, inside = walk % UNIT, own = along % UNIT;
    if (!v->mask_states) return true;
    const uint8_t state = v->mask_states[at->mask + unit];
    if (state != UNIT_PARTIAL) return state == UNIT_FULL;
    const uint2 bits = bits_of_unit(v, at, unit)[own / 16 * 32 + own % 8 * 4 + inside % 8 / 2];
    return (own / 8 % 2 ? bits.y : bits.x) >> (inside / 8 * 2 + inside % 2) & 1;
}
#endif
#endif
