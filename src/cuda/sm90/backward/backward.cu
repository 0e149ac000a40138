/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.cu (sm90): the gradients of attention on Hopper, by FlashAttention-3's division of labour (Shah et al., 2024):
 * tensor copies, asynchronous matrix products, specialised warp groups. One text, compiled for each head dim and element
 * type:
 *
 *     HEAD_DIM  64, 128: columns of Q, K, V, dO in shared memory       ROWS  query rows in a block, HEAD_DIM ROWS = 8192
 *     COLUMNS   those that products go over, HEAD_DIM, 96 of 128 or 48 of 64
 *     ELEMENT_BF16 or ELEMENT_FP16                                     FEATURE_CLASS  see device/params.h
 *
 *     PARTS     P and dS are computed in so many parts; the products that take them start after the first part
 *     LAG       1: dQ of a block is computed during the next block, so that the consumers need not wait for each other's dS;
 *               the consumers then ping-pong
 *
 * Three kernels: KERNEL_prepare (prepare.h) computes delta and lse in base 2, KERNEL (this file) does the rest, and
 * KERNEL_finish (finish.h) scales and rounds dQ. A persistent CTA works on tiles, one after the other: 128 keys of a K/V
 * head, 64 for each of two consumer warp groups. Consumers walk over the blocks of rows, of all query heads of the group,
 * that see some of the keys (causal skip):
 *
 *     S^T = K Q^T   P^T = 2^(S^T c - lse)   dV += P^T dO
 *     dP^T = V dO^T   dS^T = P^T * (dP^T - delta)   dK += dS^T Q   dQ += dS K
 *
 * Transposed, P and dS leave one product as accumulators and enter the next in registers. dS goes to shared memory as well,
 * for dQ: a warp group computes 64 x 64 elements of dQ over all 128 keys, which are added to the fp32 sums of all CTAs in
 * the L2 cache. With a fixed dQ order (deterministic) tiles add in the order of their keys. A producer thread copies, two
 * stages deep. A product is issued before the arithmetic that does not depend on it:
 *
 *     tensor cores | S        dP | dV        | dQ    dK    S next | dP next ...
 *     warp group            P^T    dS^T -> shared, barrier   dQ -> L2      P^T next
 *
 * From tile to tile (schedule.h) the producer is ahead: the next rows are copied under the last products, the next keys
 * while dK and dV go from registers to memory. A warp of the producer group that has no other role clears dQ's sums
 * (dq_sums.h).
 *
 * Registers of a consumer: dK, dV COLUMNS/2 each, S^T, dP^T ROWS/2 each, dQ DQ_WORDS (where dP^T was needed), P and dS
 * ROWS/4 each. dV takes P rounded, packed; dS takes it as it was, from the registers of S^T. Where ROWS is 128 the loop is
 * compiled for each group, whose descriptors and barriers are constants then (but for FEATURES_ALL, which spills), and where
 * more is done to scores than MASKS_SCORES allows, registers are too few still: dS takes 24 bits of P, in 3/8 ROWS registers.
 *
 * Figures: docs/benchmarks.md; tuning: docs/kernels/sm90_backward.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/dependent.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/semaphore.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/trace.h"

enum {
    GROUPS = 2,
    KEYS = 64 * GROUPS,
    TILE_KEYS = KEYS, /* of a CTA */
    STAGES = 2 + LAG, /* of Q: in ping-pong one group is half a block ahead */
    DOUT_STAGES = 2,
    DS_STAGES = 2,
    SLABS = HEAD_DIM / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = ROWS * ROW_BYTES,
    K_SLAB = KEYS * ROW_BYTES,
    DS_SLAB = ROWS * ROW_BYTES,           /* 64 keys */
    SCORES = ROWS / 2,                    /* accumulators of a thread */
    PING_PONG_BARRIER = 2,                /* named barrier of group 0; group 1 has the next */
    TILES = 2,                                 /* slots of tile descriptions */
    BY_THREE = !HAS_MASKS && ROWS == 64, /* with a fixed dQ order three writers share the work, see dq_writer.h */
    ORDERED_WRITERS = BY_THREE ? GROUPS + 1 : GROUPS,
    GROUP_IS_CONSTANT = !HAS_ALL && ROWS > 64, /* the loop is compiled for each group */
};

