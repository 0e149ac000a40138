/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu (fp8): FlashAttention-3's forward in FP8 (Shah et al., 2024, section 3.3) on Hopper: e4m3 Q, K, V with scales,
 * sums promoted to fp32 after every block of keys. It has the structure, the roles and the schedule of
 * sm90/forward/forward.cu, whose headers it takes; what is different:
 *
 *     S = Q K^T                         raw sums of e4m3; a row's c is scale log2 e, times Q's and K's scales
 *     P = 2^(S c - m + 6)               in e4m3's range                                                  softmax.h
 *     T = P [V | 1]                     anew for each block: the accumulator of an FP8 product keeps about 14 bits, over one
 *                                       block of keys and not over the sequence
 *     O = (O + T scale_v) a, l alike    fp32; l is the product's column of ones, so that V = ones gives exactly 1
 *     V^T                               made of V in its place by two producer warps                     transpose.h
 *
 *     loader       | Q | Q' | K0 | K1 V0 | K2 V1 | ...        one thread
 *     scheduler    | tile 0 | tile 1 |            | tile 2 |  one warp
 *     transposers  |              V0^T   V1^T   ...           two warps
 *     consumers    | S0 P0 T0 T0 ... | S1 P1 T1 T1 ... | ... | O / l -> global | S0' ...
 *
 * It has all score terms, and plain attention of rows that see few keys; forward_long.cu has the rest. At 64
 * columns a consumer leaves out the blocks at the right of its tile of which its own 64 rows see nothing.
 *
 * A consumer does one thing after the other, and the others fill the time: three of them to 128 columns, two beyond. S, and
 * then P and T, take the same registers, since T is worked out a few columns at a time and added to O under the product of
 * the next few. Nothing orders the consumers.
 *
 * Shared memory: Q [slab][64][128 bytes], stages of K and V [slab][KEYS][128], slabs of 128 columns, 128-byte swizzle;
 * narrower rows arrive with zeros behind them. Registers of a consumer: S KEYS/2, O HEAD_DIM/2 + 2. Notebook:
 * docs/kernels/sm90_fp8.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/ptx/wgmma_fp8.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/score_terms.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/fp8/consumer.h"
#include "cuda/sm90/fp8/load.h"
#include "cuda/sm90/fp8/scales.h"
#include "cuda/sm90/fp8/softmax.h"
#include "cuda/sm90/fp8/transpose.h"
#include "cuda/sm90/trace.h"

static_assert(sizeof(struct shared) <= sizeof(shared::q) + sizeof(shared::k) + sizeof(shared::v) + 4096,
              "host.c asks for so much behind the stages");

/* P V is worked out PART columns at a time, so that its sums take the registers that S has left. */
#if GROUPS > 2 && HEAD_DIM > 64
enum { PART = 32 };
#define PART_STEP       wgmma_e4m3_rs_32
#define PART_START      wgmma_e4m3_rs_32_start
#define LAST_PART_STEP  wgmma_e4m3_rs_40
#define LAST_PART_START wgmma_e4m3_rs_40_start
#else
enum { PART = 64 };
#define PART_STEP       wgmma_e4m3_rs_64
#define PART_START      wgmma_e4m3_rs_64_start
#define LAST_PART_STEP  wgmma_e4m3_rs_72
#define LAST_PART_START wgmma_e4m3_rs_72_start
#endif
enum { PARTS = HEAD_DIM / PART, SUMS = PART / 2 };

/* Issues S = Q K^T. */
INLINE void issue_scores(product (&s)[SCORES], uint64_t q, uint64_t k) {
    wgmma_fence();
    first_scores(s, q, k);
#pragma unroll
    for (int step = 1; step < HEAD_DIM / 32; ++step)
        next_scores(s, q + step / 4 * (Q_SLAB / 16) + step % 4 * 2, k + step / 4 * (KV_SLAB / 16) + step % 4 * 2);
    wgmma_commit();
}

/* Issues T = P V of PART columns. */
INLINE void issue_part(float (&t)[SUMS], const uint32_t (&packed)[KEYS / 8], uint64_t vt) {
    wgmma_fence();
    PART_START(t, &packed[0], vt);
#pragma unroll
    for (int step = 1; step < KEYS / 32; ++step) PART_STEP(t, &packed[4 * step], vt + 2 * step);
    wgmma_commit();
}

