/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_pair.cu (sm90): backward.cu for head dims whose dK and dV of 128 keys do not fit the registers. A CTA pair, a
 * cluster of two, owns 128 keys, 64 each, and walks over the same rows. A CTA's two consumers have different roles, since
 * one of them alone can hold the sums that it adds to:
 *
 *     HEAD_DIM  192, 256       ROWS  64: query rows in a block       ELEMENT_BF16 or ELEMENT_FP16
 *
 *     producer         | K Q0 V dO0 | Q1 dO1 | ...                        copies, Q two stages deep
 *     consumer p_dv    S^T = K Q^T     P^T = 2^(S^T c - lse) -> shared     dV += P^T dO
 *     consumer ds_dk   dP^T = V dO^T   dS^T = P^T * (dP^T - delta) -> shared      dK += dS^T Q
 *     exchange         dS -> the other CTA, through distributed shared memory
 *     both consumers   dQ = dS K over all 128 keys, each 64 of the CTA's columns -> fp32 sums in the L2 cache
 *
 * So a pair adds to dQ half as often as two CTAs alone would. dS is handed on two stages deep, so that the consumers need
 * not keep step and one's arithmetic runs under the other's products. dQ of a block is computed during the next block, when
 * the other CTA's dS has come. P passes through shared memory as it lies in registers, in fp32, since dS takes it unrounded,
 * and one stage deep; dS as an operand.
 *
 * Registers: HEAD_DIM/2 for dV or dK, 32 for S^T or dP^T, 16 packed, 32 for dQ.
 *
 * Figures: docs/benchmarks.md; tuning: docs/kernels/sm90_backward.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/cluster.h"
#include "cuda/ptx/dependent.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/semaphore.h"
#include "cuda/ptx/warp_group.h"

enum {
    GROUPS = 2,
    KEYS = 64, /* of a CTA */
    CTAS = 2,  /* of a tile */
    TILE_KEYS = KEYS * CTAS,
    STAGES = 2,
    DOUT_STAGES = HEAD_DIM > 192 ? 1 : 2, /* shared memory has no room for two */
    SLABS = HEAD_DIM / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = ROWS * ROW_BYTES,
    K_SLAB = KEYS * ROW_BYTES,
    DS_BYTES = ROWS * ROW_BYTES,
    SCORES = ROWS / 2, /* accumulators of a thread */
    WARPS = 8,         /* of consumers */
};

/* Of a thread, after the producer group has released some and the consumers have claimed them: at launch all have 168. */
#define PRODUCER_REGISTERS (HAS_MASKS ? 40 : 24)
#define CONSUMER_REGISTERS (HAS_MASKS ? 232 : 240)

#include "cuda/sm90/backward/finish.h"
#include "cuda/sm90/backward/prepare.h"

struct shared {
    unsigned char k[SLABS * K_SLAB], v[SLABS * K_SLAB];
    unsigned char k_other[GROUPS * K_SLAB]; /* the other CTA's keys, the columns that this one has of dQ */
    unsigned char q[STAGES][SLABS * Q_SLAB], dout[DOUT_STAGES][SLABS * Q_SLAB];
    unsigned char ds[STAGES][CTAS][DS_BYTES]; /* [][0]: of the own keys */
    float4 p[SCORES / 4][128];                /* P: [four registers][thread] */
    float lse[STAGES][ROWS], delta[STAGES][ROWS], sink[SUMS_SINKS ? STAGES : NO_ELEMENTS][ROWS];
    struct tile tile;
    struct note note[NOTES]; /* with masks, see walk.h */
    uint64_t k_full, v_full, other_full, q_full[STAGES], q_empty[STAGES], dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    uint64_t p_full, p_empty, ds_made[STAGES], ds_full[STAGES], ds_empty[STAGES];
    uint64_t may_add, added, added_seen; /* the dQ order, see exchange.h */
    uint32_t is_first;                   /* whether the tile is the first to add to the block of rows that it may add to */
};

