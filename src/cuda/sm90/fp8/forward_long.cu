/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_long.cu: the FP8 forward for rows that see many keys, where the last percents of a block count and not how a tile
 * begins. It has forward.cu's arithmetic, roles and shared memory. What is different:
 *
 *     consumer 0   | softmax0 | PV0 QK1 | softmax1      | PV1 QK2 | ...       the scores of the next block, or tile, are
 *     consumer 1   |     softmax0       | PV0 QK1 | softmax1      | PV1 QK2   issued behind P V
 *
 * Consumers ping-pong around the products, so that one has its softmax while another has its products. K and V of a block
 * are copied together, and beyond 128 columns V has a stage more, since the transposition takes its time. To 128 columns
 * maxima are found where sums of weights ask for them (softmax_sums.h); beyond, exponentials take less of the time than the
 * products do. Figures: docs/benchmarks.md; what was tried: docs/kernels/sm90_fp8.md. */
#define V_BEHIND 0
#include "cuda/device/element.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/fp8/consumer.h"
#include "cuda/sm90/fp8/load.h"
#include "cuda/sm90/fp8/products.h"
#include "cuda/sm90/fp8/scales.h"
#include "cuda/sm90/fp8/softmax_sums.h"
#include "cuda/sm90/fp8/transpose.h"
#include "cuda/sm90/trace.h"

static_assert(sizeof(struct shared) <= sizeof(shared::q) + sizeof(shared::k) + sizeof(shared::v) + 4096,
              "host.c asks for so much behind the stages");

static_assert(!HAS_SCORE_TERMS, "forward.cu has those");

/* What a warp has to know of a tile. */
struct part {
    int first_block, end_block; /* none after the last tile */
    struct keys shown;          /* to all rows of the warp */
    float row_scale[2];         /* of Q's rows, times the scale of scores and, without score terms, log2 e */
};

/* What a thread of a consumer warp group keeps beside its registers of S, P, T and O. */
struct consumer_state {
    uint32_t count;   /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;   /* tiles processed */
    uint32_t queries; /* the place of the consumer's first piece of Q */
    struct part part; /* of the tile that begin_tile() has begun */
    float l[2];
    struct rows rows;
    struct tracer tracer;
};

/* Consumers ping-pong around the products, so that one has its softmax while another has its products. */
INLINE void ping_pong_wait(void) { named_barrier_wait(PING_PONG_BARRIER + group_index(), 256); }

INLINE void ping_pong_arrive(void) { named_barrier_arrive(PING_PONG_BARRIER + (group_index() + 1) % GROUPS, 256); }

/* With three consumers ptxas knows that counts are the same for a warp: places that follow from them need no shuffle, and a
 * consumer's pieces of Q lie in slots of its own. */
enum { KNOWS_COUNTS = GROUPS == 3 };
static_assert(!KNOWS_COUNTS || Q_SLOTS % GROUPS == 0, "slots of Q are a consumer's own");

INLINE uint32_t stage_place_of(const unsigned char *operand, uint32_t bytes) {
    return KNOWS_COUNTS ? ((shared_address(operand) + bytes) & 0x3ffff) / 16 : place_of(operand, bytes);
}

INLINE uint32_t queries_of(struct shared *shared, const struct consumer_state *g) {
    if (KNOWS_COUNTS) return g->queries + g->tiles % (Q_SLOTS / GROUPS) * (GROUPS * GROUP_BYTES / 16);
    return place_of(shared->q[0], q_slot_of(piece_of(g->tiles, group_index())) * GROUP_BYTES);
}

INLINE uint32_t keys_of_stage(struct shared *shared, uint32_t stage) {
    return stage_place_of(shared->k[0], stage * (SLABS * KV_SLAB));
}

/* K, or V^T, of a block has come. The wait that is seldom in vain is under the scores' product, where it costs nothing;
 * ptxas spills where both are. */
enum { WAITS_EARLY_FOR_K = HEAD_DIM == 256, WAITS_EARLY_FOR_V = GROUPS == 3 };

INLINE void wait_for_keys(struct shared *shared, uint32_t count) {
    mbarrier_wait(&shared->k_full[stage_of(count)], full_parity(count));
}

