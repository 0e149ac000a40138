/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu (sm90): FlashAttention-3's forward (Shah et al., 2024) on Hopper: tensor copies, asynchronous matrix products,
 * specialised warp groups. One text, compiled for each element type and shape:
 *
 *     for each block of KEYS keys that some row of the tile sees (causal skip), from right to left:
 *         S = Q K^T                                                    scores
 *         S = -inf where hidden; softcap, bias, ALiBi before           mask
 *         m' = max(m, S), P = 2^(S c - m' c), l = l a + sum P          online softmax, a = 2^((m - m') c)
 *         O = O a + P V                                                rescale, accumulate
 *     out = O / l, lse = m + ln l
 *
 * What a variant is compiled for; variants.cmake has the list, with what each is best for:
 *
 *     HEAD_DIM 64..256 columns of Q, K, V in shared memory   GROUPS  consumer warp groups, 64 query rows each
 *     KEYS     keys in a block                               STAGES  blocks of K and of V in shared memory
 *     CTAS     on a multiprocessor                           Q_SLOTS slots for 64 rows of Q
 *     FEATURE_CLASS  see device/params.h
 *
 * A persistent CTA works on tiles of 64 GROUPS rows of one query head, one after the other. In the producer warp group one
 * warp schedules and describes tiles, one copies K and V, one copies Q as soon as a tile is known. In a consumer, the
 * softmax of block n runs under the product P V of block n + 1, and the first scores of the next tile are issued before the
 * epilogue of this one. Consumers ping-pong: they issue products one after the other, so that one's softmax runs under the
 * other's products.
 *
 *     scheduler   | tile 0 | tile 1 |            | tile 2 |
 *     producer Q  | Q | Q' |                              | Q'' |
 *     producer KV | K0 | K1 V0 | K2 V1 | ...              | K0' |          wait for room -> expect bytes -> copy
 *     consumer 0  | QK0 softmax0 | QK1 PV0, softmax1 | ... | PVlast QK0', O / l -> global | softmax0' | QK1' PV0', ...
 *     consumer 1  |     QK0 softmax0 | QK1 PV0, softmax1 | ...
 *
 * Shared memory: Q [slab][64][64], stages of K and V [slab][KEYS][64], slabs of 64 columns, 128-byte swizzle; with
 * pages [KEYS / 8][slab][8][64], see pages.h.
 * Registers of a consumer: S KEYS/2, P KEYS/4, O HEAD_DIM/2. Figures: docs/benchmarks.md; tuning:
 * docs/kernels/sm90_forward.md; tools/sass_guard.py watches what ptxas makes of this. */
#include "cuda/device/element.h"
#include "cuda/sm90/forward/bias_tile.h"
#include "cuda/sm90/forward/consumer.h"
#include "cuda/sm90/forward/dropout.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/first_block.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/missing_rows.h"
#include "cuda/sm90/forward/pages.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/products.h"
#include "cuda/sm90/forward/score_terms.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/softcap.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/store.h"
#if defined(FINISHES_EARLY)
#include "cuda/sm90/forward/plain_store.h"
#endif

static_assert(PAIR == 1 || FEATURE_CLASS == FEATURES_NONE, "others copy each block for one CTA");
#if defined(FINISHES_EARLY)
static_assert((int)Q_SLOTS > (int)GROUPS && FEATURE_CLASS == FEATURES_NONE, "plain_store.h is for these");
#endif
#if defined(SKIPS_HIDDEN)
static_assert(FEATURE_CLASS == FEATURES_NONE && ((int)Q_SLOTS > (int)GROUPS || GROUPS == 1), "others would skip too late");
#endif
enum { BEGINS_EARLY = Q_SLOTS > GROUPS }; /* a tile's first scores, before O of the one before is stored */

/* The consumer's state: what a thread of a warp group keeps beside its registers of S, P and O. */
struct consumer_state {
    uint64_t q, k, v;           /* descriptors of slot 0 and stage 0 */
    uint32_t count;             /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;             /* tiles processed */
    int group;                  /* the warp group's index */
    uint32_t q_slot;            /* of the tile in hand */
    int has_output;             /* with FINISHES_EARLY: O has a block's sums, if not 0; else what the tile before has left */
    int first_block, end_block; /* of the tile in hand; none after the last tile */
    int last_block;             /* that its walk ends with */
    int hidden;                 /* blocks that its walk begins with and the group leaves out, 0 or 1: with SKIPS_HIDDEN */
    uint32_t note;              /* with masks or pages: of the block whose scores are being computed */
    uint2 bits;                 /* the thread's bits of it */
    struct keys shown;          /* to all rows of the warp */
    float slope;                /* with ALiBi alone, in units of raw dot products */
    struct kept kept;           /* with dropout: of the block whose P is packed next */
    struct relatives relatives; /* with the user's function: of the block whose scores are being computed */
    struct rows rows;
    struct tracer tracer;
};

/* With masks or pages: reads the note of the block whose K has come, and the mask's bits, which the scores' product hides.
 * All lanes read it, and one arrives for them when the scores are there: the warp's barrier orders their reads before. */
INLINE void read_note(const struct sm90_forward_params *p, const struct shared *shared, struct consumer_state *g,
                      const struct tile *t) {
    if (!HAS_MASKS && !HAS_PAGES) return;
    g->note = __shfl_sync(0xffffffffu, shared->note[stage_of(g->count)], 0);
    __syncwarp();
    if (HAS_MASKS) g->bits = bits_of_note(p, t, g->note);
}

#if defined(SKIPS_HIDDEN)
/* A tile's last block that none of the group's rows sees, as those of the first group under a causal mask, is given back
 * unread: its K here, its V after the first softmax, since it comes later. Returns the stage that the walk begins with. */
INLINE uint32_t leave_out_hidden(struct shared *shared, struct consumer_state *g, const struct tile *t, uint32_t stage) {
    g->hidden = 0;
    if (g->end_block - 1 <= g->first_block) return stage;
    const int end = of_all_lanes(end_key_of(t, t->row + 64 * g->group + 63));
    if (end > (g->end_block - 1) * KEYS || end <= g->first_block * KEYS) return stage;
    wait_full(&g->tracer, &shared->k_full[stage], full_parity(g->count), STROBE_TRACE_WAIT_K, g->count);
    release_block(&shared->k_empty[stage]);
    g->hidden = 1;
    return stage_of(++g->count);
}

INLINE void give_back_hidden(struct shared *shared, struct consumer_state *g) {
    if (!g->hidden) return;
    const uint32_t before = g->count - 1, stage = stage_of(before);
    wait_full(&g->tracer, &shared->v_full[stage], full_parity(before), STROBE_TRACE_WAIT_V, before);
    release_block(&shared->v_empty[stage]);
}

/* Ping-pong of the block left out: the other group is next. */
INLINE void skip_ping_pong(struct consumer_state *g) {
    if (!g->hidden) return;
    ping_pong_wait(&g->tracer, g->count);
    ping_pong_arrive();
}
#else
INLINE uint32_t leave_out_hidden(struct shared *, struct consumer_state *g, const struct tile *, uint32_t stage) {
    g->hidden = 0;
    return stage;
}
INLINE void give_back_hidden(struct shared *, struct consumer_state *) {}
INLINE void skip_ping_pong(struct consumer_state *) {}
#endif

/* Reads the next tile's description and issues its first scores. After the last tile there is nothing to wait for, its
 * description has a number and no blocks alone, and the product is of stale data: ptxas would serialise all products if this
 * one stood behind a condition. */
INLINE void begin_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES]) {
    const uint32_t slot = slot_of(g->tiles), piece = piece_of(g->tiles, g->group);
    uint32_t stage = stage_of(g->count);
    const struct tile *t = &shared->tile[slot];
    wait_full(&g->tracer, &shared->tile_full[slot], slot_parity(g->tiles), STROBE_TRACE_WAIT_TILE, g->count);
    g->first_block = t->first_block, g->end_block = t->end_block;
    g->last_block = HAS_ROW_OFFSETS && t->start_block < t->end_block - 1 ? t->start_block + 1 : g->first_block;
    g->shown = keys_of_warp(t, warp_row());
    g->shown.begin = of_all_lanes(g->shown.begin), g->shown.end = of_all_lanes(g->shown.end);
    g->q_slot = q_slot_of(piece);
    stage = leave_out_hidden(shared, g, t, stage);
    if (g->end_block > g->first_block) {
        if (HAS_ROW_OFFSETS) g->slope = alibi_slope(p, t) * p->inverse_scale;
        wait_full(&g->tracer, &shared->q_full[g->q_slot], q_parity(piece), STROBE_TRACE_WAIT_Q, g->count);
        wait_full(&g->tracer, &shared->k_full[stage], full_parity(g->count), STROBE_TRACE_WAIT_K, g->count);
        read_note(p, shared, g, t);
    }
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + stage * STAGE_STEP);
}

