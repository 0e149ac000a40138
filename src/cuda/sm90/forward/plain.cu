/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain.cu (sm90): forward.cu for problems without features at d 128: dense or packed, full or masked by a band. Its tiles,
 * its roles and its order of products are forward.cu's, and so are its constants. What differs is in the consumers, whose
 * time counts:
 *
 *     Q          a group's rows are in registers, not read from shared memory for each block
 *     softmax    fewer clocks from the scores to P, see plain_softmax.h
 *     K          a block's barrier is asked before the softmax of the block in front of it
 *     O          what stores it is worked out before its last product has ended, see plain_store.h
 *     tiles      are taken later, with LONG_TILE, and the last ones are shared by two CTAs where that pays, with
 *                RELAYS_TILES, see relay.h
 *
 * Registers of a consumer: S KEYS/2, P KEYS/4, O HEAD_DIM/2, Q HEAD_DIM/4. Figures: docs/benchmarks.md; tuning:
 * docs/kernels/sm90_forward.md. */
#define LONG_TILE 2 /* see load.h */
#include "cuda/device/element.h"
#include "cuda/ptx/mbarrier_test.h"
#include "cuda/sm90/forward/consumer.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/plain_softmax.h"
#include "cuda/sm90/forward/plain_store.h"
#include "cuda/sm90/forward/products.h"
#include "cuda/sm90/forward/query_registers.h"
#include "cuda/sm90/forward/shared.h"

static_assert(FEATURE_CLASS == FEATURES_NONE && PAIR == 1, "forward.cu has those");
static_assert((int)Q_SLOTS > (int)GROUPS, "a tile's first scores are issued before O of the one before is stored");

/* What a thread of a consumer keeps beside its registers of S, P and O. */
struct consumer_state {
    uint64_t k, v;              /* descriptors of stage 0 */
    uint32_t count;             /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;             /* tiles processed */
    int group;                  /* the warp group's index */
    int first_block, end_block; /* of the tile in hand; none after the last tile */
    int begun;                  /* blocks of it that the CTA before has done */
    struct keys shown;          /* to all rows of the warp */
    int has_output;             /* O has a block's sums, if not 0; else what the tile before has left */
    uint32_t has_k;             /* K of the next block has come, if not 0 */
    struct query_registers query;
    struct rows rows;
    struct tracer tracer;
};

/* Reads the next tile's description and issues its first scores. After the last tile there is nothing to wait for, its
 * description has a number and no blocks alone, and the product is of stale data: ptxas would serialise all products if this
 * one stood behind a condition. */
INLINE void begin_tile(struct shared *shared, struct consumer_state *g, float (&s)[SCORES]) {
    const uint32_t slot = slot_of(g->tiles), stage = stage_of(g->count);
    const uint32_t piece = piece_of(g->tiles, g->group), q_slot = q_slot_of(piece);
    const struct tile *t = &shared->tile[slot];
    wait_full(&g->tracer, &shared->tile_full[slot], slot_parity(g->tiles), STROBE_TRACE_WAIT_TILE, g->count);
    g->first_block = t->first_block, g->end_block = t->end_block;
    g->begun = 0;
#if defined(RELAYS_TILES)
    g->begun = blocks_begun(&shared->relay, slot);
#endif
    g->shown = keys_of_warp(t, warp_row());
    g->shown.begin = of_all_lanes(g->shown.begin), g->shown.end = of_all_lanes(g->shown.end);
    if (g->end_block > g->first_block) {
        wait_full(&g->tracer, &shared->q_full[q_slot], q_parity(piece), STROBE_TRACE_WAIT_Q, g->count);
        wait_full(&g->tracer, &shared->k_full[stage], full_parity(g->count), STROBE_TRACE_WAIT_K, g->count);
    }
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    load_query(&g->query, shared->q[q_slot]);
    if (g->end_block > g->first_block) arrive_as_warp(&shared->q_empty[q_slot]);
    issue_scores_of(s, &g->query, g->k + stage * STAGE_STEP);
}

/* The tensor cores have finished the scores of the block in hand: its K may be overwritten. */
INLINE void release_keys(struct shared *shared, struct consumer_state *g) {
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    release(&shared->k_empty[stage_of(g->count)]);
}