/* Of a thread, after the producer group has released some and the consumers have claimed them: at launch all have 168. With
 * masks the producer spills where it has 24; consumers can spare some at d 64 alone. */
#define HAS_MASKS_ALONE    ((FEATURE_CLASS & ~FEATURES_SINKS) == FEATURES_MASK)
#define PRODUCER_REGISTERS (HAS_MASKS_ALONE && HEAD_DIM == 64 ? 40 : 24)
#define CONSUMER_REGISTERS (HAS_MASKS_ALONE && HEAD_DIM == 64 ? 232 : 240)

#include "cuda/sm90/backward/bias_tile.h"
#include "cuda/sm90/backward/finish.h"
#include "cuda/sm90/backward/prepare.h"

static_assert((int)DQ_TILES == (int)GROUPS, "dQ of a block is one tile for each warp group");

struct shared {
    unsigned char k[SLABS * K_SLAB], v[SLABS * K_SLAB];
    unsigned char q[STAGES][SLABS * Q_SLAB], dout[DOUT_STAGES][SLABS * Q_SLAB];
    unsigned char ds[DS_STAGES][GROUPS * DS_SLAB];
    struct bias_tiles bias;
    float dq[GROUPS][DQ_TILE];
    float lse[STAGES][ROWS], delta[STAGES][ROWS], sink[SUMS_SINKS ? STAGES : NO_ELEMENTS][ROWS];
    struct note note[NOTES]; /* with masks, see walk.h */
    struct tile tile[TILES];
    uint64_t bias_full[BIAS_WARPS ? BIAS_WARPS : NO_ELEMENTS];
    uint64_t tile_full[TILES], tile_empty[TILES], k_full, k_empty, v_full, v_empty, q_full[STAGES], q_empty[STAGES],
        dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES], dq_full[GROUPS], dq_empty[GROUPS];
    uint64_t dq_came[GROUPS][ORDERED_WRITERS]; /* of writers, see dq_writer.h */
};

static_assert(sizeof(struct shared) <= SHARED_BYTES, "a CTA fits a multiprocessor's shared memory");

#include "cuda/sm90/backward/dq_sums.h"
#include "cuda/sm90/backward/dq_writer.h"
#include "cuda/sm90/backward/schedule.h"

#define DS_STEP (GROUPS * DS_SLAB / 16)

/* Descriptors of a group's operands. _own: the group's 64 keys; _rows: with the columns as depth, for S and dP; _sums: with
 * the rows as depth, for dV and dK; _all: over all 128 keys, for dQ. */
struct operands {
    uint64_t k_own, v_own, q_rows, q_sums, dout_rows, dout_sums, ds_all, k_all;
    uint32_t ds_own; /* an address, for stmatrix */
};

INLINE struct operands operands_of(const struct shared *s, int group) {
    const uint32_t own = group * (64 * ROW_BYTES); /* 64 keys of K and V, and rows of dS, further */
    const uint32_t k = shared_address(s->k), q = shared_address(s->q), dout = shared_address(s->dout),
                   ds = shared_address(s->ds);
    struct operands o;
    /* With blocks of 64 rows ptxas begins the exponentials sooner if k_own is a sum, "Luck" in
     * docs/kernels/sm90_backward.md. */
    o.k_own = ROW_PARTS == 2 ? wgmma_operand(k + own, 0) : wgmma_operand(k, 0) + own / 16;
    o.v_own = wgmma_operand(shared_address(s->v) + own, 0);
    o.q_rows = wgmma_operand(q, 0), o.q_sums = wgmma_operand(q, Q_SLAB);
    o.dout_rows = wgmma_operand(dout, 0), o.dout_sums = wgmma_operand(dout, Q_SLAB);
    o.ds_all = wgmma_operand(ds + (ROW_PARTS == 2 ? own : 0), 0);
    o.k_all = wgmma_operand(k + (ROW_PARTS == 1 ? group * K_SLAB : 0), K_SLAB);
    o.ds_own = transposed_store(ds + group * DS_SLAB);
    return o;
}

