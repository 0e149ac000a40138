/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_blocks.h (sm80): which blocks of scores the masks hide, show in part or show whole, by the states of units that a
 * pass before the kernel, or a caller's lists, have left (device/visible.h); without them, and beside a user's function of
 * who sees whom, every block is looked at element by element. A block is of packed rows: all query heads of the group, and
 * the rows that lie in one tile. Of a block that is hidden nothing is loaded. Owners of units are keys where accumulators
 * are transposed, else rows, so that a thread finds the mask's bits of its accumulators in a word. */
#ifndef STROBE_CUDA_SM80_VISIBLE_BLOCKS_H
#define STROBE_CUDA_SM80_VISIBLE_BLOCKS_H

#include "cuda/device/job.h"
#include "cuda/device/visible.h"

INLINE bool has_states(const struct params *p) {
    return FEATURES && !p->visible.of_function && (p->visible.mask_states || p->visible.block_states);
}

/* The state of unit (row, key) of a query head. */
INLINE int unit_state(const struct params *p, const struct job *t, bool transposed, int head, int row, int key) {
    const struct visible *v = &p->visible;
    const struct owner at = owner_of(v, t->b, head, transposed ? key : row);
    const int unit = transposed ? row : key;
    return (v->mask_states ? v->mask_states[at.mask + unit] : UNIT_FULL) &
           (v->block_states ? v->block_states[at.blocks + unit] : UNIT_FULL);
}

/* The state of a block of `rows` packed rows from `packed` on, and of keys from `key` on that lie in one unit. */
INLINE int block_state(const struct params *p, const struct job *t, bool transposed, int packed, int rows, int key) {
    const int end = t->rows * p->group, last = (packed + rows < end ? packed + rows : end) - 1;
    if (packed >= end || key >= t->keys) return UNIT_HIDDEN;
    const int heads = p->visible.mask_head || p->visible.block_head ? p->group : 1;
    const int first_unit = place_of(p, t, packed).i / UNIT, last_unit = place_of(p, t, last).i / UNIT;
    int all = UNIT_FULL, some = UNIT_HIDDEN;
#pragma unroll 1
    for (int head = t->kv * p->group; head < t->kv * p->group + heads; ++head)
#pragma unroll 1
        for (int unit = first_unit; unit <= last_unit; ++unit) {
            const int state = unit_state(p, t, transposed, head, unit, key / UNIT);
            all &= state, some |= state;
        }
    return all == UNIT_FULL ? UNIT_FULL : some ? UNIT_PARTIAL : UNIT_HIDDEN;
}

/* The first block of keys from j on, up to `end`, of which one of the rows sees something. */
INLINE int next_keys(const struct params *p, const struct job *t, int packed, int rows, int j, int end) {
    if (!has_states(p)) return j;
    while (j < end && block_state(p, t, false, packed, rows, j) == UNIT_HIDDEN) j = (j / UNIT + 1) * UNIT;
    return j;
}

/* The first block of `rows` packed rows from `packed` on, up to `end`, that sees something of the keys from `key` on. */
INLINE int next_rows(const struct params *p, const struct job *t, int packed, int rows, int key, int end) {
    if (!has_states(p)) return packed;
    while (packed < end && block_state(p, t, true, packed, rows, key) == UNIT_HIDDEN) packed += rows;
    return packed;
}

/* What a band covers of a block, less what the masks hide. */
INLINE enum coverage less_masked(const struct params *p, const struct job *t, enum coverage coverage, bool transposed,
                                 int packed, int rows, int key) {
    if (!has_states(p) || coverage == BLOCK_SKIPPED) return coverage;
    const int state = block_state(p, t, transposed, packed, rows, key);
    return state == UNIT_FULL ? coverage : state == UNIT_HIDDEN ? BLOCK_SKIPPED : BLOCK_PARTIAL;
}

/* The bits of a 16-row tile of accumulators whose first row is `down` and whose first column is `across`, as visible_bits()
 * orders them, of a boolean mask that hides a part of its unit. One query head a group. */
INLINE uint32_t packed_bits(const struct params *p, const struct job *t, int down, int across) {
    const struct owner at = owner_of(&p->visible, t->b, t->kv, down / UNIT);
    const uint2 bits = bits_of_unit(&p->visible, &at, across / UNIT)[down % UNIT / 16 * 32 + (int)threadIdx.x % 32];
    const int shift = across % UNIT / 4;
    return (bits.x >> shift & 0xffff) | bits.y >> shift << 16;
}

/* Whether the block mask hides a part of a unit. */
INLINE bool blocks_are_partial(const struct params *p, const struct job *t, bool transposed, int row, int key) {
    const struct visible *v = &p->visible;
    if (!v->block_states) return false;
    const struct owner at = owner_of(v, t->b, t->kv, (transposed ? key : row) / UNIT);
    return v->block_states[at.blocks + (transposed ? row : key) / UNIT] == UNIT_PARTIAL;
}

#endif