static_assert(sizeof(struct shared) <= SHARED_BYTES, "a CTA fits a multiprocessor's shared memory");

#include "cuda/sm90/backward/exchange.h"

/* Copies Q with lse and dO with delta of a block, and V behind the first Q. */
INLINE void load_rows(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, struct block block,
                      uint32_t count, struct tracer *tracer) {
    load_q(p, s, t, block, count, tracer);
    if (count == 0) load_keys(s->v, &p->v, &s->v_full, t);
    load_dout(p, s, t, block, count, tracer);
}

INLINE void load_blocks(const struct sm90_backward_params *p, struct shared *s, const struct tile *t,
                        struct tracer *tracer) {
    const struct walk walk = walk_of(t);
    uint32_t count = 0;
#pragma unroll 1
    for (int head = t->head_kv * p->group; head < (t->head_kv + 1) * p->group; ++head) {
        const int64_t statistics = statistic_at(p, t->batch, head, 0);
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m = next_block(p, &walk, m), ++count)
            load_rows(p, s, t, block_at(head, m, statistics), count, tracer);
    }
}

/* The same where there are masks: visible blocks alone. */
INLINE void load_visible(const struct sm90_backward_params *p, struct shared *s, const struct tile *t,
                         struct tracer *tracer) {
    struct search search;
    bool last;
    uint32_t count = 0;
    find_first(p, t, &search);
#pragma unroll 1
    do {
        const struct note note = take_note(p, t, &search);
        if (count == 0) load_keys(s->v, &p->v, &s->v_full, t);
        last = load_noted(p, s, t, &note, count++, tracer);
    } while (!last);
}

/* One thread: copies K and V, then Q with lse and dO with delta of every block. */
INLINE void producer(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    load_keys(s->k, &p->k, &s->k_full, t);
    if (HAS_MASKS)
        load_visible(p, s, t, &tracer);
    else
        load_blocks(p, s, t, &tracer);
    trace(&tracer, STROBE_TRACE_END, 0);
}

/* Stores gradients of 0, for keys that no row sees. */
INLINE void clear_sums(const struct sm90_rows *to, const struct tile *t) {
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < KEYS * HEAD_DIM; at += THREADS) {
        const int j = t->key + at / HEAD_DIM, column = at % HEAD_DIM;
        if (j < t->in.keys.count && column < to->columns)
            ((GRADIENT *)to->data)[row_start(to, &t->in.keys, j, t->head_kv) + column] = 0;
    }
}

/* P goes from one consumer to the other, not rounded. */
INLINE void write_p(struct shared *shared, const float (&s)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 4; ++i)
        shared->p[i][threadIdx.x % 128] = make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
}

INLINE void read_p(const struct shared *shared, float (&s)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 4; ++i) {
        const float4 four = shared->p[i][threadIdx.x % 128];
        s[4 * i] = four.x, s[4 * i + 1] = four.y, s[4 * i + 2] = four.z, s[4 * i + 3] = four.w;
    }
}

/* The block pair that a consumer is at. */
INLINE struct block_pair pair_at(const struct shared *shared, uint32_t count, int key, const struct progress *at,
                                 const struct full_rows *full) {
    struct block_pair pair = {stage_of(count), key, at->row, (int)threadIdx.x % 4 * 2, at->row >= full->low && at->row <= full->high};
    if (HAS_MASKS) add_note(&pair, &shared->note[count % NOTES], 128 * cluster_rank() + (int)threadIdx.x % 128);
    return pair;
}

/* One warp group: S, P and dV, and its part of dQ. No product may be in flight where the loop closes: ptxas would serialise
 * all of them. */
