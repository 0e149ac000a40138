/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_keys.cu: dK and dV for every GPU from sm_80 on (FlashAttention-2, algorithm 2). A block of threads owns BLOCK_N
 * keys of one K/V head and walks over the packed rows, of all query heads of the group, that see some of them: the sums over
 * a group are fp32, in registers, in a fixed order.
 *
 *   for each block of BLOCK_M packed rows:   S^T = K Q^T;  P^T = exp(S^T - lse);  dV = dV + (P Z)^T dO
 *                                            dP^T = V dO^T;  dS^T = P^T (Z dP^T - delta);  dK = dK + dS^T Q
 *
 * A warp owns 16 keys; transposed, P and dS leave one product as accumulators and enter the next as operands, in registers.
 * Memory map: K, V [BLOCK_N][DIM], then STAGES x (Q, dO [BLOCK_M][DIM]), then STAGES x (lse, delta [BLOCK_M]). Up to DIM =
 * 128 a warp keeps dK and dV; above, blocks of their own work out SLICE columns of dV or of dK each. */
#include "cuda/sm80/gradients.h"
#include "cuda/sm80/nonfinite.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/store.h"

enum {
    BLOCK_N = 16 * WARPS,
    BLOCK_M = 8 * M_TILES,
    THREADS = 32 * WARPS,
    TILES = SLICE / 8,
    ROW_BYTES = DIM * ELEMENT_BYTES,
    STAGE_BYTES = 2 * BLOCK_M * ROW_BYTES,
    SLICES = DIM / SLICE, /* of dV, and as many of dK */
    BOTH = SLICES == 1 && DIM <= 128,
};

static_assert(BLOCK_N * STAGE_ROW(SLICE) * 4 <= 2 * BLOCK_N * ROW_BYTES + STAGES * STAGE_BYTES,
              "results are staged in this memory");

struct state {
    float dv[TILES][4];
    float dk[BOTH ? TILES : 1][4]; /* without BOTH, dv is dK in the blocks that work it out */
};

INLINE bool wants_dk(const struct job *t) { return BOTH || t->slice >= SLICES; }
INLINE bool wants_dv(const struct job *t) { return BOTH || t->slice < SLICES; }
INLINE int column(const struct job *t) { return BOTH ? 0 : t->slice % SLICES * SLICE; }

INLINE void load_block(const struct params *p, const struct job *t, unsigned char *stage, float *statistics, int first) {
    load_packed(stage, p, t, &p->q, t->q, first, BLOCK_M, DIM, p->dim, THREADS);
    load_packed(stage + STAGE_BYTES / 2, p, t, &p->dout, t->dout, first, BLOCK_M, DIM, p->dim_v, THREADS);
    for (int n = (int)threadIdx.x; n < BLOCK_M / 2; n += THREADS) { /* padded to whole blocks, and so aligned */
        const int which = n / (BLOCK_M / 4), at = n % (BLOCK_M / 4) * 4;
        const float *from = (which ? p->row_delta : p->row_lse) + statistic_at(p, t, first) + at;
        cp_async_16(shared_address(statistics + which * BLOCK_M + at), from, 16);
    }
}

/* Weights for the passes that look for infinities: 1 where a pair counts. */
INLINE void to_ones(float (*s)[4]) {
#pragma unroll
    for (int n = 0; n < M_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[n][x] = s[n][x] == 0 ? 0 : 1;
}

/* One block of rows. After the first pass every warp takes part in the barriers of rewrite_tile, whether any of its pairs is
 * visible or not. */
INLINE void process_block(const struct params *p, const struct job *t, const unsigned char *memory, unsigned char *stage,
                          const float *statistics, const struct visible_range *visible, int first, int pass, int *found,
                          struct state *state) {
    const int own = (int)threadIdx.x / 32 * 16;
    const struct patch at = {first, t->tile * BLOCK_N + own};
    const enum coverage coverage =
        less_masked(p, t, range_covers(visible, first, BLOCK_M), true, first, BLOCK_M, at.key);
    if (coverage == BLOCK_SKIPPED && pass == AS_IT_IS) return;
    const uint32_t bits = coverage == BLOCK_FULL      ? 0xffffffffu
                          : coverage == BLOCK_PARTIAL ? visible_bits(p, t, at, true, 0, M_TILES)
                                                      : 0;
    if (pass == AS_IT_IS && !__any_sync(0xffffffffu, bits != 0)) return;
    unsigned char *q = stage, *dout = stage + STAGE_BYTES / 2;
    const bool again = pass != AS_IT_IS;
    float s[M_TILES][4], dp[M_TILES][4];
    float slope[FEATURES ? SLOPES(M_TILES) : 1][4];
    clear(s, M_TILES), clear(dp, M_TILES);
    product_rows_in_pass(again, s, 1, M_TILES, DIM, memory, own, q, 0, DIM);
    if (FEATURES && p->scaled) finish_scores(p, t, at, true, 0, M_TILES, bits, false, s, slope);
    if (wants_dk(t))
        product_rows_in_pass(again, dp, 1, M_TILES, DIM, memory + BLOCK_N * ROW_BYTES, own, dout, 0, DIM);
    p_and_ds(p, t, at, true, 0, M_TILES, coverage != BLOCK_FULL, bits, false, s, dp, slope, statistics,
             statistics + BLOCK_M, NULL);
    if (pass != AS_IT_IS) { /* Q needs one pass: where it is not finite and visible, dS is NaN */
        rewrite_tile(dout, BLOCK_M * DIM, pass, found, THREADS);
        rewrite_tile(q, BLOCK_M * DIM, FINITE, NULL, THREADS);
        if (pass > FINITE) to_ones(s);
    }
    if (wants_dv(t)) product_registers_in_pass(again, state->dv, 1, TILES, BLOCK_M, s, dout, 0, column(t), DIM);
    if (wants_dk(t))
        product_registers_in_pass(again, BOTH ? state->dk : state->dv, 1, TILES, BLOCK_M, dp, q, 0, column(t), DIM);
}

INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, int pass, int *found,
                struct state *state) {
    unsigned char *stages = memory + 2 * BLOCK_N * ROW_BYTES;
    float *statistics = (float *)(stages + STAGES * STAGE_BYTES);
    const struct visible_range visible = visible_range_of_keys(p, t, t->tile * BLOCK_N + (int)threadIdx.x / 32 * 16, 16);
    const struct visible_range whole = visible_range_of_keys(p, t, t->tile * BLOCK_N, BLOCK_N);
    const int end = whole.end, key = t->tile * BLOCK_N;
    const int first = next_rows(p, t, whole.first / BLOCK_M * BLOCK_M, BLOCK_M, key, end);
    int stage = 0;
    clear(state->dv, TILES);
    clear(state->dk, BOTH ? TILES : 1);
    if (STAGES > 1 && first < end) load_block(p, t, stages, statistics, first);
    cp_async_commit();
    for (int at = first, next; at < end; at = next) {
        unsigned char *here = stages + stage * STAGE_BYTES;
        const float *its = statistics + stage * 2 * BLOCK_M;
        next = next_rows(p, t, at + BLOCK_M, BLOCK_M, key, end);
        if (STAGES == 1) {
            __syncthreads();
            load_block(p, t, here, statistics, at);
            cp_async_commit();
        }
        cp_async_wait(0);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (STAGES > 1) {
            stage = (stage + 1) % STAGES;
            if (next < end) load_block(p, t, stages + stage * STAGE_BYTES, statistics + stage * 2 * BLOCK_M, next);
            cp_async_commit();
        }
        process_block(p, t, memory, here, its, &visible, at, pass, found, state);
    }
    cp_async_wait(0);
    __syncthreads(); /* the memory is free */
}