/* Issues T = P [V | 1] of the last PART columns. */
INLINE void issue_last_part(float (&t)[SUMS + 4], const uint32_t (&packed)[KEYS / 8], uint64_t vt) {
    wgmma_fence();
    LAST_PART_START(t, &packed[0], vt);
#pragma unroll
    for (int step = 1; step < KEYS / 32; ++step) LAST_PART_STEP(t, &packed[4 * step], vt + 2 * step);
    wgmma_commit();
}

#define K_STEP      (SLABS * KV_SLAB / 16) /* from stage to stage in a descriptor */
#define V_STEP      (V_BYTES / 16)
#define Q_SLOT_STEP (GROUP_BYTES / 16)

/* What a thread of a consumer warp group keeps beside its registers of S, P, T and O. */
struct consumer_state {
    uint32_t count;             /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;             /* tiles processed */
    int first_block, end_block; /* of the tile in hand, as far as the group's rows see */
    struct keys shown;          /* to all rows of the warp */
    float row_scale[2];         /* of Q's rows, times the scale of scores and, without score terms, log2 e */
    float l[2];
    struct rows rows;
    struct tracer tracer;
};

INLINE uint64_t queries_of(struct shared *shared, uint32_t tiles) {
    return wgmma_operand(shared_address(shared->q), 0) + q_slot_of(piece_of(tiles, group_index())) * Q_SLOT_STEP;
}

INLINE uint64_t keys_of_stage(struct shared *shared, uint32_t stage) {
    return wgmma_operand(shared_address(shared->k), 0) + stage * K_STEP;
}

/* Whether consumers leave out blocks. At 128 columns this gains as much with causal masks, but costs 5 % without. */
enum { LEAVES_OUT = GROUPS > 2 && HEAD_DIM == 64 };

/* Behind the last block of a tile of which some row of the group sees a key; where the rows see all keys, of the tile. */
INLINE int end_of_group(const struct tile *t) {
    if (!LEAVES_OUT || end_key_of(t, t->row) >= t->keys) return t->end_block;
    const int first = t->row + 64 * group_index(), last = min(first + 63, t->rows - 1);
    const int end = first > last ? 0 : (end_key_of(t, last) + KEYS - 1) / KEYS;
    return min(max(end, t->first_block), t->end_block);
}

/* Lets go of the next blocks, once they have come: the group would be a phase ahead else. */
INLINE void skip_blocks(struct shared *shared, struct consumer_state *g, int blocks) {
#pragma unroll 1
    for (; blocks > 0; --blocks, ++g->count) {
        const uint32_t stage = stage_of(g->count), parity = full_parity(g->count);
        mbarrier_wait(&shared->k_full[stage], parity);
        release(&shared->k_empty[stage]);
        mbarrier_wait(&shared->vt_full[stage], parity);
        release(&shared->v_empty[stage]);
    }
}

/* Takes over the description of the next tile, and waits for its Q; false after the last. */
INLINE bool begin_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&o)[OUTPUTS]) {
    const struct tile *tile = &shared->tile[slot_of(g->tiles)];
    const uint32_t piece = piece_of(g->tiles, group_index());
    mbarrier_wait(&shared->tile_full[slot_of(g->tiles)], slot_parity(g->tiles));
    if (tile->number == NO_TILE) return false;
    g->first_block = tile->first_block, g->end_block = end_of_group(tile);
    g->shown = keys_of_warp(tile, warp_row());
    row_scales_of(p, shared, g->tiles, g->row_scale);
    g->rows = rows_of_tile(tile, warp_row());
    g->l[0] = g->l[1] = 0;
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) o[v] = 0;
    mbarrier_wait(&shared->q_full[q_slot_of(piece)], q_parity(piece));
    if (LEAVES_OUT && g->end_block == g->first_block) release(&shared->q_empty[q_slot_of(piece)]);
    if (LEAVES_OUT) skip_blocks(shared, g, tile->end_block - g->end_block);
    return true;
}

