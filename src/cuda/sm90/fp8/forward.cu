/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu (fp8): FlashAttention-3's forward in FP8 (Shah et al., 2024, section 3.3) on Hopper: e4m3 Q, K, V with scales,
 * sums promoted to fp32 after every block of keys. It has the structure, the roles and the schedule of
 * sm90/forward/forward.cu, whose headers it takes; what is different:
 *
 *     S = Q K^T                         raw sums of e4m3; a row's c is scale log2 e, times Q's and K's scales
 *     P = 2^(S c - m + 8)               in e4m3's range                                                  softmax.h
 *     T = P [V | 1]                     anew for each block: the accumulator of an FP8 product keeps about 14 bits, over one
 *                                       block of keys and not over the sequence
 *     O = (O + T scale_v) a, l alike    fp32; l is the product's column of ones, so that V = ones gives exactly 1
 *     V^T                               made of V by two producer warps                                  transpose.h
 *
 *     loader       | Q | Q' | K0 | K1 V0 | K2 V1 | ...        one thread
 *     scheduler    | tile 0 | tile 1 |            | tile 2 |  one warp
 *     transposers  |              V0^T   V1^T   ...           two warps
 *     consumer 0   | QK0 softmax0 | QK1 PV0, softmax1, O += T0 | ... | PVlast QK0', O / l -> global | ...
 *     consumer 1   |     QK0 softmax0 | QK1 PV0, softmax1 | ...
 *
 * Shared memory: Q [64][128 bytes], stages of K and V [KEYS][128], of V^T [HEAD_DIM + 8][128], 128-byte swizzle; narrower
 * rows arrive with zeros behind them. Registers of a consumer: S KEYS/2, P KEYS/8, T HEAD_DIM/2 + 4, O HEAD_DIM/2 + 2.
 * Notebook: docs/kernels/sm90_fp8.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/ptx/wgmma_fp8.h"
#include "cuda/sm90/forward/exact_row.h"
#include "cuda/sm90/forward/load.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/score_terms.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/store.h"
#include "cuda/sm90/fp8/scales.h"
#include "cuda/sm90/fp8/softmax.h"
#include "cuda/sm90/fp8/transpose.h"
#include "cuda/sm90/trace.h"

enum { PARTS = HEAD_DIM / 2 + 4 }; /* accumulators of T: with the column of ones and seven of zeros */

#if HEAD_DIM == 64
#define ACCUMULATE_STEP wgmma_e4m3_rs_72
#else
#define ACCUMULATE_STEP wgmma_e4m3_rs_136
#endif

/* Issues S = Q K^T. */
INLINE void issue_scores(float (&s)[SCORES], uint64_t q, uint64_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 32; ++step) wgmma_e4m3_ss_128(s, q + 2 * step, k + 2 * step, step > 0);
    wgmma_commit();
}

/* Issues T = P [V | 1]. */
INLINE void issue_accumulate(float (&t)[PARTS], const uint32_t (&packed)[KEYS / 8], uint64_t vt) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 32; ++step) ACCUMULATE_STEP(t, &packed[4 * step], vt + 2 * step, step > 0);
    wgmma_commit();
}

INLINE int group_index(void) { return threadIdx.x / 128 - 1; }

/* The first of the warp's sixteen rows in a tile. */
INLINE int warp_row(void) { return (threadIdx.x / 32 - 4) * 16; }

/* The warp is done with what the barrier guards. */
INLINE void release(uint64_t *empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}

#define K_STEP      (KV_SLAB / 16) /* from stage to stage in a descriptor */
#define VT_STEP     (VT_BYTES / 16)
#define Q_SLOT_STEP (GROUP_BYTES / 16)

/* What a thread of a consumer warp group keeps beside its registers of S, P, T and O. */
struct consumer_state {
    uint64_t q, k, vt;          /* descriptors of slot 0 and stage 0 */
    uint32_t count;             /* blocks processed; from it follows the stage of the next one */
    uint32_t tiles;             /* tiles processed */
    uint32_t q_slot;            /* of the tile in hand */
    int first_block, end_block; /* of the tile in hand; none after the last tile */
    struct keys shown;          /* to all rows of the warp */
    float row_scale[2];         /* of Q's rows, times the scale of scores and, without score terms, log2 e */
    float v_scale;              /* of the block whose P V has been or will be issued */
    float l[2];
    struct rows rows;
    struct tracer tracer;
};

/* Ping-pong: the group waits until it may issue its products, then lets the next group do so. */
INLINE void ping_pong_wait(void) { named_barrier_wait(PING_PONG_BARRIER + group_index(), 256); }
INLINE void ping_pong_arrive(void) { named_barrier_arrive(PING_PONG_BARRIER + (group_index() + 1) % GROUPS, 256); }

/* Reads the next tile's description and issues its first scores. After the last tile there is nothing to wait for, and the
 * product is of stale data: ptxas would serialise all products if this one stood behind a condition. */
