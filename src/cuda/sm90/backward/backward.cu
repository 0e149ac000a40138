/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.cu (sm90): the gradients of attention on Hopper, FlashAttention-3's division of labour (Shah et al., 2024):
 * tensor copies, asynchronous matrix products, specialised warp groups. One text, compiled for each head dim and element
 * type:
 *
 *     HEAD_DIM  64, 128: columns of Q, K, V, dO in shared memory       ROWS  query rows in a block, HEAD_DIM ROWS = 8192
 *     COLUMNS   those that products go over, HEAD_DIM or 96 of 128
 *     ELEMENT_BF16 or ELEMENT_FP16                                     TERMS what stands over scores: backward/score_terms.h
 *
 *     PARTS     P and dS are made in so many parts, whose products start with the first
 *     LAG       1: dQ of a block is worked out in the next one's time, so that the groups need not meet, and take turns
 *
 * Three kernels: KERNEL_prepare (backward/prepare.h) works out D and lse, KERNEL (this file) does the rest but for what
 * KERNEL_finish (backward/finish.h) does to dQ. A CTA works on tiles, one after the other: 128 keys of a K/V head,
 * 64 for each of two consumer warp groups, which walk over the blocks of rows, of all query heads of the group, that see
 * some of them:
 *
 *     S^T = K Q^T   P^T = 2^(S^T c - lse)   dV += P^T dO   dP^T = V dO^T   dS^T = P^T (dP^T - D)   dK += dS^T Q   dQ += dS K
 *
 * Transposed, P and dS leave one product as accumulators and enter the next in registers; dS goes to shared memory besides,
 * for dQ, of which a warp group works out 64 x 64 elements, over all 128 keys, and which is added to the fp32 sums of all
 * CTAs in the L2 cache. A producer warp copies, two stages deep. Products are sent for before what they do not depend on:
 *
 *     tensor cores | S        dP | dV        | dQ    dK    S next | dP next ...
 *     warp group            P^T    dS^T -> shared, barrier   dQ -> L2      P^T next
 *
 * From tile to tile (backward/schedule.h) the producer is ahead: the next rows are copied under the last products, the next
 * keys while dK and dV go from registers to memory. A warp that is left over clears dQ's sums (backward/dq_sums.h).
 *
 * Registers of a consumer: dK, dV HEAD_DIM/2 each, S^T, dP^T ROWS/2 each, dQ 32 (when dP^T is gone), P and dS ROWS/4 each;
 * S^T is given up for P, packed, which dS is made from as well (but for TERMS 2).
 *
 * One H200, 2026-11-22, bf16, 16k tokens, TFLOP/s full / causal: d 64 631 / 626, d 128 675 / 660 (cuDNN 9.19 458 / 447,
 * 579 / 563); in fixed order 619 / 562, 613 / 583. See docs/kernels/sm90_backward.md. */
#if defined(ELEMENT_BF16)
#define STROBE_MMA_TYPE "bf16"
#else
#define STROBE_MMA_TYPE "f16"
#endif

#include "cuda/ptx/dependent.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/turn.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/trace.h"

enum {
    GROUPS = 2,
    KEYS = 64 * GROUPS,
    TILE_KEYS = KEYS, /* of a CTA */
    STAGES = 2 + LAG, /* of Q: one group is half a block ahead */
    DOUT_STAGES = 2,
    DS_STAGES = 2,
    SLABS = HEAD_DIM / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = ROWS * ROW_BYTES,
    K_SLAB = KEYS * ROW_BYTES,
    DS_SLAB = ROWS * ROW_BYTES, /* 64 keys */
    SCORES = ROWS / 2,          /* accumulators of a thread */
    TURN_BARRIER = 2,           /* of group 0; group 1 has the next */
    TILES = 2,                  /* that may be known at a time */
    PACKED_ALONE = TERMS < 2,   /* P is kept packed, and not beside */
};