/* The tensor cores have finished the scores of block n: K, and Q after the last block, may be overwritten. */
INLINE void release_operands(struct shared *shared, struct consumer_state *g, int n) {
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    release_block(&shared->k_empty[stage_of(g->count)]);
    if (HAS_MASKS ? g->note & NOTE_LAST : n == g->last_block) release(&shared->q_empty[g->q_slot]);
}

/* Blocks of the tile that the CTA before has done. It is asked where a maximum grows alone: no register keeps it. */
INLINE int blocks_before(const struct shared *shared, const struct consumer_state *g) {
#if defined(RELAYS_TILES)
    return shared->relay.piece[slot_of(g->tiles)] == ENDED_TILE ? shared->relay.left : 0;
#else
    return 0;
#endif
}

/* Finished scores of block n become P. */
INLINE void softmax_of_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                             float (&s)[SCORES], int n) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    release_operands(shared, g, n);
    float offset[2] = {0, 0};
    if (FEATURE_CLASS == FEATURES_SOFTCAP) {
        const bool whole = n * KEYS + KEYS <= g->shown.end && n * KEYS >= g->shown.begin;
        capped_softmax(p, t, g->shown, s, &g->rows, whole, warp_row(), n * KEYS);
        return;
    }
    apply_score_terms(p, t, g->shown, s, warp_row(), n * KEYS, &g->relatives);
    if (HAS_BIAS_TILES) add_bias_tile(p, shared, s, group_index(), g->count);
    if (HAS_ROW_OFFSETS) add_alibi_of_columns(p, t, g->slope, s, offset, warp_row(), n * KEYS);
    if (HAS_MASKS) apply_masks(p, t, s, warp_row(), n * KEYS, g->note, g->bits);
    if (HAS_PAGES) hide_missing(s, g->note);
    mask_band(t, g->shown, s, warp_row(), n * KEYS);
    const struct lag lag = lag_of(p, blocks_before(shared, g) + g->end_block - 1 - n);
    online_softmax(s, &g->rows, exponent_factor(p), &lag, offset);
}

