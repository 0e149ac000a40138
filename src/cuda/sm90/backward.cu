/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.cu (sm90): the gradients of attention on Hopper, FlashAttention-3's division of labour (Shah et al., 2024):
 * tensor copies, asynchronous matrix products, specialised warp groups. One text, compiled for each head dim and element
 * type:
 *
 *     HEAD_DIM  64, 128: columns of Q, K, V, dO in shared memory       ROWS  query rows in a block, HEAD_DIM ROWS = 8192
 *     ELEMENT_BF16 or ELEMENT_FP16                                     TERMS what stands over scores: backward_terms.h
 *
 *     PARTS     P and dS are made in so many parts, whose products start with the first
 *     LAG       1: dQ of a block is worked out in the next one's time, so that the groups need not meet
 *
 * Three kernels: KERNEL_prepare (backward_prepare.h) works out D and lse and clears dQ, KERNEL (this file) does the rest but
 * for what KERNEL_finish (backward_finish.h) does to dQ. A CTA owns 128 keys of a K/V head, 64 for each of two consumer warp
 * groups, and walks over the blocks of rows, of all query heads of the group, that see some of them:
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
 * Registers of a consumer: dK, dV HEAD_DIM/2 each, S^T, dP^T ROWS/2 each, dQ 32 (when dP^T is gone), P and dS ROWS/4 each.
 *
 * One H200, 2026-11-21, bf16, 16k tokens, TFLOP/s full / causal: d 64 539 / 530, d 128 631 / 604 (cuDNN 9.19 440 / 407,
 * 537 / 502); in fixed order 523 / 488, 598 / 585. See docs/kernels/sm90_backward.md. */
#if defined(ELEMENT_BF16)
#define STROBE_MMA_TYPE "bf16"
#else
#define STROBE_MMA_TYPE "f16"
#endif

#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/turn.h"
#include "cuda/ptx/warp_group.h"

enum {
    GROUPS = 2,
    KEYS = 64 * GROUPS,
    TILE_KEYS = KEYS, /* of a CTA */
    STAGES = 2,
    DOUT_STAGES = 2,
    DS_STAGES = 2 + LAG,
    SLABS = HEAD_DIM / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = ROWS * ROW_BYTES,
    K_SLAB = KEYS * ROW_BYTES,
    DS_SLAB = ROWS * ROW_BYTES, /* 64 keys */
    SCORES = ROWS / 2,          /* accumulators of a thread */
    K_BARRIER = 1,
};

/* Of a thread, after they have moved: at launch all have 168. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

#include "cuda/sm90/backward_finish.h"
#include "cuda/sm90/backward_prepare.h"

static_assert((int)DQ_TILES == (int)GROUPS, "dQ of a block is one tile for each warp group");

struct shared {
    unsigned char k[SLABS * K_SLAB], v[SLABS * K_SLAB];
    unsigned char q[STAGES][SLABS * Q_SLAB], dout[STAGES][SLABS * Q_SLAB];
    unsigned char ds[DS_STAGES][GROUPS * DS_SLAB];
    float dq[GROUPS][DQ_TILE];
    float lse[STAGES][ROWS], term[STAGES][ROWS];
    struct tile tile;
    uint64_t k_full, v_full, q_full[STAGES], q_empty[STAGES], dout_full[STAGES], dout_empty[STAGES];
    uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES], dq_full[GROUPS], dq_empty[GROUPS];
};

static_assert(sizeof(struct shared) <= SHARED_BYTES, "a CTA fills a multiprocessor's shared memory");

#include "cuda/sm90/backward_steps.h"

/* One thread for each consumer group: the group's tiles of dQ to the sums of their blocks. With turns, key blocks add to a
 * block of rows from the first to the last that it sees, and all walk from the last rows to the first, so that nobody waits
 * for a CTA that starts after it. */
INLINE void writer(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, int group) {
    const int64_t heads = (int64_t)t->batch * p->heads_kv * p->group + t->head_kv * p->group;
    const struct walk walk = walk_of(p, t);
    uint32_t count = 0;
    for (int head = 0; head < p->group; ++head)
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m += walk.step, ++count) {
            const int64_t tile = ((heads + head) * p->row_blocks + m) * GROUPS + group;
            mbarrier_wait(&s->dq_full[group], count % 2);
            if (p->turns) turn_wait(p->turns + tile, (uint32_t)turn_of(t, m));
            bulk_add(p->dq_sum + tile * DQ_TILE, s->dq[group], DQ_TILE * sizeof(float));
            bulk_wait_read();
            mbarrier_arrive(&s->dq_empty[group]);
            if (p->turns) bulk_wait(), turn_give(p->turns + tile);
        }
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

/* With a lag: dQ of the last block. */
INLINE void last_dq(struct shared *shared, const struct operands *o, const struct slot *slot, int group, uint32_t count) {
    float dq[32];
    mbarrier_wait(&shared->ds_full[slot->stage], slot->parity);
    issue_dq(dq, o->ds_all + slot->stage * DS_STEP, o->k_all);
    wgmma_wait(0);
    hand_over_dq(shared, dq, group, count);
}