INLINE void wait_for_values(struct shared *shared, uint32_t count) {
    mbarrier_wait(&shared->vt_full[v_stage_of(count)], v_full_parity(count));
}

INLINE void release_queries(struct shared *shared, const struct consumer_state *g) {
    release(&shared->q_empty[q_slot_of(piece_of(g->tiles, group_index()))]);
}

/* Takes over the description of the next tile, and waits for its Q and its first K. After the last tile there is nothing to
 * wait for, and what is multiplied next is stale data: ptxas would serialise all products if one stood behind a condition.
 */
INLINE void begin_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g) {
    const struct tile *tile = &shared->tile[slot_of(g->tiles)];
    const uint32_t piece = piece_of(g->tiles, group_index());
    mbarrier_wait(&shared->tile_full[slot_of(g->tiles)], slot_parity(g->tiles));
    g->part.first_block = tile->first_block, g->part.end_block = tile->end_block;
    if (g->part.end_block == g->part.first_block) return;
    g->part.shown = keys_of_warp(tile, warp_row());
    row_scales_of(p, shared, g->tiles, g->part.row_scale);
    mbarrier_wait(&shared->q_full[q_slot_of(piece)], q_parity(piece));
    wait_for_keys(shared, g->count);
}

/* O and l are of the shift before. */
INLINE void follow_shift(struct consumer_state *g, float (&o)[OUTPUTS]) {
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) o[v] *= g->rows.factor[v / 2 % 2];
    g->l[0] *= g->rows.factor[0], g->l[1] *= g->rows.factor[1];
}

/* What seldom is to be done before a block's exponentials: keys hidden, scales made positive, shifts found for rows that see
 * their first keys. Returns whether these were found. */
INLINE bool begin_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                        float (&s)[SCORES], float (&o)[OUTPUTS], float (&c)[2], int n, bool is_first) {
    mask_band(&shared->tile[slot_of(g->tiles)], g->part.shown, s, warp_row(), n * KEYS);
    if (HEAD_DIM > 128 || !__any_sync(0xffffffffu, lacks_shift(&g->rows, c))) return false;
    if (has_odd_scale(c)) make_positive(s, c);
    find_shift(s, &g->rows, c);
    if (!is_first) follow_shift(g, o);
    return true;
}

/* S becomes P, rounded; shift, sums, l and O follow. */
INLINE void to_weights(struct consumer_state *g, float (&s)[SCORES], float (&o)[OUTPUTS], uint32_t (&weights)[KEYS / 8],
                       float (&c)[2], bool is_first, bool starts) {
#if HEAD_DIM > 128
    follow_maxima(s, &g->rows, c);
    if (g->rows.grown) follow_shift(g, o);
    exponentials_fp8(s, &g->rows, c);
    pack_weights(weights, s);
#else
    const bool is_long = g->part.end_block - g->part.first_block > SHORT_TILE;
    const float most = starts && is_long ? WANTED_SUM : LARGEST_WEIGHT;
    float sums[2];
    exponentials_and_sums(s, &g->rows, c, sums);
    pack_weights(weights, s);
    if (__any_sync(0xffffffffu, !(fmaxf(sums[0], sums[1]) <= most))) {
        lower_weights(s, &g->rows, sums, most);
        if (!is_first) follow_shift(g, o);
        pack_weights(weights, s);
    }
    g->rows.sum[0] += sums[0], g->rows.sum[1] += sums[1];
#endif
}

/* Whether block n needs begin_block(); the same for the whole warp. One test for all that may ask for it: each branch that
 * is not taken costs as much as ten instructions. */
INLINE bool is_unusual(const struct consumer_state *g, const float (&c)[2], int n) {
    const bool hides = n * KEYS + KEYS > g->part.shown.end || n * KEYS < g->part.shown.begin;
    if (HEAD_DIM > 128) return hides;
    return __any_sync(0xffffffffu, hides | lacks_shift(&g->rows, c));
}