INLINE void consumer_p_dv(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, bool in_order) {
    const int own = uniform((int)threadIdx.x % 128 / 32) * 16, key = uniform(t->key) + own;
    const struct full_rows full = full_rows_of(p, t, key);
    const int part = part_of_dq(0);
    struct progress progress = start(p, t);
    struct slope slope = slope_at(p, t, &progress);
    struct sums dv;
    float s[SCORES], dq[32], input[INPUTS];
    uint32_t packed[SCORES / 2], count = 0; /* P */
    int before = 0;                         /* block of rows */
    const uint64_t k = wgmma_operand(shared_address(shared->k), 0), q = wgmma_operand(shared_address(shared->q), 0);
    const uint64_t dout = wgmma_operand(shared_address(shared->dout), Q_SLAB);
    clear(&dv);
    mbarrier_wait(&shared->k_full, 0);
    mbarrier_wait(&shared->q_full[0], 0);
    if (HAS_MASKS && go_to(&shared->note[0], &progress)) slope = slope_at(p, t, &progress);
    issue_scores(s, k, q);
    mbarrier_wait(&shared->other_full, 0);
    wgmma_wait(0);
    for (;; ++count) {
        const uint32_t stage = stage_of(count), next = stage_of(count + 1), slot = dout_stage_of(count);
        const struct block_pair at = pair_at(shared, count, key, &progress, &full);
        const bool last = HAS_MASKS ? at.note & NOTE_LAST : is_last(&progress);
        struct relatives relatives;
        find_all_relatives(p, t, slope.head, &at, &relatives);
        mask_scores(p, t, &at, s);
        make_p(p, shared, t, &slope, &at, s, input, &relatives, packed, 0);
        release(&shared->q_empty[stage]);
        mbarrier_wait(&shared->p_empty, count % 2 ^ 1);
        write_p(shared, s);
        release(&shared->p_full);
        mbarrier_wait(&shared->dout_full[slot], dout_parity(count));
        leave_out_dropped(p, packed, 0);
        issue_sum(&dv, packed, dout + slot * STAGE_STEP, 0);
        if (count > 0) mbarrier_wait(&shared->ds_full[next], full_parity(count - 1));
        issue_dq_part(dq, shared, part, next); /* of the block before; at first of stale data, and not looked at */
        wgmma_wait(1);                         /* dV */
        release(&shared->dout_empty[slot]);
        if (!last) mbarrier_wait(&shared->q_full[next], full_parity(count + 1));
        issue_scores(s, k, q + next * STAGE_STEP);                     /* after the last block: of stale data, likewise */
        wgmma_wait(1);                                                 /* dQ */
        if (count > 0 && !last) release_both(&shared->ds_empty[next]); /* nobody would wait for the last one */
        if (count > 0) add_dq_part(p, shared, part, dq, before, count - 1, in_order);
        before = block_of(p, t, &progress);
        wgmma_wait(0);
        if (last) break;
        if (HAS_MASKS ? go_to(&shared->note[(count + 1) % NOTES], &progress) : go_on(p, t, &progress))
            slope = slope_at(p, t, &progress);
    }
    last_dq_part(p, shared, part, before, count, in_order);
    store_sums(p, &p->dv_rows, t, &dv, dv_factor(p), key);
}