/* Of a thread, after they have moved: at launch all have 168. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

#include "cuda/sm90/backward/finish.h"
#include "cuda/sm90/backward/prepare.h"

static_assert((int)DQ_TILES == (int)GROUPS, "dQ of a block is one tile for each warp group");

struct shared {
    unsigned char k[SLABS * K_SLAB], v[SLABS * K_SLAB];
    unsigned char q[STAGES][SLABS * Q_SLAB], dout[DOUT_STAGES][SLABS * Q_SLAB];
    unsigned char ds[DS_STAGES][GROUPS * DS_SLAB];
    float dq[GROUPS][DQ_TILE];
    float lse[STAGES][ROWS], term[STAGES][ROWS];
    struct tile tile[TILES];
    uint64_t tile_full[TILES], tile_empty[TILES], k_full, k_empty, v_full, v_empty, q_full[STAGES], q_empty[STAGES],
        dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES], dq_full[GROUPS], dq_empty[GROUPS];
};

static_assert(sizeof(struct shared) <= SHARED_BYTES, "a CTA fills a multiprocessor's shared memory");

#include "cuda/sm90/backward/schedule.h"
#include "cuda/sm90/backward/dq_sums.h"

/* One thread for each consumer group: the group's tiles of dQ to the sums of their blocks. With turns, key blocks add to a
 * block of rows from the first to the last that it sees, and all walk from the last rows to the first, so that nobody waits
 * for a tile that was drawn after it. */
INLINE uint32_t add_blocks(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group,
                           uint32_t count, struct tracer *tracer) {
    const int64_t heads = (int64_t)t->batch * p->heads_kv * p->group + t->head_kv * p->group;
    const struct walk walk = walk_of(p, t);
    for (int head = 0; head < p->group; ++head)
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m = next_block(p, &walk, m), ++count) {
            const int64_t tile = ((heads + head) * p->row_blocks + m) * GROUPS + group;
            trace(tracer, STROBE_TRACE_WAIT_DQ, count);
            mbarrier_wait(&s->dq_full[group], count % 2);
            trace(tracer, STROBE_TRACE_WAIT_TURN, count);
            if (p->turns) turn_wait(p->turns + tile, (uint32_t)turn_of(t, m));
            trace(tracer, STROBE_TRACE_ADD_DQ, count);
            bulk_add(p->dq_sum + tile * DQ_TILE, s->dq[group], DQ_TILE * sizeof(float));
            bulk_wait_read();
            mbarrier_arrive(&s->dq_empty[group]);
            if (p->turns) bulk_wait(), turn_give(p->turns + tile);
        }
    return count;
}

INLINE void writer(const struct sm90_backward_params *p, struct shared *s, int group) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_WRITER + group, true);
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[tile_slot(tiles)];
        mbarrier_wait(&s->tile_full[tile_slot(tiles)], tile_parity(tiles));
        if (is_past_last(t)) break;
        if (has_blocks(t)) wait_for_cleared(p, t);
        count = add_blocks(p, s, t, group, count, &tracer);
        mbarrier_arrive(&s->tile_empty[tile_slot(tiles)]);
    }
    trace(&tracer, STROBE_TRACE_END, count);
}

/* The group's tile of dQ to its writer, a thread's registers as they are, four at a time. */
INLINE void hand_over_dq(struct shared *s, const float (&dq)[32], int group, uint32_t count) {
    float *staging = s->dq[group] + (int)threadIdx.x % 128 * 4;
    mbarrier_wait(&s->dq_empty[group], count % 2 ^ 1);
#pragma unroll
    for (int v = 0; v < 32; v += 4) *(float4 *)(staging + v * 128) = make_float4(dq[v], dq[v + 1], dq[v + 2], dq[v + 3]);
    fence_proxy_async();
    release(&s->dq_full[group]);
}

#define DS_STEP (GROUPS * DS_SLAB / 16)

/* Where a group's operands start: `own` of its 64 keys, `rows` with the columns and `sums` with the rows as depth, `all`
 * keys. */
