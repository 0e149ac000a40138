/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain.cu (sm90): forward.cu for problems without features at d 128: dense or packed, full or masked by a band. Its tiles,
 * its roles and its order of products are forward.cu's, and so are its constants. What differs is in the consumers, whose
 * time counts:
 *
 *     Q          a group's rows are in registers, not read from shared memory for each block
 *     softmax    fewer clocks from the scores to P, see plain_softmax.h
 *     K          a block's barrier is asked before the softmax of the block in front of it
 *
 * Registers of a consumer: S KEYS/2, P KEYS/4, O HEAD_DIM/2, Q 4 Q_STEPS. Figures: docs/benchmarks.md; tuning:
 * docs/kernels/sm90_forward.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/mbarrier_test.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/plain_softmax.h"
#include "cuda/sm90/forward/products.h"
#include "cuda/sm90/forward/query_registers.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/trace.h"

static_assert(FEATURE_CLASS == FEATURES_NONE, "forward.cu has those");
static_assert(sizeof(struct shared) <=
                  sizeof(shared::q) + sizeof(shared::k) + sizeof(shared::v) + sizeof(shared::bias) + 1024,
              "host.c asks for so much behind the stages");

/* A tile's first scores, before O of the one before is stored. */
enum { BEGINS_EARLY = (int)Q_SLOTS > (int)GROUPS };

INLINE int group_index(void) { return threadIdx.x / 128 - 1; }

/* The first of the warp's sixteen rows in a tile. */
INLINE int warp_row(void) { return (threadIdx.x / 32 - 4) * 16; }

/* The warp is done with what the barrier guards. */
INLINE void release(uint64_t *empty) { arrive_together(empty); }

/* What a thread of a consumer keeps beside its registers of S, P and O. */
struct consumer_state {
    uint64_t q, k, v;           /* descriptors of slot 0 and stage 0 */
    uint32_t count;             /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;             /* tiles processed */
    uint32_t q_slot;            /* of the tile in hand */
    int first_block, end_block; /* of the tile in hand; none after the last tile */
    struct keys shown;          /* to all rows of the warp */
    uint32_t has_k;             /* K of the next block has come, if not 0 */
    struct query_registers query;
    struct rows rows;
    struct tracer tracer;
};

/* Ping-pong: the group waits until it may issue its products, then lets the next group do so. */
INLINE void ping_pong_wait(struct consumer_state *g) {
    trace(&g->tracer, STROBE_TRACE_WAIT_PING_PONG, g->count);
    if (GROUPS > 1) named_barrier_wait(PING_PONG_BARRIER + group_index(), 256);
}

INLINE void ping_pong_arrive(void) {
    if (GROUPS > 1) named_barrier_arrive(PING_PONG_BARRIER + (group_index() + 1) % GROUPS, 256);
}

INLINE void wait_full(struct consumer_state *g, uint64_t *full, uint32_t parity, uint32_t phase) {
    trace(&g->tracer, phase, g->count);
    mbarrier_wait(full, parity);
}

/* Reads the next tile's description and issues its first scores. After the last tile there is nothing to wait for, its
 * description has a number and no blocks alone, and the product is of stale data: ptxas would serialise all products if this
 * one stood behind a condition. */
INLINE void begin_tile(struct shared *shared, struct consumer_state *g, float (&s)[SCORES]) {
    const uint32_t slot = slot_of(g->tiles), piece = piece_of(g->tiles, group_index()), stage = stage_of(g->count);
    const struct tile *t = &shared->tile[slot];
    wait_full(g, &shared->tile_full[slot], slot_parity(g->tiles), STROBE_TRACE_WAIT_TILE);
    g->first_block = t->first_block, g->end_block = t->end_block;
    g->shown = keys_of_warp(t, warp_row());
    g->q_slot = q_slot_of(piece);
    if (g->end_block > g->first_block) {
        wait_full(g, &shared->q_full[g->q_slot], q_parity(piece), STROBE_TRACE_WAIT_Q);
        wait_full(g, &shared->k_full[stage], full_parity(g->count), STROBE_TRACE_WAIT_K);
    }
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    load_query(&g->query, shared->q[g->q_slot]);
    if (HOLDS_QUERY && g->end_block > g->first_block) arrive_as_warp(&shared->q_empty[g->q_slot]);
    issue_scores_of(s, &g->query, g->q + g->q_slot * Q_SLOT_STEP, g->k + stage * STAGE_STEP);
}

/* The tensor cores have finished the scores of block n: K, and Q after the last block, may be overwritten. */
INLINE void release_operands(struct shared *shared, struct consumer_state *g, int n) {
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    release(&shared->k_empty[stage_of(g->count)]);
    if (!HOLDS_QUERY && n == g->first_block) release(&shared->q_empty[g->q_slot]);
}

/* Asks for the next block's K before the softmax: when the softmax is done, the answer is there without a wait. */
INLINE void look_for_k(struct shared *shared, struct consumer_state *g) {
    const uint32_t next = g->count + 1;
    g->has_k = mbarrier_test(&shared->k_full[stage_of(next)], full_parity(next));
}

INLINE struct lag lag_of(const struct sm90_forward_params *p, int blocks) {
    const struct lag lag = {p->lag_unit, p->least_lag, blocks};
    return lag;
}

