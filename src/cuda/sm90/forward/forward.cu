/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu (sm90): FlashAttention-3's forward (Shah et al., 2024) on Hopper: tensor copies, asynchronous matrix products,
 * specialised warp groups. One text, compiled for each element type and shape; variants.cmake has the list, with what each
 * is best for:
 *
 *     HEAD_DIM 64..256 columns of Q, K, V in shared memory   GROUPS  consumer warp groups, 64 query rows each
 *     KEYS     keys in a block                               STAGES  blocks of K and of V in shared memory
 *     CTAS     on a multiprocessor                           Q_SLOTS places for 64 rows of Q
 *     TERMS    1: softcap and ALiBi, 2: bias, boolean mask and dropout too: code that only stands by costs 15 %
 *
 * A CTA works on tiles of 64 GROUPS rows of one query head, one after the other. Blocks of keys run from right to left, so
 * that masked ones come first. One warp chooses tiles, one copies K and V, one Q as soon as a tile is known; in a consumer,
 * softmax of block n runs under the product P V of block n + 1, the first scores of the next tile under the end of this one,
 * and the groups take turns at issuing products, so that one's softmax runs under the other's products:
 *
 *     scheduler   | tile 0 | tile 1 |            | tile 2 |
 *     Q loader    | Q | Q' |                              | Q'' |
 *     loader      | K0 | K1 V0 | K2 V1 | ...              | K0' |          wait for room -> expect bytes -> copy
 *     consumer 0  | QK0 softmax0 | QK1 PV0, softmax1 | ... | PVlast QK0', O / l -> global | softmax0' | QK1' PV0', ...
 *     consumer 1  |     QK0 softmax0 | QK1 PV0, softmax1 | ...
 *
 * Shared memory: Q [slab][64][64], stages of K and V [slab][KEYS][64], slabs of 64 columns, 128-byte swizzle.
 * Registers of a consumer: S KEYS/2, P KEYS/4, O HEAD_DIM/2. One H200, 2026-11-22, bf16, 16k tokens, TFLOP/s: d 64 588, d
 * 128 694, d 256 784, a few percent more or less by temperature; 1.14 x cuDNN 9.19 over 36 problems.
 * docs/kernels/sm90_forward.md has the tuning, tools/sass_guard.py watches what ptxas makes of this. */
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/element.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/forward/score_terms.h"
#include "cuda/sm90/trace.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define SCORES_STEP JOIN(wgmma_ss_, KEYS)
#define VALUES_STEP JOIN(wgmma_rs_, HEAD_DIM)

static __device__ __forceinline__ void issue_scores(float (&s)[SCORES], uint64_t q, uint64_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        const int columns = step % 4 * 2;
        SCORES_STEP(s, q + step / 4 * (Q_SLAB / 16) + columns, k + step / 4 * (KV_SLAB / 16) + columns, step > 0);
    }
    wgmma_commit();
}

static __device__ __forceinline__ void issue_values(float (&o)[OUTPUTS], const uint32_t (&w)[SCORES / 2], uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) VALUES_STEP(o, &w[4 * step], v + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

static __device__ __forceinline__ int group_index(void) { return threadIdx.x / 128 - 1; }

/* The first of the warp's sixteen rows in a tile. */
static __device__ __forceinline__ int warp_row(void) { return (threadIdx.x / 32 - 4) * 16; }

static __device__ __forceinline__ void release(uint64_t *empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}

#define STAGE_STEP  (SLABS * KV_SLAB / 16) /* from stage to stage in a descriptor */
#define Q_SLOT_STEP (GROUP_BYTES / 16)

/* What a thread of a warp group keeps beside its registers of S, P and O. */
struct group {
    uint64_t q, k, v;           /* descriptors of slot 0 and stage 0 */
    uint32_t count;             /* blocks met; from it follows where the next one lies */
    uint32_t tiles;             /* tiles met */
    uint32_t q_slot;            /* of the tile in hand */
    int first_block, end_block; /* of the tile in hand; none after the last tile */
    struct keys shown;          /* to all rows of the warp */
    struct rows rows;
    struct tracer tracer;
};

static __device__ __forceinline__ void wait_turn(struct group *g) {
    trace(&g->tracer, STROBE_TRACE_WAIT_TURN, g->count);
    if (GROUPS > 1) named_barrier_wait(TURN_BARRIER + group_index(), 256);
}

static __device__ __forceinline__ void pass_turn(const struct group *g) {
    if (GROUPS > 1) named_barrier_arrive(TURN_BARRIER + (group_index() + 1) % GROUPS, 256);
}

static __device__ __forceinline__ void wait_full(struct group *g, uint64_t *full, uint32_t parity, uint32_t phase) {
    trace(&g->tracer, phase, g->count);
    mbarrier_wait(full, parity);
}

/* The next tile's description and its first scores, issued. After the last tile there is nothing to wait for, and the
 * product is of whatever lies there, since one that is issued at times only would serialise them all. */
static __device__ __forceinline__ void begin_tile(struct shared *shared, struct group *g, float (&s)[SCORES]) {
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
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + stage * STAGE_STEP);
}

