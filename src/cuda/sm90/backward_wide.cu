/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_wide.cu (sm90): backward.cu for wide heads, whose dK and dV of 128 keys do not fit the registers. A CTA owns 64
 * keys, and its two consumer warp groups have a role each, since one alone holds the sums that it adds to:
 *
 *     HEAD_DIM  192, 256       ROWS  64: query rows in a block       ELEMENT_BF16 or ELEMENT_FP16
 *
 *     producer        | K Q0 V dO0 | Q1 dO1 | ...                         copies, two stages deep
 *     weight group    S^T = K Q^T     P^T = 2^(S^T c - lse) -> shared      dV += P^T dO
 *     gradient group  dP^T = V dO^T   dS^T = P^T (dP^T - D) -> shared      dK += dS^T Q
 *     both            dQ = dS K, half of the columns each, 64 x 64 elements at a time -> fp32 sums in the L2 cache
 *
 * P and dS are handed on two stages deep, so that the groups need not keep step and one's arithmetic runs under the other's
 * products. P goes as it lies in registers, packed; dS as an operand.
 *
 * Registers: HEAD_DIM/2 for dV or dK, 32 for S^T or dP^T, 16 packed, 32 for dQ.
 *
 * One H200, 2026-11-21, bf16, d 256, 16k tokens, TFLOP/s full / causal: 446 / 446 (cuDNN 9.19 354 / 386); in fixed order
 * 305 / 266. See docs/kernels/sm90_backward.md. */
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
    KEYS = 64,
    STAGES = 2,
    SLABS = HEAD_DIM / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = ROWS * ROW_BYTES,
    K_SLAB = KEYS * ROW_BYTES,
    DS_BYTES = ROWS * ROW_BYTES,
    SCORES = ROWS / 2, /* accumulators of a thread */
    K_BARRIER = 1,
    TURN_BARRIER = 2, /* TURN_BARRIER + g: of group g */
};

/* Of a thread, after they have moved: at launch all have 168. */
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

#include "cuda/sm90/backward_finish.h"
#include "cuda/sm90/backward_prepare.h"

struct shared {
    unsigned char k[SLABS * K_SLAB], v[SLABS * K_SLAB];
    unsigned char q[STAGES][SLABS * Q_SLAB], dout[STAGES][SLABS * Q_SLAB];
    unsigned char ds[STAGES][DS_BYTES];
    uint4 weights[STAGES][SCORES / 8][128]; /* [][four registers][thread] */
    float lse[STAGES][ROWS], term[STAGES][ROWS];
    struct tile tile;
    uint64_t k_full, v_full, q_full[STAGES], q_empty[STAGES], dout_full[STAGES], dout_empty[STAGES];
    uint64_t weights_full[STAGES], weights_empty[STAGES], ds_full[STAGES], ds_empty[STAGES];
};

static_assert(sizeof(struct shared) <= SHARED_BYTES, "a CTA fills a multiprocessor's shared memory");

#include "cuda/sm90/backward_steps.h"

/* What a group sends for ahead: S or dP of the next block of rows. */
struct next {
    uint64_t keys, rows; /* operands */
    uint64_t *full;      /* rows have come; NULL: there are none, and old ones will do, since nobody looks at the result */
    uint32_t parity;
};

/* The group's tiles of dQ = dS K to their sums, a thread's registers as they are, and the next scores. `open` is released
 * when the product that is open at the start is done. With turns, see writer() of backward.cu. */
