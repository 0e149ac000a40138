/* SPDX-License-Identifier: BSD-3-Clause
 *
 * walk.h: which blocks of rows a tile goes over where there are masks beside the band: those that see some of its keys, of
 * every query head of the group. The producer finds them by the states of units (device/visible.h), and leaves a note of
 * each in shared memory, from which the other roles learn what they have got. With a fixed dQ order the search goes from the
 * last rows to the first, and tiles wait for those alone that see the same block. Included after ROWS and TILE_KEYS are
 * defined. */
#ifndef STROBE_CUDA_SM90_BACKWARD_WALK_H
#define STROBE_CUDA_SM90_BACKWARD_WALK_H

#include "cuda/device/visible.h"
#include "cuda/sm90/backward/tile.h"

enum { UNIT_BLOCKS = UNIT / ROWS };
static_assert(!HAS_MASKS || (int)TILE_KEYS == (int)UNIT, "a tile's keys are those of an owner of units");

/* A block of rows: its number and what has to be done to its scores; heads of the group left, counting its own; with
 * NOTE_BITS the boolean mask's bits of its unit; and where the next block is, if there is one: query head of the group, and
 * number. */
struct note {
    uint32_t block;
    int heads;
    const uint2 *bits;
    int next_head, next_m;
};

/* Notes stay for so many blocks, more than roles are apart: the producer is at most three blocks ahead of the consumers, and
 * these are two ahead of who adds their dQ. */
enum { NOTES = 8 };
static_assert((int)NOTES >= (int)STAGES + 4, "a note is not written while a role may read it");

enum {
    NOTE_LAST = 1,   /* it is the tile's last block */
    NOTE_BITS = 2,   /* the boolean mask hides some */
    NOTE_BLOCKS = 4, /* the block mask hides some */
    NOTE_NUMBER = 8,
};

INLINE int block_of_note(const struct note *note) { return (int)(note->block / NOTE_NUMBER); }

/* Where a search for visible blocks is: at block m for query head `head` of the group. */
struct search {
    int head, m;
    struct owner owner;
    struct eight_states states;
};

INLINE void search_head(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    at->owner = owner_of(&p->visible, t->batch, t->head_kv * p->group + at->head, t->key / UNIT);
    at->m = p->dq_semaphores ? t->end_block - 1 : t->first_block;
    at->states.eight = -1;
}

/* Goes to the nearest visible block unless it is at one; returns false if there is none left. */
INLINE bool find_visible(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    while (true) {
        while (at->m >= t->first_block && at->m < t->end_block) {
            const int unit = at->m / UNIT_BLOCKS, place = unit % 8;
            if (unit / 8 != at->states.eight) load_states(&p->visible, &at->owner, unit / 8, &at->states);
            const uint64_t visible = at->states.mask & at->states.blocks, from_here = visible >> 8 * place;
            if (from_here & 3) return true;
            if (p->dq_semaphores) {
                const uint64_t before = visible & (((uint64_t)1 << 8 * place) - 1);
                at->m = (unit - place + (before ? (71 - __clzll((long long)before)) / 8 : 0)) * UNIT_BLOCKS - 1;
            } else
                at->m = (unit + (from_here ? (__ffsll((long long)from_here) - 1) / 8 : 8 - place)) * UNIT_BLOCKS;
        }
        if (++at->head >= p->group) return false;
        search_head(p, t, at);
    }
}

/* The first block of a tile, if there is one. */
INLINE bool find_first(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    at->head = 0;
    search_head(p, t, at);
    return find_visible(p, t, at);
}

/* Goes on from a visible block to the next one; returns false if there is none left. */
INLINE bool find_next(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    at->m += p->dq_semaphores ? -1 : 1;
    return find_visible(p, t, at);
}