/* Scores of block n, which are there, become weights; K, and Q after the last block, may be written over. */
static __device__ __forceinline__ void weigh(const struct sm90_forward_params *p, struct shared *shared, struct group *g,
                                             float (&s)[SCORES], int n) {
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    release(&shared->k_empty[stage_of(g->count)]);
    if (n == g->first_block) release(&shared->q_empty[g->q_slot]);
    finish_scores(p, t, g->shown, s, warp_row(), n * KEYS);
    online_softmax(s, &g->rows, exponent_factor(p), growth_limit(p));
    if (TERMS == 2 && p->dropout) drop(p, t, s, warp_row(), n * KEYS);
}

static __device__ __forceinline__ void meet_first_block(const struct sm90_forward_params *p, struct shared *shared,
                                                        struct group *g, float (&s)[SCORES], uint32_t (&w)[SCORES / 2],
                                                        float (&o)[OUTPUTS]) {
    g->rows = (struct rows)NO_ROWS;
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(0);
    weigh(p, shared, g, s, g->end_block - 1);
    pack_weights(w, s);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) o[i] = 0;
}

/* Block n: its scores, and O += P V of the block before, are issued in the group's turn; softmax runs under that product and
 * under those of the other groups. */
static __device__ __forceinline__ void meet_block(const struct sm90_forward_params *p, struct shared *shared,
                                                  struct group *g, float (&s)[SCORES], uint32_t (&w)[SCORES / 2],
                                                  float (&o)[OUTPUTS], int n) {
    const uint32_t before = stage_of(g->count), before_parity = full_parity(g->count), now = stage_of(++g->count);
    wait_full(g, &shared->k_full[now], full_parity(g->count), STROBE_TRACE_WAIT_K);
    wait_turn(g);
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + now * STAGE_STEP);
    wait_full(g, &shared->v_full[before], before_parity, STROBE_TRACE_WAIT_V);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_values(o, w, g->v + before * STAGE_STEP);
    pass_turn(g);
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(1);
    weigh(p, shared, g, s, n);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(0);
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    release(&shared->v_empty[before]);
    pack_weights(w, s);
    rescale(o, &g->rows);
}

/* The last product of a tile, and behind it the first scores of the next, which run under the epilogue. Returns whether the
 * warp's O was finite. */
static __device__ __forceinline__ bool end_tile(const struct sm90_forward_params *p, struct shared *shared, struct group *g,
                                                float (&s)[SCORES], const uint32_t (&w)[SCORES / 2], float (&o)[OUTPUTS]) {
    const uint32_t last = stage_of(g->count), slot = slot_of(g->tiles);
    wait_full(g, &shared->v_full[last], full_parity(g->count), STROBE_TRACE_WAIT_V);
    wait_turn(g);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_values(o, w, g->v + last * STAGE_STEP);
    pass_turn(g);
    ++g->count, ++g->tiles;
    begin_tile(shared, g, s);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(1);
    trace(&g->tracer, STROBE_TRACE_EPILOGUE, g->count);
    release(&shared->v_empty[last]);
    const bool finite = epilogue(p, &shared->tile[slot], o, &g->rows, warp_row());
    __syncwarp();
    return finite;
}

/* One warp group: tile after tile, then what has to be computed again. */
static __device__ __forceinline__ void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct group g;
    float s[SCORES], o[OUTPUTS];
    uint32_t w[SCORES / 2];
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0;
    g.q = wgmma_operand(shared_address(shared->q), 0), g.k = wgmma_operand(shared_address(shared->k), 0);
    g.v = wgmma_operand(shared_address(shared->v), KV_SLAB);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    if (GROUPS > 1 && index == GROUPS - 1) named_barrier_arrive(TURN_BARRIER, 256);

    begin_tile(shared, &g, s);
    while (g.end_block > g.first_block) {
        const uint32_t slot = slot_of(g.tiles);
        meet_first_block(p, shared, &g, s, w, o);
        for (int n = g.end_block - 2; n >= g.first_block; --n) meet_block(p, shared, &g, s, w, o, n);
        if (!end_tile(p, shared, &g, s, w, o)) note_repair(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    wgmma_wait(0);
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    repair(p, *chain, warp_row());
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct sm90_forward_params p) {
    extern __shared__ unsigned char memory[];
    struct shared *shared = (struct shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v);
        for (int slot = 0; slot < Q_SLOTS; ++slot)
            mbarrier_init(&shared->q_full[slot], 1), mbarrier_init(&shared->q_empty[slot], 4);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared->k_full[stage], 1), mbarrier_init(&shared->v_full[stage], 1);
            mbarrier_init(&shared->k_empty[stage], 4 * GROUPS), mbarrier_init(&shared->v_empty[stage], 4 * GROUPS);
        }
        for (int slot = 0; slot < TILES; ++slot)
            mbarrier_init(&shared->tile_full[slot], 1), mbarrier_init(&shared->tile_empty[slot], 4 * GROUPS + 2);
        for (int warp = 0; warp < 4 * GROUPS; ++warp) shared->chain[warp] = -1;
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 64) trace_moment(&p, true);
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) loader(&p, shared);
        if (threadIdx.x == 64) query_loader(&p, shared);
        if (threadIdx.x == 96) open_counter(&p);
        if (threadIdx.x / 32 == 1) scheduler(&p, shared);
        if (threadIdx.x == 32) trace_moment(&p, false);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
