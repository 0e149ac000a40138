/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shared.h: what the warps of a CTA share: a ring of stages, the barriers that hand them over, and what stands beside each.
 * An entry of the ring is the Q of a segment or a block of K. Included by latent.cu alone. */
#ifndef STROBE_CUDA_SM90_LATENT_SHARED_H
#define STROBE_CUDA_SM90_LATENT_SHARED_H

#include "cuda/device/stored.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/latent/schedule.h"

enum {
    IS_RAW = STORED_BYTES < ELEMENT_BYTES, /* K comes as bytes, which are widened in their stage (widen.h) */
    ROWS = LATENT_ROWS,
    STAGES = 3,
    SLABS = LATENT_DIM / 64,
    HELD_SLABS = IS_RAW ? 5 : 6,      /* of Q, in registers; the last ones are in shared memory */
    ROW_BYTES = 128,                  /* of a slab */
    SLAB_EIGHT = 8 * ROW_BYTES,       /* eight rows of a slab */
    EIGHT_BYTES = SLABS * SLAB_EIGHT, /* K: [eight keys][slab][8][64] */
    Q_SLAB = ROWS * ROW_BYTES,        /* Q: [slab][64][64] */
    P_BYTES = ROWS * ROW_BYTES,       /* P: [64][64], of which KEYS columns are used */
    EIGHTS = KEYS / 8,
    STAGE_BYTES = EIGHTS * EIGHT_BYTES,
    RAW_EIGHT = 8 * LATENT_DIM * STORED_BYTES, /* of a cache of bytes, as it comes: [eight keys][slab][8][64], */
    RAW_AT = STAGE_BYTES - EIGHTS * RAW_EIGHT, /* at the end of its stage */
    SEGMENTS = 4,                              /* the ring lets no fifth one be described before the first is done with */
    VALUE_GROUPS = 2,
    VALUES = LATENT_DIM_V / VALUE_GROUPS, /* columns of a values group */
};

struct shared {
    unsigned char stage[STAGES][STAGE_BYTES];
    unsigned char p[STAGES][P_BYTES];
    unsigned char q[SLABS - HELD_SLABS][Q_SLAB]; /* the last slabs of the segment's Q */
    uint64_t full[STAGES];                       /* Q or K has come */
    uint64_t raw[STAGES];                        /* bytes of K have come; these barriers count blocks of K alone */
    uint64_t weights[STAGES];                    /* P and its factors are there; of Q: it is in registers */
    uint64_t next[STAGES];      /* the scores of the block behind are done, or there is none: the values groups may go on */
    uint64_t empty[STAGES];     /* both values groups are done with the stage */
    float factor[STAGES][ROWS]; /* that O is multiplied by before P V is added */
    float2 end[2][ROWS];        /* of a segment: maximum and sum. The ring lets no third one end before the first is read. */
    float scale[STAGES][KEYS];  /* of keys that are bytes */
    uint32_t missing[STAGES];   /* eights of keys whose page is none, as bits */
    struct segment segment[SEGMENTS];
    struct walk walk;
};

static_assert(128 * (2 + VALUE_GROUPS) == LATENT_THREADS && sizeof(struct shared) <= LATENT_SHARED_BYTES,
              "the host asks for so much");

/* Every role counts entries of the ring; the count tells the stage and the parity of its barriers' phase. */
INLINE uint32_t stage_of(uint32_t count) { return count % STAGES; }
INLINE uint32_t parity_of(uint32_t count) { return count / STAGES % 2; }

/* Once a warp: it is done with what the barrier guards. */
INLINE void arrive(uint64_t *barrier) { arrive_as_warp(barrier); }

/* Where sixteen bytes of a row of an operand with 128-byte swizzle lie, in a slab's eights `eight_bytes` apart. */
INLINE int chunk_at(int row, int chunk, int eight_bytes) {
    return row / 8 * eight_bytes + row % 8 * 128 + (chunk ^ row % 8) * 16;
}

#endif