/* What does not depend on the scores of block n, while the tensor cores have these: with dropout which weights are kept,
 * with the user's function its relative values. */
INLINE void before_scores(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g, int n) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    if (HAS_DROPOUT && p->dropout) g->kept = kept_bits(p, t, warp_row(), n * KEYS);
    find_relatives(p, t, warp_row(), n * KEYS, &g->relatives);
}

/* P as P V takes it. */
INLINE void pack_weights(const struct sm90_forward_params *p, const struct consumer_state *g, const float (&s)[SCORES],
                         uint32_t (&packed)[SCORES / 2]) {
    pack_p(packed, s);
    if (HAS_DROPOUT && p->dropout) leave_out(packed, &g->kept);
}

/* A tile's O before its first product, and O += P V of the block in a stage. */
#if defined(FINISHES_EARLY)
INLINE void begin_output(struct consumer_state *g, float (&)[OUTPUTS]) { g->has_output = 0; }
INLINE void accumulate(struct consumer_state *g, float (&o)[OUTPUTS], const uint32_t (&packed)[SCORES / 2], uint32_t stage) {
    issue_accumulate_to(o, packed, g->v + stage * STAGE_STEP, g->has_output);
    g->has_output = 1;
}
#else
INLINE void begin_output(struct consumer_state *, float (&o)[OUTPUTS]) {
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) o[i] = 0;
}
INLINE void accumulate(struct consumer_state *g, float (&o)[OUTPUTS], const uint32_t (&packed)[SCORES / 2], uint32_t stage) {
    issue_accumulate(o, packed, g->v + stage * STAGE_STEP);
}
#endif

/* The tile's first block: its scores were issued by begin_tile(), and there is no O yet. */
INLINE void first_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                        float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS]) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    const int n = HAS_MASKS ? block_of_note(g->note) : HAS_ROW_OFFSETS ? t->start_block : g->end_block - 1 - g->hidden;
    g->rows = rows_of_tile(t, warp_row());
    before_scores(p, shared, g, n);
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(0);
#if defined(RELAYS_TILES)
    if (blocks_begun(&shared->relay, slot_of(g->tiles)) > 0) {
        restore_rows(p, &g->rows);
        softmax_of_block(p, shared, g, s, n);
        pack_weights(p, g, s, packed);
        restore_output(p, o);
        rescale(o, &g->rows);
        g->has_output = 1;
        return;
    }
#endif
    if (FEATURE_CLASS == FEATURES_NONE && !HAS_SCORE_FUNCTION) {
        const struct lag lag = lag_of(p, 0);
        release_operands(shared, g, n);
        mask_band(t, g->shown, s, warp_row(), n * KEYS);
        first_softmax(s, packed, &g->rows, exponent_factor(p), &lag);
    } else {
        softmax_of_block(p, shared, g, s, n);
        pack_weights(p, g, s, packed);
    }
    begin_output(g, o);
    give_back_hidden(shared, g);
}

