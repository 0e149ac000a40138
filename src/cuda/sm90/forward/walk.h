/* SPDX-License-Identifier: BSD-3-Clause
 *
 * walk.h: which blocks of keys a tile's loop goes over where there are masks beside the band: those of which the tile sees
 * something, from right to left. The producer of K and V finds them by the states of units (device/visible.h), and leaves a
 * note in shared memory beside each stage of K, from which the consumers learn what they have got. Included by forward.cu
 * alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_WALK_H
#define STROBE_CUDA_SM90_FORWARD_WALK_H

#include "cuda/sm90/forward/tile.h"

enum { UNIT_BLOCKS = UNIT / KEYS, NO_BLOCK = -1 };

/* A note: the block's number, and what has to be done to its scores. */
enum {
    NOTE_LAST = 1,    /* it is the tile's last block */
    NOTE_BITS = 2,    /* the boolean mask hides some */
    NOTE_BLOCKS = 4,  /* the block mask hides some */
    NOTE_NOTHING = 8, /* the tile sees nothing at all; a tile has a block, so one of no data, all of it hidden */
    NOTE_NUMBER = 16,
};

/* The first visible block from block n on, to the left, or NO_BLOCK. */
INLINE int visible_block(const struct sm90_forward_params *p, const struct tile *t, struct eight_states *states, int n) {
    while (n >= t->first_block) {
        const int unit = n / UNIT_BLOCKS, place = unit % 8;
        if (unit / 8 != states->eight) load_states(&p->visible, &t->owner, unit / 8, states);
        const uint64_t up_to = (states->mask & states->blocks) << 8 * (7 - place); /* the unit's state is on top */
        const int hidden = __clzll((long long)up_to) / 8;
        if (up_to != 0 && hidden > 0) n = (unit - hidden + 1) * UNIT_BLOCKS - 1;
        if (up_to != 0) return n >= t->first_block ? n : NO_BLOCK;
        n = (unit - place) * UNIT_BLOCKS - 1;
    }
    return NO_BLOCK;
}

/* The note of a block whose states are loaded, but for NOTE_LAST. */
INLINE uint32_t note_of(const struct eight_states *states, int n) {
    const int at = n / UNIT_BLOCKS % 8 * 8;
    const bool mask = (states->mask >> at & 3) == UNIT_PARTIAL, blocks = (states->blocks >> at & 3) == UNIT_PARTIAL;
    return (uint32_t)n * NOTE_NUMBER | (mask ? NOTE_BITS : 0) | (blocks ? NOTE_BLOCKS : 0);
}

INLINE int block_of_note(uint32_t note) { return (int)(note / NOTE_NUMBER); }

/* A consumer's bits of the block of a note: those of the block's keys are the lowest. */
INLINE uint2 bits_of_note(const struct sm90_forward_params *p, const struct tile *t, uint32_t note) {
    const int n = block_of_note(note), shift = n % UNIT_BLOCKS * (KEYS / 4);
    if (!(note & NOTE_BITS)) return make_uint2(0, 0);
    const uint2 bits = bits_of_unit(&p->visible, &t->owner, n / UNIT_BLOCKS)[(int)threadIdx.x - 128];
    return make_uint2(bits.x >> shift, bits.y >> shift);
}

#endif
