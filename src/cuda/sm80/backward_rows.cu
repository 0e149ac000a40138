/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_rows.cu: dQ, and the sums of dbias, for every GPU from sm_80 on (FlashAttention-2, algorithm 2, turned round:
 * rows outside, keys inside). A block of threads owns BLOCK_M packed rows and all of their keys, so that dQ needs no atomics
 * and no memory, and is summed in a fixed dQ order; dK and dV come from backward_keys.cu. The price is that both kernels
 * compute S and dP: seven products where five would do with atomics.
 *
 *   for each block of BLOCK_N keys:   S = Q K^T;  P = exp(S - lse);  dP = dO V^T;  dS = P (Z dP - delta);  dQ = dQ + dS K
 *
 * Memory map: Q, dO [BLOCK_M][DIM], then STAGES x (K, V [BLOCK_N][DIM]). DIM holds dim and dim_v; dQ is computed in slices
 * of SLICE columns, by blocks of their own where there are several. A warp owns 16 rows. */
#include "cuda/device/lanes.h"
#include "cuda/sm80/gradients.h"
#include "cuda/sm80/nonfinite.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/store.h"

enum {
    BLOCK_M = 16 * WARPS,
    BLOCK_N = 8 * N_TILES,
    THREADS = 32 * WARPS,
    TILES = SLICE / 8,
    ROW_BYTES = DIM * ELEMENT_BYTES,
    STAGE_BYTES = 2 * BLOCK_N * ROW_BYTES,
};

static_assert(BLOCK_M * STAGE_ROW(SLICE) * 4 <= 2 * BLOCK_M * ROW_BYTES + STAGES * STAGE_BYTES,
              "results are staged in this memory");

struct state {
    float dq[TILES][4];
    float lse[2], delta[2];
    struct row_sums sums[2];
};

INLINE int warp_row(const struct job *t) { return t->tile * BLOCK_M + (int)threadIdx.x / 32 * 16; }

INLINE void load_block(const struct params *p, const struct job *t, unsigned char *stage, int j0) {
    load_rows(stage, t->k, p->k.row, j0, BLOCK_N, t->keys, DIM, p->dim, p->k.aligned, THREADS);
    load_rows(stage + STAGE_BYTES / 2, t->v, p->v.row, j0, BLOCK_N, t->keys, DIM, p->dim_v, p->v.aligned, THREADS);
}

INLINE void start(const struct params *p, const struct job *t, struct state *state) {
    clear(state->dq, TILES);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int packed = warp_row(t) + half * 8 + (int)threadIdx.x % 32 / 4;
        const int64_t at = statistic_at(p, t, packed);
        state->lse[half] = p->row_lse[at], state->delta[half] = p->row_delta[at];
        state->sums[half].ds = state->sums[half].p = 0;
    }
}

/* One block of keys. After the first pass every warp takes part in the barriers of rewrite_tile, whether any of its pairs is
 * visible or not. */
INLINE void process_block(const struct params *p, const struct job *t, const unsigned char *memory, unsigned char *stage,
                          const struct visible_range *visible, int j0, int pass, struct state *state) {
    const struct patch at = {warp_row(t), j0};
    const int own = thread_anew() / 32 * 16;
    const enum coverage coverage = less_masked(p, t, range_covers(visible, j0, BLOCK_N), false, at.row, 16, j0);
    if (coverage == BLOCK_SKIPPED && pass == AS_IT_IS) return;
    const uint32_t bits = coverage == BLOCK_FULL      ? 0xffffffffu
                          : coverage == BLOCK_PARTIAL ? visible_bits(p, t, at, false, 0, N_TILES)
                                                      : 0;
    if (pass == AS_IT_IS && !__any_sync(0xffffffffu, bits != 0)) return;
    const bool again = pass != AS_IT_IS;
    float s[N_TILES][4], dp[N_TILES][4];
    float slope[FEATURES ? SLOPES(N_TILES) : 1][4];
    clear(s, N_TILES), clear(dp, N_TILES);
    product_rows_in_pass(again, s, 1, N_TILES, DIM, memory, own, stage, 0, DIM);
    if (FEATURES && p->scaled) finish_scores(p, t, at, false, 0, N_TILES, bits, false, s, slope);
    product_rows_in_pass(again, dp, 1, N_TILES, DIM, memory + BLOCK_M * ROW_BYTES, own, stage + STAGE_BYTES / 2, 0, DIM);
    p_and_ds(p, t, at, false, 0, N_TILES, coverage != BLOCK_FULL, bits, t->slice == 0 && pass == AS_IT_IS, s, dp, slope,
             state->lse, state->delta, state->sums);
    /* K needs the second pass alone: where it is not finite and visible, dS is NaN. */
    if (pass != AS_IT_IS) rewrite_tile(stage, BLOCK_N * DIM, pass, NULL, THREADS);
    product_registers_in_pass(again, state->dq, 1, TILES, BLOCK_N, dp, stage, 0, t->slice * SLICE, DIM);
}

INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, int pass, struct state *state) {
    const struct visible_range visible = visible_range_of(p, t, warp_row(t), 16);
    const int rows_end = t->rows * p->group, last = t->tile * BLOCK_M + BLOCK_M - 1;
    const int begin = clamp(band_first(&t->band, place_of(p, t, t->tile * BLOCK_M).i), t->keys) / BLOCK_N * BLOCK_N;
    const int end = (int)band_end(&t->band, place_of(p, t, last < rows_end ? last : rows_end - 1).i);
    const int first = next_keys(p, t, t->tile * BLOCK_M, BLOCK_M, begin, end);
    unsigned char *stages = memory + 2 * BLOCK_M * ROW_BYTES;
    start(p, t, state);
    if (STAGES > 1 && first < end) load_block(p, t, stages, first);
    cp_async_commit();
    int stage = 0;
    for (int j0 = first, next; j0 < end; j0 = next) {
        unsigned char *at = stages + stage * STAGE_BYTES;
        next = next_keys(p, t, t->tile * BLOCK_M, BLOCK_M, j0 + BLOCK_N, end);
        if (STAGES == 1) {
            __syncthreads(); /* all are done with the block before */
            load_block(p, t, at, j0);
            cp_async_commit();
        }
        cp_async_wait(0);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (STAGES > 1) {
            stage = (stage + 1) % STAGES;
            if (next < end) load_block(p, t, stages + stage * STAGE_BYTES, next);
            cp_async_commit();
        }
        process_block(p, t, memory, at, &visible, j0, pass, state);
    }
    cp_async_wait(0);
    __syncthreads();
}

INLINE void store(const struct params *p, const struct job *t, unsigned char *memory, const struct state *state) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        stage_row((float *)memory, SLICE, (int)threadIdx.x / 32 * 16 + half * 8 + (int)threadIdx.x % 32 / 4, 0, state->dq,
                  TILES, half, p->scale);
    __syncthreads();
    store_staged(p, t, &p->dq, true, (int64_t)t->tile * BLOCK_M, BLOCK_M, SLICE, t->slice * SLICE, p->dim, 0,
                 (const float *)memory, THREADS);
}

/* For dsinks; in a fixed order. */
INLINE void store_row_sums(const struct params *p, const struct job *t, const struct state *state) {
    if (!HAS_ROW_SUMS || !p->row_ds || t->slice) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float ds = lanes_sum(state->sums[half].ds, 4), weights = lanes_sum(state->sums[half].p, 4);
        const int64_t to = statistic_at(p, t, warp_row(t) + half * 8 + (int)threadIdx.x % 32 / 4);
        if (threadIdx.x % 4 == 0) p->row_ds[to] = ds, p->row_p[to] = weights;
    }
}

/* Nearly always the first pass is the last. With recompute marks backward_fused.cu was the first pass, and found the sums
 * not finite, so that work begins with the second. dbias is summed in the first pass of either. */
INLINE void work(const struct params *p, const struct job *t, unsigned char *memory) {
    struct state state;
    load_packed(memory, p, t, &p->q, t->q, t->tile * BLOCK_M, BLOCK_M, DIM, p->dim, THREADS);
    load_packed(memory + BLOCK_M * ROW_BYTES, p, t, &p->dout, t->dout, t->tile * BLOCK_M, BLOCK_M, DIM, p->dim_v, THREADS);
#pragma unroll 1
    for (int pass = p->jobs ? FINITE : AS_IT_IS; pass <= FINITE; ++pass) {
        run(p, t, memory, pass, &state);
        if (pass == AS_IT_IS && !__syncthreads_or(!are_finite(state.dq, TILES))) break;
    }
    store_row_sums(p, t, &state);
    store(p, t, memory, &state);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct job t;
    if (p.jobs && !p.recompute_rows[0]) return;
    for (unsigned index = blockIdx.x;;) {
        if (job_of(&t, &p, index, BLOCK_M, true, true) &&
            (!p.jobs || is_marked(p.recompute_rows, &p, &t, t.tile * BLOCK_M, p.row_units)))
            work(&p, &t, memory);
        index += gridDim.x;
        if (index >= (unsigned)p.jobs) return;
        __syncthreads(); /* all are done with the job and the memory */
    }
}