/* Block n. When ping-pong allows it, the group issues the block's scores and O += P V of the block before; the softmax runs
 * under that product and under those of the other groups. */
INLINE void next_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES], uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS], int n) {
    const uint32_t before = stage_of(g->count), before_parity = full_parity(g->count), now = stage_of(++g->count);
    wait_full(&g->tracer, &shared->k_full[now], full_parity(g->count), STROBE_TRACE_WAIT_K, g->count);
    read_note(p, shared, g, &shared->tile[slot_of(g->tiles)]);
    ping_pong_wait(&g->tracer, g->count);
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + now * STAGE_STEP);
    wait_full(&g->tracer, &shared->v_full[before], before_parity, STROBE_TRACE_WAIT_V, g->count);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    accumulate(g, o, packed, before);
    ping_pong_arrive();
    before_scores(p, shared, g, HAS_MASKS ? block_of_note(g->note) : n);
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(1); /* the scores; P V goes on */
    softmax_of_block(p, shared, g, s, HAS_MASKS ? block_of_note(g->note) : n);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(0); /* P V */
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    release_block(&shared->v_empty[before]);
    pack_weights(p, g, s, packed);
    rescale(o, &g->rows);
}

/* The last P V of a tile, the first scores of the next tile, and the epilogue, which runs under these scores. Where the next
 * tile's Q cannot have come yet, the epilogue is before them, and begins under P V. Returns whether the warp's O was finite.
 */
INLINE bool end_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                     float (&s)[SCORES], const uint32_t (&packed)[SCORES / 2], float (&o)[OUTPUTS]) {
    const uint32_t last = stage_of(g->count), slot = slot_of(g->tiles);
#if defined(RELAYS_TILES)
    const bool begun = is_begun(&shared->relay, slot);
#endif
    wait_full(&g->tracer, &shared->v_full[last], full_parity(g->count), STROBE_TRACE_WAIT_V, g->count);
    ping_pong_wait(&g->tracer, g->count);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    accumulate(g, o, packed, last);
    ping_pong_arrive();
    float factor[2];
    if (!BEGINS_EARLY) finish_rows(p, &shared->tile[slot], warp_row(), g->rows.shift, g->rows.sum, factor);
    ++g->count, ++g->tiles;
    if (BEGINS_EARLY) begin_tile(p, shared, g, s);
#if defined(FINISHES_EARLY)
    const struct tile_end end = finish_tile(p, &shared->tile[slot], &g->rows, warp_row());
#endif
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(BEGINS_EARLY ? 1 : 0); /* P V; the scores go on */
    trace(&g->tracer, STROBE_TRACE_EPILOGUE, g->count);
    release_block(&shared->v_empty[last]);
    skip_ping_pong(g); /* of the next tile */
#if defined(RELAYS_TILES)
    if (begun) {
        save_state(p, o, &g->rows);
        return true;
    }
#endif
#if defined(FINISHES_EARLY)
    const bool finite = store_output(p, &shared->tile[slot], o, &end, warp_row());
#else
    const bool finite = BEGINS_EARLY ? epilogue(p, &shared->tile[slot], o, &g->rows, warp_row())
                                     : store_tile(p, &shared->tile[slot], o, factor, warp_row());
#endif
    __syncwarp();
    if (!BEGINS_EARLY) begin_tile(p, shared, g, s);
    return finite;
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    float s[SCORES], o[OUTPUTS];
    uint32_t packed[SCORES / 2]; /* P */
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0, g.group = of_all_lanes(index);
    g.q = wgmma_operand(shared_address(shared->q), 0), g.k = kv_operand(shared->k[0], 0);
    g.v = kv_operand(shared->v[0], SLAB_STEP);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    ping_pong_begin(index);

    begin_tile(p, shared, &g, s);
    skip_ping_pong(&g);
    while (g.end_block > g.first_block) {
        const uint32_t slot = slot_of(g.tiles);
        first_block(p, shared, &g, s, packed, o);
        if (HAS_MASKS)
            while (!(g.note & NOTE_LAST)) next_block(p, shared, &g, s, packed, o, 0);
        else if (HAS_ROW_OFFSETS)
            for (int n = shared->tile[slot].start_block; n != g.last_block;) {
                n = n == g.first_block ? g.end_block - 1 : n - 1;
                next_block(p, shared, &g, s, packed, o, n);
            }
        else
            for (int n = g.end_block - 2 - g.hidden; n >= g.first_block; --n) next_block(p, shared, &g, s, packed, o, n);
        const bool finite = end_tile(p, shared, &g, s, packed, o);
        if (!finite) mark_for_recompute(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    wgmma_wait(0);
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    recompute_marked(p, *chain, warp_row());
}

#include "cuda/sm90/forward/entry.h"