/* The scores of block n become P; m, l and O follow. */
INLINE void softmax_of_block(const struct sm90_forward_params *p, const struct shared *shared, struct consumer_state *g,
                             product (&of)[SCORES], float (&s)[SCORES], float (&o)[OUTPUTS], int n, float k_scale) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    float c[2] = {g->row_scale[0] * k_scale, g->row_scale[1] * k_scale};
    scores_of(of, s);
    if (HAS_SCORE_TERMS) {
#pragma unroll
        for (int v = 0; v < SCORES; ++v) s[v] *= c[v / 2 % 2];
        apply_score_terms(p, t, g->shown, s, warp_row(), n * KEYS, (const struct relatives *)0);
        c[0] = c[1] = (float)LOG2_E;
    }
    mask_band(t, g->shown, s, warp_row(), n * KEYS);
    follow_maxima(s, &g->rows, c);
    rescale(o, &g->rows);
    if (g->rows.grown) g->l[0] *= g->rows.factor[0], g->l[1] *= g->rows.factor[1];
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    exponentials_fp8(s, &g->rows, c);
}

/* O += T scale_v for the sums of one part. */
template <int COUNT> INLINE void promote(float (&o)[OUTPUTS], float (&t)[COUNT], int part, float v_scale) {
#pragma unroll
    for (int v = 0; v < COUNT; ++v) wgmma_keep(t[v]);
#pragma unroll
    for (int v = 0; v < SUMS; ++v) o[part * SUMS + v] = fmaf(t[v], v_scale, o[part * SUMS + v]);
}

/* O += P V scale_v, l += the column of ones, which the first lane of four holds. A part's sums are added while the tensor
 * cores have the next part. */
INLINE void accumulate(struct consumer_state *g, const uint32_t (&packed)[KEYS / 8], float (&o)[OUTPUTS], uint64_t vt,
                       float v_scale) {
    float t[2][SUMS], last[SUMS + 4];
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const uint64_t columns = vt + part * (PART * ROW_BYTES / 16);
        if (part < PARTS - 1) issue_part(t[part % 2], packed, columns);
        if (part == PARTS - 1) issue_last_part(last, packed, columns);
        if (part == 0) continue;
        wgmma_wait(1);
        promote(o, t[(part - 1) % 2], part - 1, v_scale);
    }
    wgmma_wait(0);
    promote(o, last, PARTS - 1, v_scale);
    g->l[0] += last[SUMS], g->l[1] += last[SUMS + 2];
}

/* Block n of the tile in hand: its scores, their softmax, P V. */
INLINE void process_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                          float (&o)[OUTPUTS], int n) {
    const uint32_t stage = stage_of(g->count), parity = full_parity(g->count), last = n == g->first_block;
    product of[SCORES];
    float s[SCORES];
    uint32_t packed[KEYS / 8]; /* P */
    trace(&g->tracer, STROBE_TRACE_WAIT_K, g->count);
    mbarrier_wait(&shared->k_full[stage], parity);
    const float2 scales = shared->scales[stage];
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(of, queries_of(shared, g->tiles), keys_of_stage(shared, stage));
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(0);
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    arrive_as_warp(&shared->k_empty[stage]); /* all lanes have read the scales too */
    if (last) release(&shared->q_empty[q_slot_of(piece_of(g->tiles, group_index()))]);
    softmax_of_block(p, shared, g, of, s, o, n, scales.x);
    pack_weights(packed, s);
    trace(&g->tracer, STROBE_TRACE_WAIT_V, g->count);
    mbarrier_wait(&shared->vt_full[stage], parity);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    accumulate(g, packed, o, wgmma_operand(shared_address(shared->v), 0) + stage * V_STEP, scales.y);
    release(&shared->v_empty[stage]);
    ++g->count;
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    float o[OUTPUTS];
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0;
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);

    for (; begin_tile(p, shared, &g, o); ++g.tiles) {
        const uint32_t slot = slot_of(g.tiles);
        for (int n = g.end_block - 1; n >= g.first_block; --n) process_block(p, shared, &g, o, n);
        trace(&g.tracer, STROBE_TRACE_EPILOGUE, g.count);
        const bool finite = finish_tile(p, &shared->tile[slot], o, &g.rows, g.l);
        __syncwarp();
        if (!finite) mark_for_recompute(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    recompute_marked(p, *chain, warp_row());
}

#include "cuda/sm90/fp8/entry.h"
