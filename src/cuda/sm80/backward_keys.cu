/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_keys.cu: dK and dV for every GPU from sm_80 on (FlashAttention-2, algorithm 2). A block of threads owns BLOCK_N
 * keys of one K/V head and walks over the packed rows, of all query heads of the group, that see some of them: the sums over
 * a group are fp32, in registers, in a fixed order.
 *
 *   for each block of BLOCK_M packed rows:   S^T = K Q^T;  P^T = 2^(S^T c - lse2);  dV = dV + (P Z)^T dO
 *                                            dP^T = V dO^T;  dS^T = P^T (Z dP^T - D);  dK = dK + dS^T Q
 *
 * A warp owns 16 keys; transposed, P and dS leave one product as accumulators and enter the next as operands, in registers.
 * Memory map: K, V [BLOCK_N][DIM], then STAGES x (Q, dO [BLOCK_M][DIM]), then STAGES x (lse2, D [BLOCK_M]). Up to DIM = 128
 * a warp keeps dK and dV; above, blocks of their own work out SLICE columns of dV or of dK each. */
#include "cuda/tile/gradients.h"
#include "cuda/tile/product.h"
#include "cuda/tile/store.h"

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
    load_packed(stage, p, t, &p->q, first, BLOCK_M, DIM, p->dim, THREADS);
    load_packed(stage + STAGE_BYTES / 2, p, t, &p->dout, first, BLOCK_M, DIM, p->dim_v, THREADS);
    for (int r = (int)threadIdx.x; r < BLOCK_M; r += THREADS) {
        const bool there = first + r < t->rows * p->group;
        const int64_t at = there ? statistic_at(p, t, place_of(p, t, first + r)) : 0;
        statistics[r] = there ? p->row_lse[at] : INFINITY;
        statistics[BLOCK_M + r] = there ? p->row_term[at] : 0;
    }
}

INLINE void meet_block(const struct params *p, const struct job *t, const unsigned char *memory, const unsigned char *stage,
                       const float *statistics, int first, struct state *state) {
    const int own = (int)threadIdx.x / 32 * 16;
    const struct patch at = {first, t->tile * BLOCK_N + own};
    const enum coverage coverage = patch_covers(p, t, at, BLOCK_M, 16);
    if (coverage == BLOCK_SKIPPED) return;
    const uint32_t bits = coverage == BLOCK_FULL ? 0xffffffffu : visible_bits(p, t, at, true, 0, M_TILES);
    if (!__any_sync(0xffffffffu, bits != 0)) return;
    const unsigned char *q = stage, *dout = stage + STAGE_BYTES / 2;
    float s[M_TILES][4], dp[M_TILES][4];
    float slope[FEATURES ? M_TILES : 1][4];
    clear(s, M_TILES), clear(dp, M_TILES);
    product_rows(s, 1, M_TILES, DIM, memory, own, q, 0, DIM);
    if (coverage != BLOCK_FULL || (FEATURES && p->scaled))
        finish_scores(p, t, at, true, 0, M_TILES, bits, s, FEATURES ? slope : NULL);
    if (wants_dk(t)) product_rows(dp, 1, M_TILES, DIM, memory + BLOCK_N * ROW_BYTES, own, dout, 0, DIM);
    weights_and_gradients(p, t, at, true, 0, M_TILES, bits, false, s, dp, slope, statistics, statistics + BLOCK_M);
    if (wants_dv(t)) product_registers(state->dv, 1, TILES, BLOCK_M, s, dout, 0, column(t), DIM);
    if (wants_dk(t)) product_registers(BOTH ? state->dk : state->dv, 1, TILES, BLOCK_M, dp, q, 0, column(t), DIM);
}

/* Packed rows that see some of the keys [j0, j1), in whole blocks. */
INLINE void row_range(const struct params *p, const struct job *t, int *first, int *end) {
    const int j0 = t->tile * BLOCK_N, j1 = j0 + BLOCK_N < t->keys ? j0 + BLOCK_N : t->keys;
    const int i0 = clamp(j0 - t->band.diagonal - t->band.right, t->rows);
    const int i1 = clamp(j1 - t->band.diagonal + t->band.left, t->rows);
    *first = i0 * p->group / BLOCK_M * BLOCK_M, *end = i1 * p->group;
}

INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, struct state *state) {
    unsigned char *stages = memory + 2 * BLOCK_N * ROW_BYTES;
    float *statistics = (float *)(stages + STAGES * STAGE_BYTES);
    int first, end, stage = 0;
    row_range(p, t, &first, &end);
    if (STAGES > 1 && first < end) load_block(p, t, stages, statistics, first);
    cp_async_commit();
    for (int at = first; at < end; at += BLOCK_M) {
        unsigned char *here = stages + stage * STAGE_BYTES;
        const float *its = statistics + stage * 2 * BLOCK_M;
        if (STAGES == 1) {
            __syncthreads();
            load_block(p, t, here, statistics, at);
            cp_async_commit();
        }
        cp_async_wait(0);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (STAGES > 1) {
            stage = (stage + 1) % STAGES;
            if (at + BLOCK_M < end)
                load_block(p, t, stages + stage * STAGE_BYTES, statistics + stage * 2 * BLOCK_M, at + BLOCK_M);
            cp_async_commit();
        }
        meet_block(p, t, memory, here, its, at, state);
    }
    cp_async_wait(0);
}

INLINE void store_one(const struct params *p, const struct job *t, const struct view *to, int columns, unsigned char *memory,
                      const float (*sums)[4], float factor) {
    __syncthreads(); /* the memory is free */
#pragma unroll
    for (int half = 0; half < 2; ++half)
        stage_row((float *)memory, (int)threadIdx.x / 32 * 16 + half * 8 + (int)threadIdx.x % 32 / 4, sums, TILES, half,
                  factor);
    __syncthreads();
    store_staged(p, t, to, false, (int64_t)t->tile * BLOCK_N, BLOCK_N, SLICE, column(t), columns, 0, (const float *)memory,
                 THREADS);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* see tile/product_mma.h */
    __shared__ struct job t;
    if (!job_of(&t, &p, BLOCK_N, false, false)) return;
    const int j0 = t.tile * BLOCK_N;
    load_rows(memory, (const element *)p.k.data + key_offset(&p.k, &t, j0), p.k.row, BLOCK_N, t.keys - j0, DIM, p.dim,
              p.k.aligned, THREADS);
    load_rows(memory + BLOCK_N * ROW_BYTES, (const element *)p.v.data + key_offset(&p.v, &t, j0), p.v.row, BLOCK_N,
              t.keys - j0, DIM, p.dim_v, p.v.aligned, THREADS);
    struct state state;
    clear(state.dv, TILES);
    clear(state.dk, BOTH ? TILES : 1);
    run(&p, &t, memory, &state);
    if (wants_dv(&t)) store_one(&p, &t, &p.dv, p.dim_v, memory, state.dv, 1);
    if (wants_dk(&t)) store_one(&p, &t, &p.dk, p.dim, memory, BOTH ? state.dk : state.dv, p.scale);
}