/* The stage of a block's dS, and the parity of its barriers: worked out each time, since registers are short. */
INLINE uint32_t ds_stage_of(uint32_t count) { return count % DS_STAGES; }
INLINE uint32_t ds_parity(uint32_t count) { return count / DS_STAGES % 2; }

/* The consumer's state: what a thread keeps beside its accumulators. */
struct consumer_state {
    int group, own, key; /* its warp's sixteen keys: the first, in the CTA and in the sequence */
    int lane_row;        /* kept, since to ask for the thread's number delays the first exponentials of each block */
    struct full_rows full;
    struct operands o;
    struct progress progress;
    struct slope slope;
    struct progress
        next; /* with a bias or dropout alone: the block after this one, if there is one, and what is kept of it */
    struct kept next_kept;
    uint32_t count, first, filled; /* blocks processed, those before this tile, tiles that had some */
    struct tracer tracer;
};

/* Registers hold P whole beside its packed form, but for variants that do more to it. */
enum { P_IN_24_BITS = GROUP_IS_CONSTANT && !MASKS_SCORES };

struct accumulators {
    struct sums dk, dv;
    float s[SCORES], dp[SCORES], dq[DQ_WORDS]; /* s: S, then P */
    uint32_t packed[SCORES / 2];         /* P as dV takes it */
    uint32_t kept[SCORES / 4 * 3];       /* P for dS, where P_IN_24_BITS */
    float input[INPUTS];                 /* of the user's function, where its derivatives read it */
    struct sink_sums sinks;
};

INLINE void wait_for(struct consumer_state *c, uint64_t *barrier, uint32_t parity, uint32_t phase) {
    trace(&c->tracer, phase, c->count);
    mbarrier_wait(barrier, parity);
}

/* Ping-pong: with LAG one group computes exponentials while the other's products dK, dQ and S run. Without it the groups
 * fall into step, and the tensor cores wait while both compute. Group 0 starts; group 1 lets it. */
INLINE void ping_pong_wait(int group) {
    if (LAG) named_barrier_wait(PING_PONG_BARRIER + group, 128 * GROUPS);
}

/* The other group may go on. This stands behind the products that read all of P, since ptxas moves exponentials over
 * anything else. `count` is never UINT32_MAX: behind a branch ptxas keeps what makes the operands out of the products;
 * without one it puts it between them and fences each product (C7519). */
INLINE void ping_pong_arrive(int group, uint32_t count) {
    if (LAG && count != UINT32_MAX) named_barrier_arrive(PING_PONG_BARRIER + 1 - group, 128 * GROUPS);
}

INLINE void wait_for_dout(struct shared *shared, struct consumer_state *c, uint32_t count) {
    wait_for(c, &shared->dout_full[dout_stage_of(count)], dout_parity(count), STROBE_TRACE_WAIT_DOUT);
}

/* Issues dP. Then P, from S, which the tensor cores have finished, and dV += P^T dO, in parts. */
INLINE void p_and_dv(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                     struct consumer_state *c, const struct block_pair *at, struct accumulators *a) {
    const uint32_t slot = dout_stage_of(c->count);
    struct relatives relatives;
    find_all_relatives(p, t, c->slope.head, at, &relatives);
    if (!DELTA_IN_DP) wait_for_dout(shared, c, c->count);
    trace(&c->tracer, STROBE_TRACE_P_AND_DV, c->count);
    mask_scores(p, t, at, a->s);
    issue_dp(a->dp, c->o.v_own, c->o.dout_rows + slot * STAGE_STEP, DELTA_IN_DP);
    if (HAS_BIAS_TILES) {
        uint64_t *full = &shared->bias_full[bias_warp()];
        add_bias_tile(p, &shared->bias, full, a->s, c->count);
        if (!is_last(&c->progress))
            fetch_bias(p, &shared->bias, full, t->batch, head_of(p, t, &c->next), c->key, c->next.row);
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        make_p(p, shared, t, &c->slope, at, a->s, a->input, &relatives, a->packed, part);
        if (P_IN_24_BITS) keep_part(a->kept, a->s, part);
        leave_out_dropped(p, a->packed, part);
        if (DROPOUT_ALONE) leave_out(a->packed, a->packed, &at->kept);
        issue_sum(&a->dv, a->packed, c->o.dout_sums + slot * STAGE_STEP, part);
    }
    ping_pong_arrive(c->group, c->count);
    if (DROPOUT_ALONE) c->next_kept = kept_of_pair(p, t->batch, head_of(p, t, &c->next), c->key, c->next.row);
}