struct operands {
    uint64_t k_own, v_own, q_rows, q_sums, dout_rows, dout_sums, ds_all, k_all;
    uint32_t ds_own; /* an address */
};

INLINE struct operands operands_of(const struct shared *s, int group) {
    const uint32_t half = 64 * ROW_BYTES / 16; /* 64 keys of K and V, and rows of dS, further */
    const uint32_t k = shared_address(s->k), q = shared_address(s->q), dout = shared_address(s->dout),
                   ds = shared_address(s->ds);
    struct operands o;
    o.k_own = wgmma_operand(k, 0) + group * half, o.v_own = wgmma_operand(shared_address(s->v), 0) + group * half;
    o.q_rows = wgmma_operand(q, 0), o.q_sums = wgmma_operand(q, Q_SLAB);
    o.dout_rows = wgmma_operand(dout, 0), o.dout_sums = wgmma_operand(dout, Q_SLAB);
    o.ds_all = wgmma_operand(ds, 0) + (ROW_PARTS == 2 ? group * half : 0);
    o.k_all = wgmma_operand(k, K_SLAB) + (ROW_PARTS == 1 ? group * (K_SLAB / 16) : 0);
    o.ds_own = transposed_store(ds + group * DS_SLAB);
    return o;
}

/* Where dS of a block stands; written and read round and round. */
struct slot {
    uint32_t stage, parity;
};

INLINE void advance(struct slot *slot) {
    if (++slot->stage == DS_STAGES) slot->stage = 0, slot->parity ^= 1;
}

/* What a consumer keeps beside its accumulators. */
struct course {
    int group, own, key; /* its warp's sixteen keys: the first, in the CTA and in the sequence */
    struct full_rows full;
    struct operands o;
    struct progress progress;
    struct slope slope;
    uint32_t count, first, filled; /* blocks met, those before this tile, tiles that had some */
    struct slot now, before;       /* of this block's dS, and with a lag of that whose dQ is worked out */
    struct tracer tracer;
};

struct accumulators {
    struct sums dk, dv;
    float s[SCORES], dp[SCORES], dq[32];
    uint32_t weights[SCORES / 2]; /* packed */
};

INLINE void wait_for(struct course *c, uint64_t *barrier, uint32_t parity, uint32_t phase) {
    trace(&c->tracer, phase, c->count);
    mbarrier_wait(barrier, parity);
}

/* With a lag, groups make weights in turns: one does while the other's dK, dQ and S are worked out. Left alone they fall
 * into step, and the tensor cores wait for both. Group 0 is ahead, and group 1 gives it the first turn. A turn ends behind
 * the products that read all weights, since ptxas moves exponentials over anything else. The condition always holds: behind
 * products without a branch ptxas puts what makes their operands between them, each of them fenced anew (C7519). */
INLINE void take_turn(int group) {
    if (LAG) named_barrier_wait(TURN_BARRIER + group, 128 * GROUPS);
}

INLINE void give_turn(int group, uint32_t count) {
    if (LAG && count != UINT32_MAX) named_barrier_arrive(TURN_BARRIER + 1 - group, 128 * GROUPS);
}

/* dP is sent for, then dV += P^T dO, in parts, from S, which is there. */
INLINE void weigh(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, struct course *c,
                  const struct meeting *at, struct accumulators *a) {
    const uint32_t slot = dout_stage_of(c->count);
    wait_for(c, &shared->dout_full[slot], dout_parity(c->count), STROBE_TRACE_WAIT_DOUT);
    trace(&c->tracer, STROBE_TRACE_WEIGHTS, c->count);
    issue_scores(a->dp, c->o.v_own, c->o.dout_rows + slot * STAGE_STEP);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        make_weights(p, shared, t, &c->slope, at, a->s, a->weights, part);
        leave_out_dropped(p, a->weights, part);
        issue_sum(&a->dv, a->weights, c->o.dout_sums + slot * STAGE_STEP, part);
    }
    give_turn(c->group, c->count);
}