/* One warp group: its 64 keys, block after block of rows. Nothing may be open where the loop closes: ptxas would serialise
 * the products. */
INLINE void consumer(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, int group) {
    const int own = 64 * group + uniform((int)threadIdx.x % 128 / 32) * 16, key = uniform(t->key) + own;
    const struct full_rows full = full_rows_of(t, key);
    const struct operands o = operands_of(shared, group);
    struct sums dk, dv;
    float s[SCORES], dp[SCORES], dq[32];
    uint32_t weights[SCORES / 2], gradients[SCORES / 2];
    struct progress progress = start(p, t);
    struct slope slope = slope_at(p, t, &progress);
    struct slot now = {0, 0}, before = {0, 0}; /* of this block's dS, and with a lag of that whose dQ is worked out */
    const struct slot *late = LAG ? &before : &now;
    uint32_t count = 0;
    clear(&dk), clear(&dv);
    mbarrier_wait(&shared->k_full, 0);
    mbarrier_wait(&shared->q_full[0], 0);
    issue_scores(s, o.k_own, o.q_rows);
    mbarrier_wait(&shared->v_full, 0);
    wgmma_wait(0);
    for (;; ++count) {
        const uint32_t stage = stage_of(count), next = stage_of(count + 1);
        const bool last = is_last(&progress);
        const struct meeting at = {stage, key, progress.row, progress.row >= full.low && progress.row <= full.high};
        mbarrier_wait(&shared->dout_full[stage], full_parity(count));
        issue_scores(dp, o.v_own, o.dout_rows + stage * STAGE_STEP);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            make_weights(p, shared, t, &slope, &at, s, weights, part);
            leave_out_dropped(p, weights, part);
            issue_sum(&dv, weights, o.dout_sums + stage * STAGE_STEP, part);
        }
        wgmma_wait(PARTS); /* dP */
        if (LAG) mbarrier_wait(&shared->ds_empty[now.stage], now.parity ^ 1);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            make_gradients(p, shared, t, &slope, &at, dp, s, gradients, part);
            store_transposed(o.ds_own + now.stage * (GROUPS * DS_SLAB), gradients, part);
            issue_sum(&dk, gradients, o.q_sums + stage * STAGE_STEP, part);
        }
        fence_proxy_async();
        release(&shared->ds_full[now.stage]);
        if (!LAG || count > 0) mbarrier_wait(&shared->ds_full[late->stage], late->parity);
        issue_dq(dq, o.ds_all + late->stage * DS_STEP, o.k_all); /* with a lag at first of nothing, and not looked at */
        wgmma_wait(PARTS + 1);                                   /* dV */
        release(&shared->dout_empty[stage]);
        if (!last) mbarrier_wait(&shared->q_full[next], full_parity(count + 1));
        issue_scores(s, o.k_own, o.q_rows + next * STAGE_STEP); /* after the last block: of an old one, likewise */
        wgmma_wait(1);                                          /* dK and dQ */
        release(&shared->q_empty[stage]);
        if (LAG && count > 0) release(&shared->ds_empty[late->stage]), advance(&before);
        if (!LAG || count > 0) hand_over_dq(shared, dq, group, count - LAG);
        wgmma_wait(0); /* the next S */
        advance(&now);
        if (last) break;
        if (go_on(p, t, &progress)) slope = slope_at(p, t, &progress);
    }
    if (LAG) last_dq(shared, &o, late, group, count);
    named_barrier_wait(K_BARRIER, 128 * GROUPS); /* K has been read by both groups */
    store_sums(&p->dk_rows, t, shared->k, &dk, p->scale, own);
    store_sums(&p->dv_rows, t, shared->v, &dv, dv_factor(p), own);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL(const __grid_constant__ struct sm90_backward_params p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct shared *shared = (struct shared *)memory;
    const struct tile *t = &shared->tile;
    if (threadIdx.x == 0) {
        shared->tile = tile_of(&p, (int)blockIdx.x);
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v), tma_prefetch_map(&p.dout);
        mbarrier_init(&shared->k_full, 1), mbarrier_init(&shared->v_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared->q_full[stage], 1), mbarrier_init(&shared->q_empty[stage], 4 * GROUPS);
            mbarrier_init(&shared->dout_full[stage], 1), mbarrier_init(&shared->dout_empty[stage], 4 * GROUPS);
        }
        for (int i = 0; i < DS_STAGES; ++i) mbarrier_init(&shared->ds_full[i], 8), mbarrier_init(&shared->ds_empty[i], 8);
        for (int i = 0; i < GROUPS; ++i) mbarrier_init(&shared->dq_full[i], 4), mbarrier_init(&shared->dq_empty[i], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (t->end_block == t->first_block) {
        clear_sums(&p.dk_rows, t), clear_sums(&p.dv_rows, t);
        return;
    }
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0)
            producer(&p, shared, t);
        else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= GROUPS)
            writer(&p, shared, t, (int)threadIdx.x / 32 - 1);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, t, group);
    }
}