/* When dP is finished: dS, which goes to shared memory for both groups, and dK += dS^T Q, in parts. Then dQ is issued: of
 * this block or, with LAG, of the block before. The first block of a tile has none before it; its dQ is a product of stale
 * data and is not looked at, as is S behind the last block. A product behind a condition would make ptxas serialise all of
 * them. */
INLINE void ds_and_dk(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                      struct consumer_state *c, const struct block_pair *at, struct accumulators *a) {
    uint32_t packed[SCORES / 2]; /* dS */
    trace(&c->tracer, STROBE_TRACE_WAIT_DP, c->count);
    wgmma_wait(PARTS); /* dP */
    const uint32_t now = ds_stage_of(c->count), late = ds_stage_of(c->count - LAG);
    if (LAG) mbarrier_wait(&shared->ds_empty[now], ds_parity(c->count) ^ 1);
    trace(&c->tracer, STROBE_TRACE_DS_AND_DK, c->count);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (P_IN_24_BITS) restore_part(a->s, a->kept, part);
        make_ds(p, shared, t, &c->slope, at, a->dp, a->s, a->input, &a->sinks, packed, part, DELTA_IN_DP);
        store_transposed(c->o.ds_own + now * (GROUPS * DS_SLAB), packed, part);
        issue_sum(&a->dk, packed, c->o.q_sums + at->stage * STAGE_STEP, part);
    }
    fence_proxy_async();
    release(&shared->ds_full[now]);
    const bool is_late = !LAG || c->count != c->first;
    if (is_late) wait_for(c, &shared->ds_full[late], ds_parity(c->count - LAG), STROBE_TRACE_WAIT_DS);
    issue_dq(a->dq, c->o.ds_all + late * DS_STEP, c->o.k_all);
}

/* Issues S of the next block, and hands dQ to the writer. */
INLINE void next_scores(struct shared *shared, struct consumer_state *c, const struct block_pair *at, struct accumulators *a,
                        bool last) {
    const uint32_t next = stage_of(c->count + 1);
    const bool is_late = !LAG || c->count != c->first;
    trace(&c->tracer, STROBE_TRACE_WAIT_DV, c->count);
    wgmma_wait(PARTS + 1); /* dV */
    release(&shared->dout_empty[dout_stage_of(c->count)]);
    if (!last) wait_for(c, &shared->q_full[next], full_parity(c->count + 1), STROBE_TRACE_WAIT_Q);
    issue_scores(a->s, c->o.k_own, c->o.q_rows + next * STAGE_STEP);
    trace(&c->tracer, STROBE_TRACE_WAIT_DQ, c->count);
    wgmma_wait(1); /* dK and dQ */
    release(&shared->q_empty[at->stage]);
    trace(&c->tracer, STROBE_TRACE_STORE_DQ, c->count);
    if (LAG && is_late) release(&shared->ds_empty[ds_stage_of(c->count - 1)]);
    if (is_late) hand_dq_to_writer(shared, a->dq, c->group, c->count - LAG);
    if (DELTA_IN_DP) {
        if (!last) wait_for_dout(shared, c, c->count + 1);
        start_at_delta(a->dp, shared->delta[next], true); /* behind the last block: of stale data, likewise */
    }
    trace(&c->tracer, STROBE_TRACE_WAIT_S, c->count);
    if (!last) ping_pong_wait(c->group);
    wgmma_wait(0); /* the next S */
}

/* The state before the first tile: what is the same for all tiles. */
INLINE struct consumer_state first_state(const struct sm90_backward_params *p, const struct shared *shared, int group) {
    struct consumer_state c;
    c.group = group, c.own = 64 * group + uniform((int)threadIdx.x % 128 / 32) * 16, c.o = operands_of(shared, group);
    c.lane_row = unforeseen((int)threadIdx.x % 4 * 2), c.count = c.filled = 0;
    c.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + group, threadIdx.x % 128 == 0);
    return c;
}

