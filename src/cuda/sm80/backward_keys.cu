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
#include "cuda/tile/nonfinite.h"
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
    load_packed(stage, p, t, &p->q, t->q, first, BLOCK_M, DIM, p->dim, THREADS);
    load_packed(stage + STAGE_BYTES / 2, p, t, &p->dout, t->dout, first, BLOCK_M, DIM, p->dim_v, THREADS);
    for (int n = (int)threadIdx.x; n < BLOCK_M / 2; n += THREADS) { /* padded to whole blocks, and so aligned */
        const int which = n / (BLOCK_M / 4), at = n % (BLOCK_M / 4) * 4;
        const float *from = (which ? p->row_term : p->row_lse) + statistic_at(p, t, first) + at;
        cp_async_16(shared_address(statistics + which * BLOCK_M + at), from, 16);
    }
}

/* What hold_back left out of the product of x with the rows of `from`. */
INLINE void add_held(const struct params *p, const struct job *t, const struct view *from, int columns, int first,
                     const float (*x)[4], const uint32_t *held, float (*sums)[4]) {
#pragma unroll 1
    for (int local = 0; local < BLOCK_M; ++local) {
        if (!(held[local / 32] >> (local % 32) & 1)) continue;
        const element *row = (const element *)from->data + row_offset(from, t, place_of(p, t, first + local));
        release_held(sums, 1, TILES, x, M_TILES, local, row + column(t), columns - column(t));
    }
}

/* careful: every warp comes to the barriers of hold_back, whether it sees something of the block or not. */
INLINE void meet_block(const struct params *p, const struct job *t, const unsigned char *memory, unsigned char *stage,
                       const float *statistics, const struct sight *sight, int first, bool careful, uint32_t *held,
                       struct state *state) {
    const int own = (int)threadIdx.x / 32 * 16;
    const struct patch at = {first, t->tile * BLOCK_N + own};
    const enum coverage coverage = sight_covers(sight, first, BLOCK_M);
    if (coverage == BLOCK_SKIPPED && !careful) return;
    const uint32_t bits = coverage == BLOCK_FULL      ? 0xffffffffu
                          : coverage == BLOCK_PARTIAL ? visible_bits(p, t, at, true, 0, M_TILES)
                                                      : 0;
    if (!careful && !__any_sync(0xffffffffu, bits != 0)) return;
    unsigned char *q = stage, *dout = stage + STAGE_BYTES / 2;
    float s[M_TILES][4], dp[M_TILES][4];
    float slope[FEATURES ? M_TILES : 1][4];
    clear(s, M_TILES), clear(dp, M_TILES);
    product_rows(s, 1, M_TILES, DIM, memory, own, q, 0, DIM);
    if (FEATURES && p->scaled) finish_scores(p, t, at, true, 0, M_TILES, bits, s, slope);
    if (wants_dk(t)) product_rows(dp, 1, M_TILES, DIM, memory + BLOCK_N * ROW_BYTES, own, dout, 0, DIM);
    weights_and_gradients(p, t, at, true, 0, M_TILES, coverage != BLOCK_FULL, bits, false, s, dp, slope, statistics,
                          statistics + BLOCK_M);
    if (careful) {
        hold_back(dout, BLOCK_M, DIM, held, THREADS);
        if (wants_dv(t)) add_held(p, t, &p->dout, p->dim_v, first, s, held, state->dv);
        hold_back(q, BLOCK_M, DIM, held, THREADS);
        if (wants_dk(t)) add_held(p, t, &p->q, p->dim, first, dp, held, BOTH ? state->dk : state->dv);
    }
    if (wants_dv(t)) product_registers(state->dv, 1, TILES, BLOCK_M, s, dout, 0, column(t), DIM);
    if (wants_dk(t)) product_registers(BOTH ? state->dk : state->dv, 1, TILES, BLOCK_M, dp, q, 0, column(t), DIM);
}

INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, bool careful, uint32_t *held,
                struct state *state) {
    unsigned char *stages = memory + 2 * BLOCK_N * ROW_BYTES;
    float *statistics = (float *)(stages + STAGES * STAGE_BYTES);
    const struct sight sight = sight_of_keys(p, t, t->tile * BLOCK_N + (int)threadIdx.x / 32 * 16, 16);
    const struct sight whole = sight_of_keys(p, t, t->tile * BLOCK_N, BLOCK_N);
    const int first = whole.first / BLOCK_M * BLOCK_M, end = whole.end;
    int stage = 0;
    clear(state->dv, TILES);
    clear(state->dk, BOTH ? TILES : 1);
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
        meet_block(p, t, memory, here, its, &sight, at, careful, held, state);
    }
    cp_async_wait(0);
    __syncthreads(); /* the memory is free */
}

INLINE void store_one(const struct params *p, const struct job *t, const struct view *to, int columns, unsigned char *memory,
                      const float (*sums)[4], float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        stage_row((float *)memory, SLICE, (int)threadIdx.x / 32 * 16 + half * 8 + (int)threadIdx.x % 32 / 4, 0, sums, TILES,
                  half, factor);
    __syncthreads();
    store_staged(p, t, to, false, (int64_t)t->tile * BLOCK_N, BLOCK_N, SLICE, column(t), columns, 0, (const float *)memory,
                 THREADS);
    __syncthreads();
}

INLINE void store(const struct params *p, const struct job *t, unsigned char *memory, const struct state *state) {
    if (wants_dv(t)) store_one(p, t, &p->dv, p->dim_v, memory, state->dv, 1);
    if (wants_dk(t)) store_one(p, t, &p->dk, p->dim, memory, BOTH ? state->dk : state->dv, p->scale);
}

INLINE void load_keys(const struct params *p, const struct job *t, unsigned char *memory) {
    const int j0 = t->tile * BLOCK_N;
    load_rows(memory, t->k, p->k.row, j0, BLOCK_N, t->keys, DIM, p->dim, p->k.aligned, THREADS);
    load_rows(memory + BLOCK_N * ROW_BYTES, t->v, p->v.row, j0, BLOCK_N, t->keys, DIM, p->dim_v, p->v.aligned, THREADS);
}

/* As in forward.cu. */
static __device__ __noinline__ void work_carefully(const struct params *p, const struct job *t, unsigned char *memory,
                                                   uint32_t *held) {
    struct state state;
    run(p, t, memory, true, held, &state);
    store(p, t, memory, &state);
}

INLINE void work(const struct params *p, const struct job *t, unsigned char *memory, bool careful, uint32_t *held) {
    load_keys(p, t, memory);
    if (!careful) {
        struct state state;
        run(p, t, memory, false, held, &state);
        careful = __syncthreads_or(!are_finite(state.dv, TILES) || !are_finite(state.dk, BOTH ? TILES : 1));
        if (!careful) store(p, t, memory, &state);
    }
    if (careful) work_carefully(p, t, memory, held);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* see tile/product_mma.h */
    __shared__ uint32_t held[2];
    __shared__ struct job t;
    if (p.jobs && !p.again_keys[0]) return;
    for (unsigned index = blockIdx.x;;) {
        if (job_of(&t, &p, index, BLOCK_N, false, false) &&
            (!p.jobs || is_marked(p.again_keys, &p, &t, t.tile * BLOCK_N, p.key_units)))
            work(&p, &t, memory, p.jobs != 0, held);
        index += gridDim.x;
        if (index >= (unsigned)p.jobs) return;
        __syncthreads(); /* all are done with the job and the memory */
    }
}
