/* SPDX-License-Identifier: BSD-3-Clause
 *
 * relay.h: tiles that two CTAs share. Where all tiles are alike, 2048 of them on 132 multiprocessors take 16 rounds, of
 * which the last is short of work. So the last full round and what is behind it are a line of blocks, cut into pieces of the
 * same length, one for each CTA. Of a tile that is cut one CTA does the first blocks, before all else of its piece, and the
 * next CTA the others, behind all else: O and the state of each row wait in the workspace meanwhile. A tile's blocks have
 * the order of a tile that is not shared, and so all results have its bits.
 *
 *     CTA 0  | tile 0 | begin of a |
 *     CTA 1  | tile 1 | begin of b | end of a |
 *     CTA 2  | tile 2 | c | end of b |
 *
 * A CTA waits for what the CTA before it began, which waits for none and was started before it. With CTA_PAIRS the line is
 * one of pairs of neighbouring tiles, and its pieces are those of pairs of CTAs. Included by plain.cu and forward.cu, with
 * RELAYS_TILES. */
#ifndef STROBE_CUDA_SM90_FORWARD_RELAY_H
#define STROBE_CUDA_SM90_FORWARD_RELAY_H

#include "cuda/ptx/memory.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/softmax.h"

enum {
    STATE_O = OUTPUTS / 4,           /* float4 of a thread: O; behind it bounds and shifts, and sums */
    STATE_WARP = (STATE_O + 2) * 32, /* of a warp */
    LEAST_PIECE = 2,                 /* blocks; a change of tiles takes as long as some two */
};
static_assert(sizeof(float4) * STATE_WARP == RELAY_WARP_BYTES(HEAD_DIM), "the host asks for so much");

/* Where the line is cut in front of CTA number `cta` of `ctas`, in blocks: not within so few of a tile's edge that a change
 * of tiles is longer. more: tiles beyond one for each CTA. */
INLINE int64_t cut_before(int cta, int ctas, int more, int blocks) {
    const int64_t cut = (int64_t)cta * blocks + (int64_t)cta * more * blocks / ctas, begun = cut % blocks;
    return begun < LEAST_PIECE ? cut - begun : blocks - begun < LEAST_PIECE ? cut - begun + blocks : cut;
}

/* What the CTA has of the line; one thread, before the roles begin. */
INLINE void find_relay(const struct sm90_forward_params *p, struct relay *own) {
    const int ctas = (int)gridDim.x / PAIR, cta = (int)blockIdx.x / PAIR, tiles = p->tiles / PAIR;
    const int more = tiles % ctas, first = tiles - more - ctas, blocks = (p->seq_k + KEYS - 1) / KEYS;
    const int64_t begin = cut_before(cta, ctas, more, blocks), end = cut_before(cta + 1, ctas, more, blocks);
    own->rounds = first / ctas;
    own->first = first + (int)((begin + blocks - 1) / blocks), own->last = first + (int)(end / blocks);
    own->begun = (int)(end % blocks), own->left = (int)(begin % blocks);
}

/* The CTA's tile number `told` and what it has of it. */
INLINE int relayed_tile(const struct sm90_forward_params *p, const struct relay *own, int told, int *piece) {
    const int ctas = (int)gridDim.x / PAIR, cta = (int)blockIdx.x / PAIR, begun = own->begun > 0;
    const int at = own->first + told - own->rounds - begun;
    int tile = p->tiles / PAIR; /* behind the last one */
    *piece = WHOLE_TILE;
    if (told < own->rounds)
        tile = cta + told * ctas;
    else if (begun && told == own->rounds)
        *piece = BEGUN_TILE, tile = own->last;
    else if (at < own->last)
        tile = at;
    else if (at == own->last && own->left)
        *piece = ENDED_TILE, tile = own->first - 1;
    return tile * PAIR + (int)blockIdx.x % PAIR;
}

/* Of a described tile the blocks that are the CTA's: a tile is walked from its last block to the first. */
INLINE void cut_tile(struct relay *own, struct tile *t, uint32_t slot, int piece) {
    own->piece[slot] = piece;
    if (piece == BEGUN_TILE) t->first_block = t->end_block - own->begun;
    if (piece == ENDED_TILE) t->end_block -= own->left;
}

/* Blocks of the tile in a slot that the CTA before has done; the same for all lanes. */
INLINE int blocks_begun(const struct relay *own, uint32_t slot) {
    return __all_sync(0xffffffffu, own->piece[slot] == ENDED_TILE) ? own->left : 0;
}

/* Whether the tile in a slot is another CTA's to end; the same for all lanes. */
INLINE bool is_begun(const struct relay *own, uint32_t slot) {
    return __all_sync(0xffffffffu, own->piece[slot] == BEGUN_TILE);
}

/* Behind the workspace's head: where the thread's part of what a CTA leaves lies, [CTA][warp] of RELAY_WARP_BYTES, */
INLINE float4 *state_of(const struct sm90_forward_params *p, int cta) {
    const int warp = (int)threadIdx.x / 32 - 4;
    return (float4 *)(p->workspace + 1) + ((int64_t)cta * (4 * GROUPS) + warp) * STATE_WARP + threadIdx.x % 32;
}
/* and [CTA][warp] the launch whose state is there. */
INLINE uint64_t *told_of(const struct sm90_forward_params *p, int cta) {
    uint64_t *const told = (uint64_t *)((float4 *)(p->workspace + 1) + (int64_t)gridDim.x * (4 * GROUPS) * STATE_WARP);
    return &told[cta * (4 * GROUPS) + (int)threadIdx.x / 32 - 4];
}

/* A warp's part of a tile that is begun. */
INLINE void save_state(const struct sm90_forward_params *p, const float (&o)[OUTPUTS], const struct rows *r) {
    float4 *to = state_of(p, (int)blockIdx.x);
#pragma unroll
    for (int i = 0; i < STATE_O; ++i) to[32 * i] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    to[32 * STATE_O] = make_float4(r->bound[0], r->bound[1], r->shift[0], r->shift[1]);
    to[32 * (STATE_O + 1)] = make_float4(r->sum[0], r->sum[1], 0, 0);
    __syncwarp();
    if (threadIdx.x % 32 == 0) store_release(told_of(p, (int)blockIdx.x), p->launch);
}

/* Waits for the rows' state of the tile that the CTA before has begun. */
INLINE void restore_rows(const struct sm90_forward_params *p, struct rows *r) {
    const int from = (int)blockIdx.x - PAIR;
    while (load_acquire(told_of(p, from)) != p->launch) {
    }
    const float4 *state = state_of(p, from) + 32 * STATE_O;
    const float4 rows = state[0], sums = state[32];
    r->bound[0] = rows.x, r->bound[1] = rows.y, r->shift[0] = rows.z, r->shift[1] = rows.w;
    r->sum[0] = sums.x, r->sum[1] = sums.y;
}

/* And its O, after restore_rows(); a launch that a graph repeats has the same number again. */
INLINE void restore_output(const struct sm90_forward_params *p, float (&o)[OUTPUTS]) {
    const int from = (int)blockIdx.x - PAIR;
    const float4 *state = state_of(p, from);
#pragma unroll
    for (int i = 0; i < STATE_O; ++i) {
        const float4 four = state[32 * i];
        o[4 * i] = four.x, o[4 * i + 1] = four.y, o[4 * i + 2] = four.z, o[4 * i + 3] = four.w;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) *(volatile uint64_t *)told_of(p, from) = 0;
}

#endif