/* Starts a tile, and computes S of its first block. */
INLINE void begin_tile(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                       struct consumer_state *c, struct accumulators *a) {
    const uint32_t stage = stage_of(c->count);
    c->full = full_rows_of(p, t, c->key), c->progress = start(p, t), c->slope = slope_at(p, t, &c->progress);
    c->first = c->count;
    const int head = head_of(p, t, &c->progress);
    if (HAS_BIAS_TILES)
        fetch_bias(p, &shared->bias, &shared->bias_full[bias_warp()], t->batch, head, c->key, c->progress.row);
    if (DROPOUT_ALONE) c->next_kept = kept_of_pair(p, t->batch, head, c->key, c->progress.row);
    wait_for(c, &shared->q_full[stage], full_parity(c->count), STROBE_TRACE_WAIT_Q);
    if (HAS_MASKS && go_to(&shared->note[c->count % NOTES], &c->progress)) c->slope = slope_at(p, t, &c->progress);
    wait_for(c, &shared->k_full, c->filled % 2, STROBE_TRACE_WAIT_K);
    issue_scores(a->s, c->o.k_own, c->o.q_rows + stage * STAGE_STEP);
    wait_for(c, &shared->v_full, c->filled % 2, STROBE_TRACE_WAIT_V);
    if (DELTA_IN_DP) wait_for_dout(shared, c, c->count), start_at_delta(a->dp, shared->delta[stage], true);
    trace(&c->tracer, STROBE_TRACE_WAIT_S, c->count);
    ping_pong_wait(c->group);
    wgmma_wait(0);
}

/* Ends a tile: with LAG computes dQ of its last block. Releases V and K for the next tile. */
INLINE void end_tile(struct shared *shared, struct consumer_state *c, struct accumulators *a) {
    release(&shared->v_empty);
    if (LAG) {
        const uint32_t stage = ds_stage_of(c->count);
        wait_for(c, &shared->ds_full[stage], ds_parity(c->count), STROBE_TRACE_WAIT_DS);
        issue_dq(a->dq, c->o.ds_all + stage * DS_STEP, c->o.k_all);
        wgmma_wait(0);
        release(&shared->ds_empty[stage]);
    }
    release(&shared->k_empty);
    if (LAG) hand_dq_to_writer(shared, a->dq, c->group, c->count);
    ++c->count, ++c->filled;
}

/* The warp group's 64 keys of a tile, block after block of rows. No product may be in flight where the loop closes: ptxas
 * would serialise all of them. */
INLINE void process_tile(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                         struct consumer_state *c, struct accumulators *a) {
    begin_tile(p, shared, t, c, a);
    a->sinks.head = -1;
    for (;; ++c->count) {
        const int row = c->progress.row;
        struct block_pair at = {stage_of(c->count), c->key, row, c->lane_row, row >= c->full.low && row <= c->full.high};
        if (HAS_MASKS) add_note(&at, &shared->note[c->count % NOTES], 128 * c->group + (int)threadIdx.x % 128);
        const bool last = HAS_MASKS ? at.note & NOTE_LAST : is_last(&c->progress);
        if (HAS_BIAS_TILES || DROPOUT_ALONE) {
            c->next = c->progress, at.kept = c->next_kept;
            if (!last) (void)go_on(p, t, &c->next);
        }
        if (sums_sinks(p)) sum_sinks_of(p, t->batch, c->slope.head, c->key, &a->sinks);
        p_and_dv(p, shared, t, c, &at, a);
        ds_and_dk(p, shared, t, c, &at, a);
        next_scores(shared, c, &at, a, last);
        if (last) break;
        if (HAS_MASKS ? go_to(&shared->note[(c->count + 1) % NOTES], &c->progress) : go_on(p, t, &c->progress))
            c->slope = slope_at(p, t, &c->progress);
    }
    if (sums_sinks(p)) store_sinks(p, t->batch, c->key, &a->sinks);
    end_tile(shared, c, a);
}

/* The same for a group whose number is a constant. */
INLINE void process_tile_of(int group, const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                            struct consumer_state *c, struct accumulators *a) {
    c->group = group, c->o = operands_of(shared, group);
    process_tile(p, shared, t, c, a);
}