/* Asks for the next block's K before the softmax: when the softmax is done, the answer is there without a wait. */
INLINE void look_for_k(struct shared *shared, struct consumer_state *g) {
    const uint32_t next = g->count + 1;
    g->has_k = mbarrier_test(&shared->k_full[stage_of(next)], full_parity(next));
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
    release_keys(shared, g);
    look_for_k(shared, g);
    mask_plain_band(t, g->shown, s, warp_row(), n * KEYS);
#if defined(RELAYS_TILES)
    if (g->begun > 0) {
        const struct lag after = lag_of(p, g->begun);
        restore_rows(p, &g->rows);
        plain_softmax(s, &g->rows, p->exponent, &after);
        pack_p(packed, s);
        restore_output(p, o);
        rescale(o, &g->rows);
        g->has_output = 1;
        return;
    }
#endif
    first_plain_softmax(s, packed, &g->rows, p->exponent, &lag, has_hidden_half(t, warp_row(), n * KEYS));
    g->has_output = 0;
}

/* From scores to P, while P V of the block before ends. */
INLINE void end_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                      float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], uint32_t before) {
    const float nothing[2] = {0, 0};
    exponentials(s, &g->rows, p->exponent, nothing);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(0); /* P V */
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    release(&shared->v_empty[before]);
    pack_p(packed, s);
}

/* Block n. When ping-pong allows it, the group issues the block's scores and O += P V of the block before; the softmax runs
 * under that product and under those of the other groups. A block in which no maximum grows has code of its own: one branch
 * less is taken, behind which a warp waits for its instructions. */
INLINE void next_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS], int n) {
    const uint32_t before = stage_of(g->count), before_parity = full_parity(g->count), now = stage_of(++g->count);
    const struct lag lag = lag_of(p, g->begun + g->end_block - 1 - n);
    if (!g->has_k) wait_full(&g->tracer, &shared->k_full[now], full_parity(g->count), STROBE_TRACE_WAIT_K, g->count);
    ping_pong_wait(&g->tracer, g->count);
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores_of(s, &g->query, g->k + now * STAGE_STEP);
    wait_full(&g->tracer, &shared->v_full[before], before_parity, STROBE_TRACE_WAIT_V, g->count);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate_to(o, packed, g->v + before * STAGE_STEP, g->has_output);
    g->has_output = 1;
    ping_pong_arrive();
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(1); /* the scores; P V goes on */
    look_for_k(shared, g);
    release_keys(shared, g);
    mask_plain_band(&shared->tile[slot_of(g->tiles)], g->shown, s, warp_row(), n * KEYS);
    int most[2];
    if (!passes_bounds(s, &g->rows, most)) {
        end_block(p, shared, g, s, packed, before);
    } else {
        grow_maxima(s, &g->rows, most, p->exponent, &lag);
        end_block(p, shared, g, s, packed, before);
        rescale(o, &g->rows);
    }
}

/* The last P V of a tile, the first scores of the next tile, and the epilogue, which runs under these scores. Returns
 * whether the warp's O was finite. */
INLINE bool end_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                     float (&s)[SCORES], const uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS]) {
    const uint32_t last = stage_of(g->count), slot = slot_of(g->tiles);
#if defined(RELAYS_TILES)
    const bool begun = is_begun(&shared->relay, slot);
#endif
    wait_full(&g->tracer, &shared->v_full[last], full_parity(g->count), STROBE_TRACE_WAIT_V, g->count);
    ping_pong_wait(&g->tracer, g->count);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate_to(o, packed, g->v + last * STAGE_STEP, g->has_output);
    ping_pong_arrive();
    ++g->count, ++g->tiles;
    begin_tile(shared, g, s);
    const struct tile_end end = finish_tile(p, &shared->tile[slot], &g->rows, warp_row());
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(1); /* P V; the scores go on */
    trace(&g->tracer, STROBE_TRACE_EPILOGUE, g->count);
    release(&shared->v_empty[last]);
#if defined(RELAYS_TILES)
    if (begun) {
        save_state(p, o, &g->rows);
        return true;
    }
#endif
    const bool finite = store_output(p, &shared->tile[slot], o, &end, warp_row());
    __syncwarp();
    return finite;
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    float s[SCORES], o[OUTPUTS];
    uint32_t packed[SCORES / 2]; /* P */
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0, g.group = of_all_lanes(index);
    g.k = kv_operand(shared->k[0], 0), g.v = kv_operand(shared->v[0], SLAB_STEP);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    ping_pong_begin(index);

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

#include "cuda/sm90/forward/entry.h"