/* The tile's first block: its scores were issued by begin_tile(), and there is no O yet. */
INLINE void first_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                        float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS]) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    const int n = g->end_block - 1;
    const struct lag lag = lag_of(p, 0);
    g->rows = rows_of_tile(t, warp_row());
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(0);
    release_operands(shared, g, n);
    look_for_k(shared, g);
    mask_plain_band(t, g->shown, s, warp_row(), n * KEYS);
    first_plain_softmax(s, packed, &g->rows, p->exponent, &lag, has_hidden_half(t, warp_row(), n * KEYS));
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) o[i] = 0;
}

/* Block n. When ping-pong allows it, the group issues the block's scores and O += P V of the block before; the softmax runs
 * under that product and under those of the other groups. */
INLINE void next_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS], int n) {
    const uint32_t before = stage_of(g->count), before_parity = full_parity(g->count), now = stage_of(++g->count);
    const struct lag lag = lag_of(p, g->end_block - 1 - n);
    if (!g->has_k) wait_full(g, &shared->k_full[now], full_parity(g->count), STROBE_TRACE_WAIT_K);
    ping_pong_wait(g);
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores_of(s, &g->query, g->q + g->q_slot * Q_SLOT_STEP, g->k + now * STAGE_STEP);
    wait_full(g, &shared->v_full[before], before_parity, STROBE_TRACE_WAIT_V);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate(o, packed, g->v + before * STAGE_STEP);
    ping_pong_arrive();
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(1); /* the scores; P V goes on */
    look_for_k(shared, g);
    release_operands(shared, g, n);
    mask_plain_band(&shared->tile[slot_of(g->tiles)], g->shown, s, warp_row(), n * KEYS);
    plain_softmax(s, &g->rows, p->exponent, &lag);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(0); /* P V */
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    release(&shared->v_empty[before]);
    pack_p(packed, s);
    rescale(o, &g->rows);
}

/* The last P V of a tile, the first scores of the next tile, and the epilogue, which runs under these scores. Where the next
 * tile's Q cannot have come yet, the epilogue is before them, and begins under P V. Returns whether the warp's O was finite.
 */
INLINE bool end_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                     float (&s)[SCORES], const uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS]) {
    const uint32_t last = stage_of(g->count), slot = slot_of(g->tiles);
    wait_full(g, &shared->v_full[last], full_parity(g->count), STROBE_TRACE_WAIT_V);
    ping_pong_wait(g);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate(o, packed, g->v + last * STAGE_STEP);
    ping_pong_arrive();
    float factor[2];
    if (!BEGINS_EARLY) finish_rows(p, &shared->tile[slot], warp_row(), g->rows.shift, g->rows.sum, factor);
    ++g->count, ++g->tiles;
    if (BEGINS_EARLY) begin_tile(shared, g, s);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(BEGINS_EARLY ? 1 : 0); /* P V; the scores go on */
    trace(&g->tracer, STROBE_TRACE_EPILOGUE, g->count);
    release(&shared->v_empty[last]);
    const bool finite = BEGINS_EARLY ? epilogue(p, &shared->tile[slot], o, &g->rows, warp_row())
                                     : store_tile(p, &shared->tile[slot], o, factor, warp_row());
    __syncwarp();
    if (!BEGINS_EARLY) begin_tile(shared, g, s);
    return finite;
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    float s[SCORES], o[OUTPUTS];
    uint32_t packed[SCORES / 2]; /* P */
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0;
    g.q = wgmma_operand(shared_address(shared->q), 0), g.k = kv_operand(shared->k[0], 0);
    g.v = kv_operand(shared->v[0], SLAB_STEP);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    if (GROUPS > 1 && index == GROUPS - 1) named_barrier_arrive(PING_PONG_BARRIER, 256);

    begin_tile(shared, &g, s);
    while (g.end_block > g.first_block) {
        const uint32_t slot = slot_of(g.tiles);
        first_block(p, shared, &g, s, packed, o);
        for (int n = g.end_block - 2; n >= g.first_block; --n) next_block(p, shared, &g, s, packed, o, n);
        const bool finite = end_tile(p, shared, &g, s, packed, o);
        if (!finite) mark_for_recompute(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    wgmma_wait(0);
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    recompute_marked(p, *chain, warp_row());
}

INLINE void init_barriers(struct shared *s) {
    for (int slot = 0; slot < Q_SLOTS; ++slot)
        mbarrier_init(&s->q_full[slot], 1), mbarrier_init(&s->q_empty[slot], 4 * ARRIVALS);
    for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(&s->k_full[stage], 1), mbarrier_init(&s->k_empty[stage], 4 * GROUPS * ARRIVALS);
        mbarrier_init(&s->v_full[stage], 1), mbarrier_init(&s->v_empty[stage], 4 * GROUPS * ARRIVALS);
    }
    for (int slot = 0; slot < TILES; ++slot) {
        mbarrier_init(&s->tile_full[slot], 1), mbarrier_init(&s->tile_ends[slot], 1);
        mbarrier_init(&s->tile_empty[slot], 4 * GROUPS * ARRIVALS + PRODUCER_THREADS);
    }
    for (int warp = 0; warp < 4 * GROUPS; ++warp) s->chain[warp] = -1;
    mbarrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct sm90_forward_params p) {
    extern __shared__ unsigned char memory[];
    struct shared *shared = (struct shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v);
        init_barriers(shared);
    }
    __syncthreads();
    if (threadIdx.x == 64) trace_moment(&p, true);
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) producer_kv(&p, shared);
        if (threadIdx.x == 64) producer_q(&p, shared);
        if (threadIdx.x == 96) open_tile_counter(&p);
        if (threadIdx.x / 32 == 1) scheduler(&p, shared);
        if (threadIdx.x == 32) trace_moment(&p, false);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