/* One warp group: tile after tile. Keys that no row sees have gradients of 0. */
INLINE void consumer(const struct sm90_backward_params *p, struct shared *shared, int group) {
    struct consumer_state c = first_state(p, shared, group);
    struct accumulators a;
    if (group == 1) ping_pong_arrive(group, 0);
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &shared->tile[tile_slot(tiles)];
        wait_for(&c, &shared->tile_full[tile_slot(tiles)], tile_parity(tiles), STROBE_TRACE_WAIT_TILE);
        if (is_past_last(t)) break;
        c.key = uniform(t->key) + c.own;
        clear(&a.dk), clear(&a.dv);
        if (uniform(has_blocks(t))) {
            if (!GROUP_IS_CONSTANT) process_tile(p, shared, t, &c, &a);
            if (GROUP_IS_CONSTANT && group == 0) process_tile_of(0, p, shared, t, &c, &a);
            if (GROUP_IS_CONSTANT && group == 1) process_tile_of(1, p, shared, t, &c, &a);
        }
        trace(&c.tracer, STROBE_TRACE_EPILOGUE, c.count);
        store_sums(p, &p->dv_rows, t, &a.dv, dv_factor(p), c.key);
        store_sums(p, &p->dk_rows, t, &a.dk, p->scale, c.key);
        release(&shared->tile_empty[tile_slot(tiles)]);
    }
    trace(&c.tracer, STROBE_TRACE_END, c.count);
}

INLINE void init_barriers(struct shared *s, bool in_order) {
    const uint32_t consumers = 4 * GROUPS * ARRIVALS, roles = consumers + (in_order ? ORDERED_WRITERS : GROUPS);
    for (int i = 0; i < TILES; ++i) mbarrier_init(&s->tile_full[i], 1), mbarrier_init(&s->tile_empty[i], roles);
    mbarrier_init(&s->k_full, 1), mbarrier_init(&s->k_empty, consumers);
    mbarrier_init(&s->v_full, 1), mbarrier_init(&s->v_empty, consumers);
    for (int i = 0; i < STAGES; ++i) mbarrier_init(&s->q_full[i], 1), mbarrier_init(&s->q_empty[i], consumers);
    for (int i = 0; i < DOUT_STAGES; ++i) mbarrier_init(&s->dout_full[i], 1), mbarrier_init(&s->dout_empty[i], consumers);
    for (int i = 0; i < DS_STAGES; ++i) mbarrier_init(&s->ds_full[i], consumers), mbarrier_init(&s->ds_empty[i], consumers);
    for (int i = 0; i < BIAS_WARPS; ++i) mbarrier_init(&s->bias_full[i], 1);
    for (int i = 0; i < GROUPS; ++i) mbarrier_init(&s->dq_full[i], 4 * ARRIVALS), mbarrier_init(&s->dq_empty[i], 1);
    for (int i = 0; BY_THREE && i < GROUPS * ORDERED_WRITERS; ++i) mbarrier_init(&s->dq_came[i / ORDERED_WRITERS][i % ORDERED_WRITERS], 1);
    mbarrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL(const __grid_constant__ struct sm90_backward_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct shared *shared = (struct shared *)memory;
    if (threadIdx.x == 32) tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v), tma_prefetch_map(&p.dout);
    if (threadIdx.x == 0) init_barriers(shared, p.dq_semaphores);
    __syncthreads();
    let_next_start();
    wait_for_previous();
    if (threadIdx.x == 96) trace_moment(&p, true);
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0)
            producer(&p, shared);
        else if (threadIdx.x >= 32 && threadIdx.x / 32 <= (p.dq_semaphores ? ORDERED_WRITERS : GROUPS) &&
                 (threadIdx.x % 32 == 0 || (HAS_MASKS && p.dq_semaphores)))
            dq_writer(&p, shared, (int)threadIdx.x / 32 - 1);
        else if (threadIdx.x >= 32 * (GROUPS + 1) && !p.dq_semaphores)
            clear_dq(&p, UINT32_MAX, 0);
        if (threadIdx.x == 32) trace_moment(&p, false);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