/* dK += dS^T Q, in parts, when dP is there; dS for both groups; behind it dQ, with a lag of the block before. Without that
 * block the products are of whatever lies there, and not looked at, as are those of S behind the last block: one that is
 * issued at times only would serialise them all. */
INLINE void differentiate(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                          struct course *c, const struct meeting *at, struct accumulators *a) {
    uint32_t gradients[SCORES / 2];
    trace(&c->tracer, STROBE_TRACE_WAIT_DP, c->count);
    wgmma_wait(PARTS); /* dP */
    if (LAG) mbarrier_wait(&shared->ds_empty[c->now.stage], c->now.parity ^ 1);
    trace(&c->tracer, STROBE_TRACE_GRADIENTS, c->count);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (PACKED_ALONE) unpack_part(a->s, a->weights, part);
        make_gradients(p, shared, t, &c->slope, at, a->dp, a->s, gradients, part);
        store_transposed(c->o.ds_own + c->now.stage * (GROUPS * DS_SLAB), gradients, part);
        issue_sum(&a->dk, gradients, c->o.q_sums + at->stage * STAGE_STEP, part);
    }
    fence_proxy_async();
    release(&shared->ds_full[c->now.stage]);
    struct slot *late = LAG ? &c->before : &c->now;
    const bool is_late = !LAG || c->count != c->first;
    if (is_late) wait_for(c, &shared->ds_full[late->stage], late->parity, STROBE_TRACE_WAIT_DS);
    issue_dq(a->dq, c->o.ds_all + late->stage * DS_STEP, c->o.k_all);
}

/* S of the next block, and dQ on its way. */
INLINE void send_on(struct shared *shared, struct course *c, const struct meeting *at, struct accumulators *a, bool last) {
    struct slot *late = LAG ? &c->before : &c->now;
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
    if (LAG && is_late) release(&shared->ds_empty[late->stage]), advance(late);
    if (is_late) hand_over_dq(shared, a->dq, c->group, c->count - LAG);
    trace(&c->tracer, STROBE_TRACE_WAIT_S, c->count);
    if (!last) take_turn(c->group);
    wgmma_wait(0); /* the next S */
    advance(&c->now);
}

/* What is the same for all tiles. */
INLINE struct course course_of(const struct sm90_backward_params *p, const struct shared *shared, int group) {
    struct course c;
    c.group = group, c.own = 64 * group + uniform((int)threadIdx.x % 128 / 32) * 16, c.o = operands_of(shared, group);
    c.count = c.filled = 0, c.now = c.before = (struct slot){0, 0};
    c.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + group, threadIdx.x % 128 == 0);
    return c;
}

INLINE void begin(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, struct course *c,
                  struct accumulators *a) {
    const uint32_t stage = stage_of(c->count);
    c->full = full_rows_of(t, c->key), c->progress = start(p, t), c->slope = slope_at(p, t, &c->progress);
    c->first = c->count;
    wait_for(c, &shared->q_full[stage], full_parity(c->count), STROBE_TRACE_WAIT_Q);
    wait_for(c, &shared->k_full, c->filled % 2, STROBE_TRACE_WAIT_K);
    issue_scores(a->s, c->o.k_own, c->o.q_rows + stage * STAGE_STEP);
    wait_for(c, &shared->v_full, c->filled % 2, STROBE_TRACE_WAIT_V);
    trace(&c->tracer, STROBE_TRACE_WAIT_S, c->count);
    take_turn(c->group);
    wgmma_wait(0);
}

/* With a lag dQ of the last block. V and K are given back for the next tile. */
INLINE void end(struct shared *shared, struct course *c, struct accumulators *a) {
    release(&shared->v_empty);
    if (LAG) {
        wait_for(c, &shared->ds_full[c->before.stage], c->before.parity, STROBE_TRACE_WAIT_DS);
        issue_dq(a->dq, c->o.ds_all + c->before.stage * DS_STEP, c->o.k_all);
        wgmma_wait(0);
        release(&shared->ds_empty[c->before.stage]), advance(&c->before);
    }
    release(&shared->k_empty);
    if (LAG) hand_over_dq(shared, a->dq, c->group, c->count);
    ++c->count, ++c->filled;
}