/* The other warp group: dP, dS and dK, and its part of dQ. */
INLINE void consumer_ds_dk(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                           bool in_order) {
    const int own = uniform((int)threadIdx.x % 128 / 32) * 16, key = uniform(t->key) + own;
    const struct full_rows full = full_rows_of(p, t, key);
    const int part = part_of_dq(1);
    struct progress progress = start(p, t);
    struct slope slope = slope_at(p, t, &progress);
    struct sums dk;
    struct sink_sums sinks = {-1};
    float s[SCORES], dp[SCORES], dq[32], input[INPUTS];
    uint32_t packed[SCORES / 2], count = 0; /* dS */
    int before = 0;
    const uint64_t v = wgmma_operand(shared_address(shared->v), 0), dout = wgmma_operand(shared_address(shared->dout), 0);
    const uint64_t q = wgmma_operand(shared_address(shared->q), Q_SLAB);
    const uint32_t ds_own = transposed_store(shared_address(shared->ds));
    clear(&dk);
    mbarrier_wait(&shared->v_full, 0);
    mbarrier_wait(&shared->dout_full[0], 0);
    issue_dp_from(dp, shared->delta[0], v, dout, DELTA_IN_DP && !in_order);
    mbarrier_wait(&shared->k_full, 0);
    mbarrier_wait(&shared->other_full, 0);
    wgmma_wait(0);
    if (DOUT_STAGES == 1) release(&shared->dout_empty[0]); /* dP is finished, and the next delta has another stage */
    for (;; ++count) {
        const uint32_t stage = stage_of(count), next = stage_of(count + 1), slot = dout_stage_of(count);
        const uint32_t next_slot = dout_stage_of(count + 1);
        mbarrier_wait(&shared->q_full[stage], full_parity(count));
        if (HAS_MASKS && go_to(&shared->note[count % NOTES], &progress)) slope = slope_at(p, t, &progress);
        if (sums_sinks(p)) sum_sinks_of(p, t->batch, slope.head, key, &sinks);
        const struct block_pair at = pair_at(shared, count, key, &progress, &full);
        const bool last = HAS_MASKS ? at.note & NOTE_LAST : is_last(&progress);
        mbarrier_wait(&shared->p_full, count % 2);
        read_p(shared, s);
        make_ds(p, shared, t, &slope, &at, dp, s, input, &sinks, packed, 0, DELTA_IN_DP && !in_order);
        release(&shared->p_empty);
        if (DOUT_STAGES > 1) release(&shared->dout_empty[slot]);
        mbarrier_wait(&shared->ds_empty[stage], empty_parity(count));
        store_transposed(ds_own + stage * (CTAS * DS_BYTES), packed, 0);
        issue_sum(&dk, packed, q + stage * STAGE_STEP, 0);
        fence_proxy_async();
        release(&shared->ds_made[stage]);
        if (count > 0) mbarrier_wait(&shared->ds_full[next], full_parity(count - 1));
        issue_dq_part(dq, shared, part, next);
        wgmma_wait(1); /* dK */
        release(&shared->q_empty[stage]);
        wgmma_wait(0); /* dQ */
        if (count > 0 && !last) release_both(&shared->ds_empty[next]);
        if (count > 0) add_dq_part(p, shared, part, dq, before, count - 1, in_order);
        if (!last) mbarrier_wait(&shared->dout_full[next_slot], dout_parity(count + 1));
        issue_dp_from(dp, shared->delta[next], v, dout + next_slot * STAGE_STEP, DELTA_IN_DP && !in_order);
        before = block_of(p, t, &progress);
        wgmma_wait(0);
        if (DOUT_STAGES == 1 && !last) release(&shared->dout_empty[0]);
        if (last) break;
        if (!HAS_MASKS && go_on(p, t, &progress)) slope = slope_at(p, t, &progress);
    }
    if (sums_sinks(p)) store_sinks(p, t->batch, key, &sinks);
    last_dq_part(p, shared, part, before, count, in_order);
    store_sums(p, &p->dk_rows, t, &dk, p->scale, key);
}

/* How many blocks a CTA clears, so that all CTAs together clear all of them, and soon. */
INLINE uint32_t blocks_to_clear(const struct sm90_backward_params *p) {
    return 1 + blocks_of_head(p) / (uint32_t)p->key_blocks;
}

INLINE void init_barriers(struct shared *s) {
    mbarrier_init(&s->k_full, 1), mbarrier_init(&s->v_full, 1), mbarrier_init(&s->other_full, 1);
    mbarrier_init(&s->p_full, 4 * ARRIVALS), mbarrier_init(&s->p_empty, 4 * ARRIVALS);
    mbarrier_init(&s->may_add, 1), mbarrier_init(&s->added, WARPS * ARRIVALS), mbarrier_init(&s->added_seen, 1);
    for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(&s->q_full[stage], 1), mbarrier_init(&s->q_empty[stage], WARPS * ARRIVALS);
        mbarrier_init(&s->ds_made[stage], 4 * ARRIVALS), mbarrier_init(&s->ds_full[stage], 1);
        mbarrier_init(&s->ds_empty[stage], CTAS * WARPS * ARRIVALS);
    }
    for (int slot = 0; slot < DOUT_STAGES; ++slot)
        mbarrier_init(&s->dout_full[slot], 1), mbarrier_init(&s->dout_empty[slot], WARPS * ARRIVALS);
    mbarrier_init_fence();
}