INLINE void begin_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES]) {
    const uint32_t slot = slot_of(g->tiles), piece = piece_of(g->tiles, group_index()), stage = stage_of(g->count);
    const struct tile *t = &shared->tile[slot];
    mbarrier_wait(&shared->tile_full[slot], slot_parity(g->tiles));
    g->first_block = t->first_block, g->end_block = t->end_block;
    g->shown = keys_of_warp(t, warp_row());
    g->q_slot = q_slot_of(piece);
    if (g->end_block > g->first_block) {
        mbarrier_wait(&shared->q_full[g->q_slot], q_parity(piece));
        mbarrier_wait(&shared->k_full[stage], full_parity(g->count));
    }
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + stage * K_STEP);
}

/* The scores of block n, which the tensor cores have finished, become P. K, and Q after the last block, may be overwritten.
 */
INLINE void softmax_of_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                             float (&s)[SCORES], int n, float k_scale) {
    trace(&g->tracer, STROBE_TRACE_MAXIMUM, g->count);
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    float c[2] = {g->row_scale[0] * k_scale, g->row_scale[1] * k_scale};
    release(&shared->k_empty[stage_of(g->count)]);
    if (n == g->first_block) release(&shared->q_empty[g->q_slot]);
    if (HAS_SCORE_TERMS) {
#pragma unroll
        for (int v = 0; v < SCORES; ++v) s[v] *= c[v / 2 % 2];
        apply_score_terms(p, t, g->shown, s, warp_row(), n * KEYS);
        c[0] = c[1] = (float)LOG2_E;
    }
    mask_band(t, g->shown, s, warp_row(), n * KEYS);
    online_softmax_fp8(s, &g->rows, c);
}

/* O += T scale_v, l += T's column of ones, which the first lane of four holds; then both are rescaled where m has grown. */
INLINE void promote(struct consumer_state *g, float (&o)[OUTPUTS], const float (&t)[PARTS], float v_scale) {
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) o[v] = fmaf(t[v], v_scale, o[v]);
    g->l[0] += t[OUTPUTS], g->l[1] += t[OUTPUTS + 2];
}

INLINE void rescale_all(struct consumer_state *g, float (&o)[OUTPUTS]) {
    rescale(o, &g->rows);
    if (g->rows.grown) g->l[0] *= g->rows.factor[0], g->l[1] *= g->rows.factor[1];
}

/* lse takes the sum of the weights as they were, O that of the rounded ones, which V has been multiplied with: the epilogue
 * divides by the first, so O is multiplied by their ratio. The first lane of four holds the column of ones. */
INLINE void normalise(struct consumer_state *g, float (&o)[OUTPUTS]) {
    float ratio[2];
    const float unit = 1.0f / (1 << WEIGHTS_LOG2); /* weights of 1 at the maximum again: lse then has no logarithm of 2^8 */
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float rounded = __shfl_sync(0xffffffffu, g->l[i], (int)threadIdx.x % 32 & 28);
        float sum = g->rows.sum[i] *= unit;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        ratio[i] = rounded == 0 ? 0 : sum / rounded;
        g->rows.shift[i] += WEIGHTS_LOG2;
    }
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) o[v] *= ratio[v / 2 % 2];
}

/* The tile's first block: its scores were issued by begin_tile(), and there is no O yet. */
INLINE void first_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                        float (&s)[SCORES], uint32_t (&packed)[KEYS / 8], float (&o)[OUTPUTS]) {
    const struct tile *t = &shared->tile[slot_of(g->tiles)];
    const int n = g->end_block - 1, row = t->row + warp_row() + (int)threadIdx.x % 32 / 4;
    const float2 scales = shared->scales[stage_of(g->count)];
    const float factor = HAS_SCORE_TERMS ? 1 : p->exponent;
    g->row_scale[0] = scale_of_row(p, t, row) * factor, g->row_scale[1] = scale_of_row(p, t, row + 8) * factor;
    g->rows = (struct rows)NO_ROWS;
    g->l[0] = g->l[1] = 0;
    wgmma_wait(0);
    softmax_of_block(p, shared, g, s, n, scales.x);
    g->v_scale = scales.y;
    pack_weights(packed, s);
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) o[i] = 0;
}

/* Block n. When ping-pong allows it, the group issues the block's scores and T = P V of the block before; the softmax runs
 * under that product and under those of the other group. */