/* The warp group's 64 keys of a tile, block after block of rows. Nothing may be open where the loop closes: ptxas would
 * serialise the products. */
INLINE void work_on(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, struct course *c,
                    struct accumulators *a) {
    begin(p, shared, t, c, a);
    for (;; ++c->count) {
        const int row = c->progress.row;
        const bool last = is_last(&c->progress);
        const struct meeting at = {stage_of(c->count), c->key, row, row >= c->full.low && row <= c->full.high};
        weigh(p, shared, t, c, &at, a);
        differentiate(p, shared, t, c, &at, a);
        send_on(shared, c, &at, a, last);
        if (last) break;
        if (go_on(p, t, &c->progress)) c->slope = slope_at(p, t, &c->progress);
    }
    end(shared, c, a);
}

/* One warp group: tile after tile. Keys that no row sees have gradients of 0. */
INLINE void consumer(const struct sm90_backward_params *p, struct shared *shared, int group) {
    struct course c = course_of(p, shared, group);
    struct accumulators a;
    if (group == 1) give_turn(group, 0);
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &shared->tile[tile_slot(tiles)];
        wait_for(&c, &shared->tile_full[tile_slot(tiles)], tile_parity(tiles), STROBE_TRACE_WAIT_TILE);
        if (is_past_last(t)) break;
        c.key = uniform(t->key) + c.own;
        clear(&a.dk), clear(&a.dv);
        if (uniform(has_blocks(t))) work_on(p, shared, t, &c, &a);
        trace(&c.tracer, STROBE_TRACE_EPILOGUE, c.count);
        store_sums(p, &p->dv_rows, t, &a.dv, dv_factor(p), c.key);
        store_sums(p, &p->dk_rows, t, &a.dk, p->scale, c.key);
        release(&shared->tile_empty[tile_slot(tiles)]);
    }
    trace(&c.tracer, STROBE_TRACE_END, c.count);
}

INLINE void init_barriers(struct shared *s) {
    const uint32_t consumers = 4 * GROUPS * ARRIVALS;
    for (int i = 0; i < TILES; ++i) mbarrier_init(&s->tile_full[i], 1), mbarrier_init(&s->tile_empty[i], consumers + GROUPS);
    mbarrier_init(&s->k_full, 1), mbarrier_init(&s->k_empty, consumers);
    mbarrier_init(&s->v_full, 1), mbarrier_init(&s->v_empty, consumers);
    for (int i = 0; i < STAGES; ++i) mbarrier_init(&s->q_full[i], 1), mbarrier_init(&s->q_empty[i], consumers);
    for (int i = 0; i < DOUT_STAGES; ++i) mbarrier_init(&s->dout_full[i], 1), mbarrier_init(&s->dout_empty[i], consumers);
    for (int i = 0; i < DS_STAGES; ++i) mbarrier_init(&s->ds_full[i], consumers), mbarrier_init(&s->ds_empty[i], consumers);
    for (int i = 0; i < GROUPS; ++i) mbarrier_init(&s->dq_full[i], 4 * ARRIVALS), mbarrier_init(&s->dq_empty[i], 1);
    mbarrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL(const __grid_constant__ struct sm90_backward_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct shared *shared = (struct shared *)memory;
    if (threadIdx.x == 32) tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v), tma_prefetch_map(&p.dout);
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    let_next_start();
    wait_for_previous();
    if (threadIdx.x == 96) trace_moment(&p, true);
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0)
            producer(&p, shared);
        else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= GROUPS)
            writer(&p, shared, (int)threadIdx.x / 32 - 1);
        else if (threadIdx.x >= 32 * (GROUPS + 1))
            clear_dq(&p, UINT32_MAX, 0);
        if (threadIdx.x == 32) trace_moment(&p, false);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