INLINE void add_tiles(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t, uint32_t stage,
                      const struct progress *at, int group, uint64_t *open, float (&scores)[SCORES],
                      const struct next *next) {
    const int thread = (int)threadIdx.x % 128, tiles = group == 0 ? DQ_TILES / 2 : DQ_TILES - DQ_TILES / 2;
    const int first = group == 0 ? 0 : DQ_TILES / 2;
    const uint64_t ds = wgmma_operand(shared_address(shared->ds[stage]), 0);
    const uint64_t k = wgmma_operand(shared_address(shared->k), K_SLAB) + first * (K_SLAB / 16);
    const int m = at->row / ROWS, head = (t->head_kv + 1) * p->group - at->heads;
    const int64_t block = ((int64_t)t->batch * p->heads_kv * p->group + head) * p->row_blocks + m;
    float *sum = p->dq_sum + block * BLOCK_ELEMENTS + first * DQ_TILE + thread * 4;
    uint32_t *turn = p->turns + block * DQ_TILES + group;
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
        float dq[32];
        issue_dq(dq, ds, k + tile * (K_SLAB / 16));
        if (tile == tiles - 1) {
            if (next->full) mbarrier_wait(next->full, next->parity);
            issue_scores(scores, next->keys, next->rows);
            if (tile == 0) wgmma_wait(2);
        } else if (tile == 0)
            wgmma_wait(1);
        if (tile == 0) release(open);
        if (tile == 0 && p->turns) {
            if (thread == 0) turn_wait(turn, (uint32_t)turn_of(t, m));
            named_barrier_wait(TURN_BARRIER + group, 128);
        }
        if (tile == tiles - 1)
            wgmma_wait(1);
        else
            wgmma_wait(0);
#pragma unroll
        for (int v = 0; v < 32; v += 4) red_add_4(sum + tile * DQ_TILE + v * 128, dq[v], dq[v + 1], dq[v + 2], dq[v + 3]);
    }
    release(&shared->ds_empty[stage]);
    wgmma_wait(0);
    if (p->turns) {
        __threadfence();
        named_barrier_wait(TURN_BARRIER + group, 128);
        if (thread == 0) turn_give(turn);
    }
}

/* S, P, and dV. Nothing may be open where the loop closes: ptxas would serialise the products. */
INLINE void weight_group(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t) {
    const int thread = (int)threadIdx.x % 128, own = uniform(thread / 32) * 16, key = uniform(t->key) + own;
    const struct full_rows full = full_rows_of(t, key);
    struct progress progress = start(p, t);
    struct slope slope = slope_at(p, t, &progress);
    struct sums dv;
    float s[SCORES];
    uint32_t weights[SCORES / 2];
    const uint64_t k = wgmma_operand(shared_address(shared->k), 0), q = wgmma_operand(shared_address(shared->q), 0);
    const uint64_t dout = wgmma_operand(shared_address(shared->dout), Q_SLAB);
    clear(&dv);
    mbarrier_wait(&shared->k_full, 0);
    mbarrier_wait(&shared->q_full[0], 0);
    issue_scores(s, k, q);
    wgmma_wait(0);
    for (uint32_t count = 0;; ++count) {
        const uint32_t stage = stage_of(count), next = stage_of(count + 1);
        const bool last = is_last(&progress);
        const struct meeting at = {stage, key, progress.row, progress.row >= full.low && progress.row <= full.high};
        make_weights(p, shared, t, &slope, &at, s, weights, 0);
        release(&shared->q_empty[stage]);
        mbarrier_wait(&shared->weights_empty[stage], empty_parity(count));
#pragma unroll
        for (int i = 0; i < SCORES / 8; ++i)
            shared->weights[stage][i][thread] = make_uint4(weights[4 * i], weights[4 * i + 1], weights[4 * i + 2],
                                                           weights[4 * i + 3]);
        release(&shared->weights_full[stage]);
        mbarrier_wait(&shared->dout_full[stage], full_parity(count));
        leave_out_dropped(p, weights, 0);
        issue_sum(&dv, weights, dout + stage * STAGE_STEP, 0);
        mbarrier_wait(&shared->ds_full[stage], full_parity(count));
        const struct next ahead = {k, q + next * STAGE_STEP, !last ? &shared->q_full[next] : NULL, full_parity(count + 1)};
        add_tiles(p, shared, t, stage, &progress, 0, &shared->dout_empty[stage], s, &ahead);
        if (last) break;
        if (go_on(p, t, &progress)) slope = slope_at(p, t, &progress);
    }
    named_barrier_wait(K_BARRIER, 256); /* K has been read by both groups */
    store_sums(&p->dv_rows, t, shared->k, &dv, dv_factor(p), own);
}