/* Block n of the tile in hand, whose scores the tensor cores have, becomes P. */
INLINE void softmax_of_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                             product (&of)[SCORES], float (&o)[OUTPUTS], uint32_t (&weights)[KEYS / 8], int n, float k_scale,
                             bool last) {
    float c[2] = {g->part.row_scale[0] * k_scale, g->part.row_scale[1] * k_scale};
    const bool unusual = is_unusual(g, c, n), is_first = n == g->part.end_block - 1;
    bool starts = false;
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    if (WAITS_EARLY_FOR_K && !last) wait_for_keys(shared, g->count + 1);
    if (WAITS_EARLY_FOR_V) wait_for_values(shared, g->count);
    wgmma_wait(0);
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    arrive_as_warp(&shared->k_empty[stage_of(g->count)]); /* all lanes have read the scales too */
    if (last && QUERIES_LATER) release_queries(shared, g);
    float s[SCORES];
    scores_of(of, s);
    if (unusual) starts = begin_block(p, shared, g, s, o, c, n, is_first);
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    to_weights(g, s, o, weights, c, is_first, starts);
}

/* Softmax of block n, its P V, and the scores of the next block, which may be the next tile's first. With two consumers the
 * next tile is waited for at the very end: its registers are in the way before. */
INLINE void process_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                          product (&s)[SCORES], float (&o)[OUTPUTS], int n, bool last) {
    enum { BEGINS_LATE = GROUPS == 2 };
    const uint32_t v_stage = v_stage_of(g->count);
    const float2 scales = shared->scales[stage_of(g->count)];
    uint32_t weights[KEYS / 8]; /* P */
    float sums[LAST_SUMS];
    softmax_of_block(p, shared, g, s, o, weights, n, scales.x, last);
    trace(&g->tracer, STROBE_TRACE_WAIT_K, g->count);
    ++g->count;
    if (last && !QUERIES_LATER) release_queries(shared, g);
    if (last) ++g->tiles;
    if (last && !BEGINS_LATE) begin_tile(p, shared, g);
    if (!last && !WAITS_EARLY_FOR_K) wait_for_keys(shared, g->count);
    trace(&g->tracer, STROBE_TRACE_WAIT_V, g->count);
    if (!WAITS_EARLY_FOR_V) wait_for_values(shared, g->count - 1);
    const uint32_t q = queries_of(shared, g), k = keys_of_stage(shared, stage_of(g->count));
    const uint32_t vt = stage_place_of(shared->v[0], v_stage * V_BYTES);
    trace(&g->tracer, STROBE_TRACE_WAIT_PING_PONG, g->count);
    ping_pong_wait();
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_products(weights, o, sums, vt, scales.y);
    wgmma_wait(0);
    release(&shared->v_empty[v_stage]);
    promote(o, sums, LAST_COLUMN, scales.y);
    g->l[0] += sums[LAST_SUMS - 4], g->l[1] += sums[LAST_SUMS - 2];
    if (last && BEGINS_LATE) ping_pong_arrive(), begin_tile(p, shared, g);
    issue_scores(s, q, k);
    if (!(last && BEGINS_LATE)) ping_pong_arrive();
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    product s[SCORES];
    float o[OUTPUTS];
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0;
    g.queries = place_of(shared->q[0], group_index() * GROUP_BYTES);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    if (index == GROUPS - 1) ping_pong_arrive();

    begin_tile(p, shared, &g);
    issue_scores(s, queries_of(shared, &g), keys_of_stage(shared, 0));
    while (g.part.end_block > g.part.first_block) {
        const uint32_t slot = slot_of(g.tiles);
        const int first = g.part.first_block;
        g.rows = rows_of_tile(&shared->tile[slot], warp_row());
        g.l[0] = g.l[1] = 0;
#pragma unroll
        for (int v = 0; v < OUTPUTS; ++v) o[v] = 0;
#pragma unroll 1
        for (int n = g.part.end_block - 1; n >= first; --n) process_block(p, shared, &g, s, o, n, n == first);
        trace(&g.tracer, STROBE_TRACE_EPILOGUE, g.count);
        const bool finite = finish_tile(p, &shared->tile[slot], o, &g.rows, g.l);
        __syncwarp();
        if (!finite) mark_for_recompute(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    wgmma_wait(0);
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    recompute_marked(p, *chain, warp_row());
}

#include "cuda/sm90/fp8/entry.h"
