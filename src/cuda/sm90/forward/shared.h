/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shared.h: what the warps of a CTA share: stages of K and V, slots of Q and of tile descriptions, and the barriers that
 * hand them over. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_SHARED_H
#define STROBE_CUDA_SM90_FORWARD_SHARED_H

#include "cuda/ptx/mbarrier.h"
#include "cuda/sm90/forward/tile.h"

/* e4m3 Q, K and V: a slab is 128 columns, and V is transposed in place. Behind V^T lie eight rows more (fp8/transpose.h). */
#if defined(FP8_INPUTS)
#define SLAB_COLUMNS 128
#define V_BYTES      (SLABS * KV_SLAB + (HEAD_DIM % 128 == 0 ? 8 * ROW_BYTES : 0))
#else
#define SLAB_COLUMNS 64
#define V_BYTES      (SLABS * KV_SLAB)
#define V_STAGES     STAGES
#endif
#if !defined(V_BEHIND)
#define V_BEHIND 1 /* blocks that V is copied behind K */
#endif

enum {
    SLABS = (HEAD_DIM + SLAB_COLUMNS - 1) / SLAB_COLUMNS,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128,         /* of a slab */
    Q_SLAB = 64 * ROW_BYTES, /* of one group */
    GROUP_BYTES = SLABS * Q_SLAB,
    KV_SLAB = KEYS * ROW_BYTES,
    KV_EIGHT = HAS_PAGES ? SLABS * 8 * ROW_BYTES : 8 * ROW_BYTES, /* from eight keys to the next in a stage of K or V */
    SLAB_STEP = HAS_PAGES ? 8 * ROW_BYTES : KV_SLAB,              /* from slab to slab */
    SCORES = KEYS / 2,                                            /* accumulators of a thread */
    OUTPUTS = HEAD_DIM / 2,
    PING_PONG_BARRIER = 1, /* named barrier PING_PONG_BARRIER + g: group g may issue its products */
    TILES = 4,             /* slots of tile descriptions; at most so many tiles are known at a time */
    TAKE_AHEAD = 8,        /* blocks of K, see tile_ends: a description takes 2.4 us, Q's copy one or two more */
    HAS_BIAS_TILES = FEATURE_CLASS == FEATURES_BIAS,
    BIAS_BYTES = 64 * KEYS * 2, /* of one group */
    BIAS_STAGES = HEAD_DIM <= 64 ? 2 : 1,
    /* roles that read tile descriptions, beside the consumers: warps, and threads that are alone */
    PRODUCER_WARPS = HAS_PAGES ? 2 : 0,
    PRODUCER_THREADS = HAS_PAGES ? 1 : 2 + HAS_BIAS_TILES,
};

/* Of a thread: at launch, and after the producer has released some and the consumers have claimed them. PRODUCER_REGISTERS
 * is the least with which ptxas does not spill the producers. */
#define REGISTERS (65536 / (THREADS * CTAS) / 8 * 8)
#define PRODUCER_REGISTERS \
    (HAS_MASKS || ((HAS_PAGES || HAS_PARTS || SLAB_COLUMNS == 128) && REGISTERS == 168) ? 40 : REGISTERS == 168 ? 24 : 32)
#define MOVED_REGISTERS    ((REGISTERS * (GROUPS + 1) - PRODUCER_REGISTERS) / GROUPS / 8 * 8)
#define CONSUMER_REGISTERS (MOVED_REGISTERS < 240 ? MOVED_REGISTERS : 240)

#if defined(RELAYS_TILES)
/* What a CTA has of a tile: all, the blocks that come first, or those that the CTA before has left; see relay.h. */
enum piece { WHOLE_TILE, BEGUN_TILE, ENDED_TILE };

/* A CTA's piece of the line of tiles that are shared. */
struct relay {
    int rounds;       /* tiles before it */
    int first, last;  /* whole tiles, from the first on and before the last */
    int begun;        /* blocks of the last one that are the CTA's, 0: none */
    int left;         /* blocks of the tile in front of the first that the CTA before has begun, 0: none */
    int piece[TILES]; /* of the tile in each slot, an enum piece */
};
#endif

struct shared {
    unsigned char q[Q_SLOTS][GROUP_BYTES];
    unsigned char k[STAGES][SLABS * KV_SLAB];
    unsigned char v[V_STAGES][V_BYTES];
    unsigned char bias[HAS_BIAS_TILES ? BIAS_STAGES : NO_ELEMENTS][GROUPS][HAS_BIAS_TILES || !NO_ELEMENTS ? BIAS_BYTES : 64];
#if defined(FP8_INPUTS)
    uint64_t vt_full[V_STAGES];
    float2 scales[STAGES]; /* of K and of V in the block of a stage of K */
    uint64_t rows_full[TILES];
    float row_scale[TILES][64 * GROUPS]; /* of Q, of the tiles' rows */
#endif
#if defined(RELAYS_TILES)
    struct relay relay;
#endif
    uint64_t q_full[Q_SLOTS], q_empty[Q_SLOTS];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    uint64_t tile_full[TILES], tile_empty[TILES];
    uint64_t tile_ends[TILES]; /* few blocks of the tile are still to be copied: the scheduler may take another one */
    uint64_t bias_full[BIAS_STAGES][GROUPS], bias_empty[BIAS_STAGES][GROUPS];
    struct tile tile[TILES];
    uint32_t note[STAGES]; /* with masks: which block a stage of K has, see walk.h; with pages: which eights have none, see
                              pages.h */
    int32_t chain[4 * GROUPS]; /* of each warp: the last tile of which it has to recompute rows, or -1 */
    uint64_t v_arrived;        /* with pages: a block of V, whose last rows are still to be set to zero */
};

/* Every role counts blocks and tiles from the kernel's start. The count tells the stage and the parity of its barrier's
 * phase. A reader waits for `full`; the writer waits for `empty`, whose parity is the other one, since a fresh barrier
 * counts as having completed the phase before the first. */
INLINE uint32_t stage_of(uint32_t count) { return count % STAGES; }
INLINE uint32_t full_parity(uint32_t count) { return count / STAGES % 2; }
INLINE uint32_t empty_parity(uint32_t count) { return full_parity(count) ^ 1; }
INLINE uint32_t v_stage_of(uint32_t count) { return count % V_STAGES; }
INLINE uint32_t v_full_parity(uint32_t count) { return count / V_STAGES % 2; }
INLINE uint32_t v_empty_parity(uint32_t count) { return v_full_parity(count) ^ 1; }
INLINE uint32_t bias_stage_of(uint32_t count) { return count % BIAS_STAGES; }
INLINE uint32_t bias_parity(uint32_t count) { return count / BIAS_STAGES % 2; }
INLINE uint32_t slot_of(uint32_t tiles) { return tiles % TILES; }
INLINE uint32_t slot_parity(uint32_t tiles) { return tiles / TILES % 2; }
/* A piece of Q is a group's 64 rows of a tile; pieces lie in a ring of Q_SLOTS. */
INLINE uint32_t piece_of(uint32_t tiles, int group) { return tiles * GROUPS + group; }
INLINE uint32_t q_slot_of(uint32_t piece) { return piece % Q_SLOTS; }
INLINE uint32_t q_parity(uint32_t piece) { return piece / Q_SLOTS % 2; }

#endif