/* The note of the block that a search is at; the search goes on to the next one. */
INLINE struct note take_note(const struct sm90_backward_params *p, const struct tile *t, struct search *at) {
    const int place = at->m / UNIT_BLOCKS % 8 * 8;
    const int mask = (int)(at->states.mask >> place) & 3, blocks = (int)(at->states.blocks >> place) & 3;
    struct note note = {(uint32_t)at->m * NOTE_NUMBER, p->group - at->head, 0, 0, 0};
    note.block |= (mask == UNIT_PARTIAL ? NOTE_BITS : 0) | (blocks == UNIT_PARTIAL ? NOTE_BLOCKS : 0);
    if (note.block & NOTE_BITS) note.bits = bits_of_unit(&p->visible, &at->owner, at->m / UNIT_BLOCKS);
    if (!find_next(p, t, at)) note.block |= NOTE_LAST;
    note.next_head = at->head, note.next_m = at->m;
    return note;
}

/* The dQ order of block m of the group's query head `head`: how many tiles add to its dQ before this one, which are those of
 * smaller keys that see it. A whole warp counts them, a tile a lane. The states of the first tiles are loaded a block ahead,
 * and not looked at before they are counted, so that nothing waits for them. */
enum { LANES = 32, LOADS_AHEAD = 2 };
struct order_ahead {
    uint32_t mask[LOADS_AHEAD], blocks[LOADS_AHEAD];
};

/* The states of the lane's tile of 32 from `tile` on. */
INLINE void load_states_of_tiles(const struct sm90_backward_params *p, const struct tile *t, int head, int m, int tile,
                                 uint32_t *mask, uint32_t *blocks) {
    const struct visible *v = &p->visible;
    const int n = tile + (int)threadIdx.x % LANES, unit = m / UNIT_BLOCKS;
    const struct owner owner = owner_of(v, t->batch, t->head_kv * p->group + head, n);
    *mask = *blocks = n < t->key / TILE_KEYS ? UNIT_FULL : UNIT_HIDDEN;
    if (*mask && v->mask_states) *mask = v->mask_states[owner.mask + unit];
    if (*blocks && v->block_states) *blocks = v->block_states[owner.blocks + unit];
}

INLINE int first_tile_of(const struct sm90_backward_params *p, const struct tile *t, int m) {
    return t->key / TILE_KEYS - dq_order_of(p, t, m);
}

INLINE void look_ahead(const struct sm90_backward_params *p, const struct tile *t, int head, int m,
                       struct order_ahead *ahead) {
#pragma unroll
    for (int n = 0; n < LOADS_AHEAD; ++n)
        load_states_of_tiles(p, t, head, m, first_tile_of(p, t, m) + n * LANES, &ahead->mask[n], &ahead->blocks[n]);
}

INLINE int dq_order_at(const struct sm90_backward_params *p, const struct tile *t, int head, int m,
                       const struct order_ahead *ahead) {
    int before = 0;
#pragma unroll
    for (int n = 0; n < LOADS_AHEAD; ++n) before += __popc(__ballot_sync(0xffffffffu, ahead->mask[n] & ahead->blocks[n]));
#pragma unroll 1
    for (int n = first_tile_of(p, t, m) + LOADS_AHEAD * LANES; n < t->key / TILE_KEYS; n += LANES) {
        uint32_t mask, blocks;
        load_states_of_tiles(p, t, head, m, n, &mask, &blocks);
        before += __popc(__ballot_sync(0xffffffffu, mask & blocks));
    }
    return before;
}

/* A consumer's bits of the block of a note, those of the block's rows lowest; `thread` is its number among the UNIT_THREADS
 * that share the tile's keys. */
INLINE uint2 bits_of_note(const struct note *note, int thread) {
    const int shift = block_of_note(note) % UNIT_BLOCKS * (ROWS / 4);
    if (!(note->block & NOTE_BITS)) return make_uint2(0, 0);
    const uint2 bits = note->bits[thread];
    return make_uint2(bits.x >> shift, bits.y >> shift);
}

/* Goes to the block of a note; returns whether a new query head begins. */
INLINE bool go_to(const struct note *note, struct progress *at) {
    const int heads = uniform(note->heads);
    const bool is_new = heads != at->heads;
    at->row = uniform(block_of_note(note)) * ROWS, at->heads = heads;
    return is_new;
}

#endif