INLINE void store_one(const struct params *p, const struct job *t, const struct view *to, int columns, unsigned char *memory,
                      const float (*sums)[4], float factor, int pass) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        stage_row((float *)memory, SLICE, thread_anew() / 32 * 16 + half * 8 + thread_anew() % 32 / 4, 0, sums, TILES, half,
                  factor);
    __syncthreads();
    const int64_t first = (int64_t)t->tile * BLOCK_N;
    const float *stage = (const float *)memory;
    if (pass <= FINITE)
        store_staged(p, t, to, false, first, BLOCK_N, SLICE, column(t), columns, 0, stage, THREADS);
    else
        add_infinities(p, t, to, false, first, BLOCK_N, SLICE, column(t), columns, 0, stage,
                       pass == POSITIVE ? INFINITY : -INFINITY, THREADS);
    __syncthreads();
}

INLINE void store(const struct params *p, const struct job *t, unsigned char *memory, int pass, const struct state *state) {
    if (pass > FINITE) {
        store_one(p, t, &p->dv, p->dim_v, memory, state->dv, 1, pass);
        return;
    }
    if (wants_dv(t)) store_one(p, t, &p->dv, p->dim_v, memory, state->dv, 1, pass);
    if (wants_dk(t)) store_one(p, t, &p->dk, p->dim, memory, BOTH ? state->dk : state->dv, p->scale, pass);
}

INLINE void load_keys(const struct params *p, const struct job *t, unsigned char *memory) {
    const int j0 = t->tile * BLOCK_N;
    load_rows(memory, t->k, p->k.row, j0, BLOCK_N, t->keys, DIM, p->dim, p->k.aligned, THREADS);
    load_rows(memory + BLOCK_N * ROW_BYTES, t->v, p->v.row, j0, BLOCK_N, t->keys, DIM, p->dim_v, p->v.aligned, THREADS);
}

/* Nearly always the first pass is the last. With recompute marks backward_fused.cu was the first pass, and found the sums
 * not finite, so that work begins with the second. */
INLINE void work(const struct params *p, const struct job *t, unsigned char *memory, int *found) {
    const int last = wants_dv(t) ? NEGATIVE : FINITE;
#pragma unroll 1
    for (int pass = p->jobs ? FINITE : AS_IT_IS; pass <= last; ++pass) {
        if (!pass_is_needed(pass, *found)) continue;
        struct state state;
        load_keys(p, t, memory);
        run(p, t, memory, pass, found, &state);
        if (pass == AS_IT_IS && __syncthreads_or(!are_finite(state.dv, TILES) || !are_finite(state.dk, BOTH ? TILES : 1)))
            continue;
        store(p, t, memory, pass, &state);
        if (pass == AS_IT_IS) return;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ int found;
    __shared__ struct job t;
    if (p.jobs && !p.recompute_keys[0]) return;
    for (unsigned index = blockIdx.x;;) {
        if (threadIdx.x == 0) found = 0;
        if (job_of(&t, &p, index, BLOCK_N, false, false) &&
            (!p.jobs || is_marked(p.recompute_keys, &p, &t, t.tile * BLOCK_N, p.key_units)))
            work(&p, &t, memory, &found);
        index += gridDim.x;
        if (index >= (unsigned)p.jobs) return;
        __syncthreads(); /* all are done with the job and the memory */
    }
}