INLINE void next_block(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                       float (&s)[SCORES], uint32_t (&packed)[KEYS / 8], float (&t)[PARTS], float (&o)[OUTPUTS], int n) {
    const uint32_t before = stage_of(g->count), before_parity = full_parity(g->count), now = stage_of(++g->count);
    mbarrier_wait(&shared->k_full[now], full_parity(g->count));
    const float2 scales = shared->scales[now];
    ping_pong_wait();
    trace(&g->tracer, STROBE_TRACE_QK, g->count);
    issue_scores(s, g->q + g->q_slot * Q_SLOT_STEP, g->k + now * K_STEP);
    mbarrier_wait(&shared->vt_full[before], before_parity);
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate(t, packed, g->vt + before * VT_STEP);
    ping_pong_arrive();
    trace(&g->tracer, STROBE_TRACE_WAIT_QK, g->count);
    wgmma_wait(1); /* the scores; P V goes on */
    softmax_of_block(p, shared, g, s, n, scales.x);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(0); /* P V */
    trace(&g->tracer, STROBE_TRACE_EXPONENTIAL, g->count);
    release(&shared->vt_empty[before]);
    pack_weights(packed, s);
#pragma unroll
    for (int v = 0; v < PARTS; ++v) wgmma_keep(t[v]);
    promote(g, o, t, g->v_scale);
    rescale_all(g, o);
    g->v_scale = scales.y;
}

/* The last P V of a tile, the first scores of the next tile, and the epilogue, which runs under these scores. Returns
 * whether the warp's O was finite. */
INLINE bool end_tile(const struct sm90_forward_params *p, struct shared *shared, struct consumer_state *g,
                     float (&s)[SCORES], const uint32_t (&packed)[KEYS / 8], float (&t)[PARTS], float (&o)[OUTPUTS]) {
    const uint32_t last = stage_of(g->count), slot = slot_of(g->tiles);
    mbarrier_wait(&shared->vt_full[last], full_parity(g->count));
    ping_pong_wait();
    trace(&g->tracer, STROBE_TRACE_PV, g->count);
    issue_accumulate(t, packed, g->vt + last * VT_STEP);
    ping_pong_arrive();
    ++g->count, ++g->tiles;
    begin_tile(p, shared, g, s);
    trace(&g->tracer, STROBE_TRACE_WAIT_PV, g->count);
    wgmma_wait(1); /* P V; the scores go on */
    trace(&g->tracer, STROBE_TRACE_EPILOGUE, g->count);
    release(&shared->vt_empty[last]);
#pragma unroll
    for (int v = 0; v < PARTS; ++v) wgmma_keep(t[v]);
    promote(g, o, t, g->v_scale);
    normalise(g, o);
    const bool finite = epilogue(p, &shared->tile[slot], o, &g->rows, warp_row());
    __syncwarp();
    return finite;
}

/* One warp group: tile after tile, then the exact rows. */
INLINE void consumer(const struct sm90_forward_params *p, struct shared *shared, int index) {
    struct consumer_state g;
    float s[SCORES], t[PARTS], o[OUTPUTS];
    uint32_t packed[KEYS / 8]; /* P */
    int32_t *chain = &shared->chain[threadIdx.x / 32 - 4];
    g.count = g.tiles = 0;
    g.q = wgmma_operand(shared_address(shared->q), 0), g.k = wgmma_operand(shared_address(shared->k), 0);
    g.vt = wgmma_operand(shared_address(shared->vt), 0);
    g.tracer = tracer_of(p, STROBE_TRACE_CONSUMER + index, threadIdx.x % 128 == 0);
    if (index == GROUPS - 1) named_barrier_arrive(PING_PONG_BARRIER, 256);

    begin_tile(p, shared, &g, s);
    while (g.end_block > g.first_block) {
        const uint32_t slot = slot_of(g.tiles);
        first_block(p, shared, &g, s, packed, o);
        for (int n = g.end_block - 2; n >= g.first_block; --n) next_block(p, shared, &g, s, packed, t, o, n);
        const bool finite = end_tile(p, shared, &g, s, packed, t, o);
        if (!finite) mark_for_recompute(p->workspace, shared->tile[slot].number, chain, warp_row());
        release(&shared->tile_empty[slot]);
    }
    wgmma_wait(0);
    trace(&g.tracer, STROBE_TRACE_END, g.count);
    recompute_marked(p, *chain, warp_row());
}

INLINE void init_barriers(struct shared *s) {
    for (int slot = 0; slot < Q_SLOTS; ++slot) mbarrier_init(&s->q_full[slot], 1), mbarrier_init(&s->q_empty[slot], 4);
    for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(&s->k_full[stage], 1), mbarrier_init(&s->k_empty[stage], 4 * GROUPS);
        mbarrier_init(&s->v_full[stage], 1), mbarrier_init(&s->v_empty[stage], TRANSPOSERS);
        mbarrier_init(&s->vt_full[stage], TRANSPOSERS), mbarrier_init(&s->vt_empty[stage], 4 * GROUPS);
    }
    for (int slot = 0; slot < TILES; ++slot)
        mbarrier_init(&s->tile_full[slot], 1), mbarrier_init(&s->tile_empty[slot], 4 * GROUPS + 1 + TRANSPOSERS);
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
    write_ones(shared);
    __syncthreads();
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) open_tile_counter(&p), producer_qkv(&p, shared);
        if (threadIdx.x / 32 == 1) scheduler(&p, shared);
        if (threadIdx.x / 32 >= 2) transposer(&p, shared, (int)threadIdx.x / 32 - 2);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