/* One thread, while another makes the barriers. */
INLINE void describe_tile(const struct sm90_backward_params *p, struct shared *shared) {
    const int number = (int)blockIdx.x / CTAS;
    if (p->sequences) wait_for_previous(); /* which counts the tiles */
    const bool is_there = number < all_tiles(p);
    if (is_there) shared->tile = tile_of(p, number);
    if (!is_there) shared->tile.in.keys.count = shared->tile.key = shared->tile.first_block = shared->tile.end_block = 0;
    shared->tile.key += cluster_rank() * KEYS;
    struct search search;
    if (HAS_MASKS && is_there && !find_first(p, &shared->tile, &search)) shared->tile.end_block = shared->tile.first_block;
}

/* All threads, until the tile is described, both CTAs can be written to and the kernel before has ended. */
INLINE void begin(void) {
    __syncthreads();
    cluster_barrier();
    let_next_start();
    wait_for_previous();
}

/* A tile that sees no row. */
INLINE bool is_empty(const struct sm90_backward_params *p, const struct tile *t) {
    if (t->end_block > t->first_block) return false;
    clear_sums(&p->dk_rows, t), clear_sums(&p->dv_rows, t);
    return true;
}

/* Returns false of an empty tile. */
INLINE bool producer_group(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t,
                           bool in_order) {
    registers_release(PRODUCER_REGISTERS);
    if (threadIdx.x == 0) describe_tile(p, shared);
    if (threadIdx.x == 32) init_barriers(shared);
    if (threadIdx.x == 64)
        tma_prefetch_map(&p->q), tma_prefetch_map(&p->k), tma_prefetch_map(&p->v), tma_prefetch_map(&p->dout);
    begin();
    if (is_empty(p, t)) {
        if (!in_order && threadIdx.x < 32) clear_dq(p, blocks_to_clear(p), 0);
        return false;
    }
    if (threadIdx.x == 0)
        producer(p, shared, t);
    else if (threadIdx.x == 32)
        exchange(p, shared, t, in_order);
    else if (in_order && threadIdx.x >= 64 && threadIdx.x < (HAS_MASKS ? 96 : 65))
        dq_order_waiter(p, shared, t);
    else if (in_order && threadIdx.x == 96)
        dq_order_poster(p, shared, t);
    else if (!in_order && threadIdx.x >= 96)
        clear_dq(p, blocks_to_clear(p), t->batch * p->heads_kv + t->head_kv);
    return true;
}

/* A CTA; whether it keeps the dQ order is a constant, since what a fixed order needs beside each addition costs the free one
 * a fiftieth of its time. Nobody ends before all that the other CTA sends has come: each waits for that before it arrives
 * here. */
INLINE void work(const struct sm90_backward_params *p, struct shared *shared, bool in_order) {
    const struct tile *t = &shared->tile;
    const int group = uniform((int)threadIdx.x / 128);
    if (group == 0) {
        if (!producer_group(p, shared, t, in_order)) return;
    } else {
        registers_claim(CONSUMER_REGISTERS);
        begin();
        if (is_empty(p, t)) return;
        if (group == 1)
            consumer_p_dv(p, shared, t, in_order);
        else
            consumer_ds_dk(p, shared, t, in_order);
    }
    __syncwarp();
    cluster_barrier();
}

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    KERNEL(const __grid_constant__ struct sm90_backward_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    work(&p, (struct shared *)memory, false);
}

#define ORDERED_(name) name##_ordered
#define ORDERED(name)  ORDERED_(name)

/* With p.dq_semaphores. */
extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    ORDERED(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    work(&p, (struct shared *)memory, true);
}