/* A pair of weights as it was packed. */
INLINE float2 unpack(uint32_t pair) {
    return make_float2(element_to_float((element)pair), element_to_float((element)(pair >> 16)));
}

/* dP, dS, and dK. */
INLINE void gradient_group(const struct sm90_backward_params *p, struct shared *shared, const struct tile *t) {
    const int thread = (int)threadIdx.x % 128, own = uniform(thread / 32) * 16, key = uniform(t->key) + own;
    const struct full_rows full = full_rows_of(t, key);
    struct progress progress = start(p, t);
    struct slope slope = slope_at(p, t, &progress);
    struct sums dk;
    float dp[SCORES];
    uint32_t gradients[SCORES / 2];
    const uint64_t v = wgmma_operand(shared_address(shared->v), 0), dout = wgmma_operand(shared_address(shared->dout), 0);
    const uint64_t q = wgmma_operand(shared_address(shared->q), Q_SLAB);
    const uint32_t ds_own = transposed_store(shared_address(shared->ds));
    clear(&dk);
    mbarrier_wait(&shared->v_full, 0);
    mbarrier_wait(&shared->dout_full[0], 0);
    issue_scores(dp, v, dout);
    wgmma_wait(0);
    for (uint32_t count = 0;; ++count) {
        const uint32_t stage = stage_of(count), next = stage_of(count + 1);
        const bool last = is_last(&progress);
        const struct meeting at = {stage, key, progress.row, progress.row >= full.low && progress.row <= full.high};
        float s[SCORES];
        mbarrier_wait(&shared->q_full[stage], full_parity(count));
        mbarrier_wait(&shared->weights_full[stage], full_parity(count));
#pragma unroll
        for (int i = 0; i < SCORES / 8; ++i) {
            const uint4 four = shared->weights[stage][i][thread];
            const uint32_t pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float2 two = unpack(pair[x]);
                s[8 * i + 2 * x] = two.x, s[8 * i + 2 * x + 1] = two.y;
            }
        }
        make_gradients(p, shared, t, &slope, &at, dp, s, gradients, 0);
        release(&shared->weights_empty[stage]);
        release(&shared->dout_empty[stage]);
        mbarrier_wait(&shared->ds_empty[stage], empty_parity(count));
        store_transposed(ds_own + stage * DS_BYTES, gradients, 0);
        issue_sum(&dk, gradients, q + stage * STAGE_STEP, 0);
        fence_proxy_async();
        release(&shared->ds_full[stage]);
        mbarrier_wait(&shared->ds_full[stage], full_parity(count)); /* by all of the group's warps */
        const struct next ahead = {v, dout + next * STAGE_STEP, !last ? &shared->dout_full[next] : NULL,
                                   full_parity(count + 1)};
        add_tiles(p, shared, t, stage, &progress, 1, &shared->q_empty[stage], dp, &ahead);
        if (last) break;
        if (go_on(p, t, &progress)) slope = slope_at(p, t, &progress);
    }
    named_barrier_arrive(K_BARRIER, 256);
    store_sums(&p->dk_rows, t, shared->v, &dk, p->scale, own); /* nobody else reads V */
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
            mbarrier_init(&shared->q_full[stage], 1), mbarrier_init(&shared->q_empty[stage], 8);
            mbarrier_init(&shared->dout_full[stage], 1), mbarrier_init(&shared->dout_empty[stage], 8);
            mbarrier_init(&shared->weights_full[stage], 4), mbarrier_init(&shared->weights_empty[stage], 4);
            mbarrier_init(&shared->ds_full[stage], 4), mbarrier_init(&shared->ds_empty[stage], 8);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (t->end_block == t->first_block) {
        clear_sums(&p.dk_rows, t), clear_sums(&p.dv_rows, t);
        return;
    }
    const int group = uniform((int)threadIdx.x / 128);
    if (group == 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) producer(&p, shared, t);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        if (group == 1)
            weight_group(&p, shared, t);
        else
            gradient_group(&p, shared, t);
    }
}
