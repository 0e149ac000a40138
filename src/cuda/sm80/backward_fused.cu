/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_fused.cu: dQ, dK and dV in one pass, five products, for every GPU from sm_80 on (FlashAttention-2, algorithm 2).
 * A block of threads owns KEYS keys of one K/V head and walks over the packed rows, of all query heads of the group, that
 * see some of them. dK and dV are sums in registers; dQ is summed over the blocks in fp32, by atomics and so without a fixed
 * dQ order: with STROBE_DETERMINISTIC, backward_keys.cu and backward_rows.cu run instead.
 *
 *   for each block of ROWS packed rows:   S^T = K Q^T;  dP^T = V dO^T                                product_rows
 *                                         P^T = exp(S^T - lse);  dS^T = P^T (Z dP^T - delta)       p_and_ds
 *                                         dV = dV + (P Z)^T dO;  dK = dK + dS^T Q;  dQ = dQ + dS K   product_*
 *
 *   time ->   | load Q1 dO1               | load Q2 dO2               |     two barriers a block of rows: dS^T, and where
 *             | S0 dP0 | dS0 | dV dK dQ 0 | S1 dP1 | dS1 | dV dK dQ 1 |     P_STORED also P^T, pass through shared memory
 *
 * Warps share the work three ways: of S^T, a warp has KEYS / S_N keys; of dK and dV, KEYS / K_N keys and some of the
 * columns; of dQ, ROWS / Q_M rows and some of the columns. Where the first two are the same keys, P^T stays in registers.
 *
 * Memory map: K, V [KEYS][DIM], two Q, one or two dO [ROWS][DIM], dS^T [KEYS][ROWS], P^T likewise where stored, two times
 * lse and delta [ROWS]. dQ's sums lie in runs of 16 rows x 8 columns, as accumulators do (ptx/red.h).
 *
 * Sums that are not finite may be so because of a 0 x NaN from a hidden pair. They get a recompute mark, and the other two
 * kernels compute them again, with hidden pairs left out. */
#include "cuda/ptx/red.h"
#include "cuda/sm80/gradients.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/store.h"

enum {
    THREADS = 32 * WARPS,
    ROW_BYTES = DIM * ELEMENT_BYTES,
    TILE_BYTES = KEYS * ROW_BYTES,
    Q_BYTES = ROWS * ROW_BYTES,
    PAIR_ROW_BYTES = ROWS * ELEMENT_BYTES,
    PAIR_BYTES = KEYS * PAIR_ROW_BYTES,
    P_STORED = S_N != WARPS || K_N != WARPS,
    STAGES = 2 + SKEWED,
    PAIRS = 1 + SKEWED, /* of P^T and dS^T */
    S_KEYS = KEYS / S_N,
    S_ROWS = ROWS * S_N / WARPS,
    S_DOWN = S_KEYS / 16,
    S_ACROSS = S_ROWS / 8,
    K_KEYS = KEYS / K_N,
    K_COLUMNS = DIM * K_N / WARPS,
    K_DOWN = K_KEYS / 16,
    K_ACROSS = K_COLUMNS / 8,
    Q_ROWS = ROWS / Q_M,
    Q_COLUMNS = DIM * Q_M / WARPS,
    Q_DOWN = Q_ROWS / 16,
    Q_ACROSS = Q_COLUMNS / 8,
};

static_assert(KEYS * STAGE_ROW(DIM) * 4 <= 2 * TILE_BYTES + (STAGES + DO_STAGES) * Q_BYTES,
              "results are staged in this memory");
static_assert(S_ACROSS <= 8, "a bit an element of a 16-row tile");
static_assert(!HAS_ROW_SUMS || S_ACROSS == 4, "eight lanes share eight rows, see add_to_row_sums");
static_assert(ROWS * ELEMENT_BYTES >= 128, "the swizzle needs eight chunks a row");

struct sums {
    float dv[K_DOWN * K_ACROSS][4], dk[K_DOWN * K_ACROSS][4];
};

/* Where everything lies in shared memory. */
struct map {
    unsigned char *k, *v, *q, *dout, *ds, *p;
    float *statistics;
};

INLINE struct map map_of(unsigned char *memory) {
    struct map m;
    m.k = memory, m.v = m.k + TILE_BYTES, m.q = m.v + TILE_BYTES, m.dout = m.q + STAGES * Q_BYTES;
    m.ds = m.dout + DO_STAGES * Q_BYTES, m.p = m.ds + PAIRS * PAIR_BYTES;
    m.statistics = (float *)(m.p + (P_STORED ? PAIRS * PAIR_BYTES : 0));
    return m;
}

INLINE int warp(void) { return (int)threadIdx.x / 32; }

/* The thread's number in the loop over rows. Skewed warps, and those of several blocks a multiprocessor, have no registers
 * to keep what follows from it; the others lose time by working it out anew. */
INLINE int thread_in_loop(void) { return SKEWED || BLOCKS > 1 ? thread_anew() : (int)threadIdx.x; }

INLINE void load_q(const struct params *p, const struct job *t, const struct map *m, int stage, int first) {
    load_packed(m->q + stage * Q_BYTES, p, t, &p->q, t->q, first, ROWS, DIM, p->dim, THREADS);
    if (threadIdx.x < ROWS / 2) { /* padded to whole blocks, and so aligned */
        const int which = (int)threadIdx.x / (ROWS / 4), at = (int)threadIdx.x % (ROWS / 4) * 4;
        const float *from = (which ? p->row_delta : p->row_lse) + statistic_at(p, t, first) + at;
        cp_async_16(shared_address(m->statistics + (2 * stage + which) * ROWS + at), from, 16);
    }
}

INLINE void load_dout(const struct params *p, const struct job *t, const struct map *m, int stage, int first) {
    load_packed(m->dout + stage % DO_STAGES * Q_BYTES, p, t, &p->dout, t->dout, first, ROWS, DIM, p->dim_v, THREADS);
}

/* Adds up the sums of eight lanes that have the same eight rows, a row for each of them in the end, in three exchanges of
 * halves, and adds these to the rows' sums, for dsinks. */
INLINE void add_to_row_sums(const struct params *p, const struct job *t, int first, struct row_sums *sums) {
    const int lane = thread_in_loop() % 32, own = lane / 4;
#pragma unroll
    for (int half = 4; half > 0; half /= 2)
#pragma unroll
        for (int n = 0; n < half; ++n) {
            const bool upper = own & half;
            const struct row_sums low = sums[n], high = sums[n + half]; /* copies: an index of the lane is no register */
            const float ds = __shfl_xor_sync(0xffffffffu, upper ? low.ds : high.ds, 4 * half);
            const float weights = __shfl_xor_sync(0xffffffffu, upper ? low.p : high.p, 4 * half);
            sums[n].ds = (upper ? high.ds : low.ds) + ds, sums[n].p = (upper ? high.p : low.p) + weights;
        }
    const int64_t to = statistic_at(p, t, first + own / 2 * 8 + lane % 4 * 2 + own % 2);
    atomicAdd(p->row_ds + to, sums[0].ds);
    atomicAdd(p->row_p + to, sums[0].p);
}

/* Computes P Z and dS of the warp's pairs, transposed. Returns false, with zeros, if none of them is visible. */
INLINE bool gradients_of_pairs(const struct params *p, const struct job *t, const struct map *map,
                               const struct visible_range *visible, int stage, int first, float (*s)[4], float (*dp)[4]) {
    const int key = warp() % S_N * S_KEYS, row = warp() / S_N * S_ROWS;
    const unsigned char *q = map->q + stage * Q_BYTES, *dout = map->dout + stage % DO_STAGES * Q_BYTES;
    const float *lse = map->statistics + 2 * stage * ROWS + row;
    const struct patch at = {first + row, t->tile * KEYS + key};
    const enum coverage coverage = less_masked(p, t, range_covers(visible, at.row, S_ROWS), true, at.row, S_ROWS, at.key);
    float slope[FEATURES ? SLOPES(S_DOWN * S_ACROSS) : 1][4];
    uint32_t bits[S_DOWN], some = 0;
    clear(s, S_DOWN * S_ACROSS), clear(dp, S_DOWN * S_ACROSS);
#pragma unroll
    for (int m = 0; m < S_DOWN; ++m)
        some |= bits[m] = coverage == BLOCK_FULL      ? 0xffffffffu
                          : coverage == BLOCK_PARTIAL ? visible_bits(p, t, at, true, m, S_ACROSS)
                                                      : 0;
    const bool any = coverage == BLOCK_FULL || __any_sync(0xffffffffu, some != 0);
    if (any) product_rows(s, S_DOWN, S_ACROSS, DIM, map->k, key, q, row, DIM);
    if (DO_STAGES == 1) {
        cp_async_wait(1); /* dO is there; the next Q may be on its way */
        __syncthreads();
    }
    if (!any) return false;
    if (FEATURES && p->scaled) {
#pragma unroll
        for (int m = 0; m < S_DOWN; ++m)
            finish_scores(p, t, at, true, m, S_ACROSS, bits[m], false, s + m * S_ACROSS, slope + m * SLOPES(S_ACROSS));
    }
    product_rows(dp, S_DOWN, S_ACROSS, DIM, map->v, key, dout, row, DIM);
    struct row_sums sums[HAS_ROW_SUMS ? 2 * S_ACROSS : 1];
#pragma unroll
    for (int n = 0; HAS_ROW_SUMS && n < 2 * S_ACROSS; ++n) sums[n].ds = sums[n].p = 0;
#pragma unroll
    for (int m = 0; m < S_DOWN; ++m)
        p_and_ds(p, t, at, true, m, S_ACROSS, coverage != BLOCK_FULL, bits[m], true, s + m * S_ACROSS, dp + m * S_ACROSS,
                 slope + (FEATURES ? m * SLOPES(S_ACROSS) : 0), lse, lse + ROWS, sums);
    if (HAS_ROW_SUMS && (!FEATURES || p->row_ds)) add_to_row_sums(p, t, at.row, sums);
    return true;
}

INLINE void add_to_dq(const struct params *p, const struct job *t, const unsigned char *ds, const unsigned char *k,
                      int first) {
    const int thread = thread_in_loop(), own = thread / 32, lane = thread % 32;
    const int row = own % Q_M * Q_ROWS, column = own / Q_M * Q_COLUMNS;
    float dq[Q_DOWN * Q_ACROSS][4];
    float *sums = p->dq_sum + (statistic_at(p, t, first) + row) * DIM + column * 16;
    clear(dq, Q_DOWN * Q_ACROSS);
    product_stored(dq, Q_DOWN, Q_ACROSS, KEYS, ds, row, ROWS, true, k, column, DIM);
#pragma unroll
    for (int m = 0; m < Q_DOWN; ++m)
#pragma unroll
        for (int n = 0; n < Q_ACROSS; ++n) red_add_4(sums + m * 16 * DIM + n * 128, lane, dq[m * Q_ACROSS + n]);
}

/* The first half of block n, which begins at packed row `first`: P^T and dS^T to shared memory. */
INLINE bool produce(const struct params *p, const struct job *t, const struct map *map, const struct visible_range *visible,
                    int n, int first, struct sums *sums) {
    const int own = thread_in_loop() / 32, s_key = own % S_N * S_KEYS, s_row = own / S_N * S_ROWS, stage = n % STAGES;
    float s[S_DOWN * S_ACROSS][4], dp[S_DOWN * S_ACROSS][4];
    const bool any = gradients_of_pairs(p, t, map, visible, stage, first, s, dp);
#pragma unroll
    for (int m = 0; m < S_DOWN; ++m) {
        const int key = s_key + 16 * m;
        if (P_STORED)
            keep_rows(map->p + n % PAIRS * PAIR_BYTES, PAIR_ROW_BYTES, key, s_row, s + m * S_ACROSS, S_ACROSS, 1, 1,
                      thread_in_loop() % 32);
        keep_rows(map->ds + n % PAIRS * PAIR_BYTES, PAIR_ROW_BYTES, key, s_row, dp + m * S_ACROSS, S_ACROSS, 1, 1,
                  thread_in_loop() % 32);
    }
    if (!P_STORED && any) {
        product_registers(sums->dv, S_DOWN, K_ACROSS, ROWS, s, map->dout + stage % DO_STAGES * Q_BYTES, 0, 0, DIM);
        product_registers(sums->dk, S_DOWN, K_ACROSS, ROWS, dp, map->q + stage * Q_BYTES, 0, 0, DIM);
    }
    return any;
}

/* The second half: what becomes of them. */
INLINE void consume(const struct params *p, const struct job *t, const struct map *map, int n, int first,
                    struct sums *sums) {
    const unsigned char *pairs = map->p + n % PAIRS * PAIR_BYTES, *ds = map->ds + n % PAIRS * PAIR_BYTES;
    if (P_STORED) {
        const int key = warp() % K_N * K_KEYS, column = warp() / K_N * K_COLUMNS, stage = n % STAGES;
        product_stored(sums->dv, K_DOWN, K_ACROSS, ROWS, pairs, key, ROWS, false, map->dout + stage % DO_STAGES * Q_BYTES,
                       column, DIM);
        product_stored(sums->dk, K_DOWN, K_ACROSS, ROWS, ds, key, ROWS, false, map->q + stage * Q_BYTES, column, DIM);
    }
    add_to_dq(p, t, ds, map->k, first);
}

INLINE void load_block(const struct params *p, const struct job *t, const struct map *map, int n, int first, int end) {
    if (first < end) {
        load_q(p, t, map, n % STAGES, first);
        if (DO_STAGES > 1) load_dout(p, t, map, n % STAGES, first);
    }
    cp_async_commit();
}

/* All warps go through the same steps together, with two barriers a block of rows. */
INLINE void run_together(const struct params *p, const struct job *t, const struct map *map,
                         const struct visible_range *visible, int first, int end, struct sums *sums) {
    load_block(p, t, map, 0, first, end);
    for (int n = 0, at = first, next; at < end; ++n, at = next) {
        next = next_rows(p, t, at + ROWS, ROWS, t->tile * KEYS, end);
        cp_async_wait(0);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (DO_STAGES == 1) {
            load_dout(p, t, map, 0, at);
            cp_async_commit();
        }
        load_block(p, t, map, n + 1, next, end);
        const bool any = produce(p, t, map, visible, n, at, sums);
        if (FEATURES) {
            if (!__syncthreads_or(any)) continue;
        } else {
            __syncthreads();
        }
        consume(p, t, map, n, at, sums);
    }
}

/* One barrier a block of rows. Between two barriers half of the warps consume block n and then produce block n + 1, the
 * other half do so in the other order: the exponentials of one half run beside the products of the other. */
INLINE void run_skewed(const struct params *p, const struct job *t, const struct map *map,
                       const struct visible_range *visible, int first, int end, struct sums *sums) {
    const int late = thread_in_loop() / 32 / (WARPS / 2);
    load_block(p, t, map, 0, first, end);
    load_block(p, t, map, 1, first + ROWS, end);
    cp_async_wait(1);
    __syncthreads();
    if (first < end) produce(p, t, map, visible, 0, first, sums);
    for (int n = 0, at = first; at < end; ++n, at += ROWS) {
        cp_async_wait(0);
        __syncthreads(); /* block n is produced and block n + 1 is there for all, and all are done with block n - 1 */
        load_block(p, t, map, n + 2, at + 2 * ROWS, end);
#pragma unroll 1
        for (int step = 0; step < 2; ++step) { /* a loop, so that the code of both is there once */
            if (step == late)
                consume(p, t, map, n, at, sums);
            else if (at + ROWS < end)
                produce(p, t, map, visible, n + 1, at + ROWS, sums);
        }
    }
}

INLINE void run(const struct params *p, const struct job *t, const struct map *map, struct sums *sums) {
    const struct visible_range visible = visible_range_of_keys(p, t, t->tile * KEYS + warp() % S_N * S_KEYS, S_KEYS);
    const struct visible_range whole = visible_range_of_keys(p, t, t->tile * KEYS, KEYS);
    const int first = next_rows(p, t, whole.first / ROWS * ROWS, ROWS, t->tile * KEYS, whole.end);
    if (SKEWED)
        run_skewed(p, t, map, &visible, first, whole.end, sums);
    else
        run_together(p, t, map, &visible, first, whole.end, sums);
    cp_async_wait(0);
}

/* Sets the recompute marks of the keys, for backward_keys.cu, where the sums are not finite. All threads of the block. */
INLINE void mark(const struct params *p, const struct job *t, const struct sums *sums) {
    const bool finite = are_finite(sums->dv, K_DOWN * K_ACROSS) && are_finite(sums->dk, K_DOWN * K_ACROSS);
    if (__syncthreads_or(!finite) && threadIdx.x == 0)
        mark_for_recompute(p->recompute_keys, p, t, t->tile * KEYS, KEYS, p->key_units);
}

/* Without FEATURES results are of the element type and aligned: both pass through K's and V's memory, 16 bytes a thread. */
INLINE void store_both(const struct params *p, const struct job *t, const struct map *map, const struct sums *sums) {
    const int key = warp() % K_N * K_KEYS, column = warp() / K_N * K_COLUMNS, j0 = t->tile * KEYS;
#pragma unroll
    for (int m = 0; m < K_DOWN; ++m) {
        const int row = key + 16 * m, at = m * K_ACROSS;
        keep_rows(map->k, ROW_BYTES, row, column, sums->dk + at, K_ACROSS, p->scale, p->scale, thread_anew() % 32);
        keep_rows(map->v, ROW_BYTES, row, column, sums->dv + at, K_ACROSS, 1, 1, thread_anew() % 32);
    }
    __syncthreads();
    unload_rows((element *)p->dk.data + key_offset(&p->dk, t, j0), p->dk.row, map->k, KEYS, t->keys - j0, DIM, p->dim,
                THREADS);
    unload_rows((element *)p->dv.data + key_offset(&p->dv, t, j0), p->dv.row, map->v, KEYS, t->keys - j0, DIM, p->dim_v,
                THREADS);
}

INLINE void store_one(const struct params *p, const struct job *t, const struct view *to, int columns, unsigned char *memory,
                      const float (*sums)[4], float factor) {
    const int key = warp() % K_N * K_KEYS + (int)threadIdx.x % 32 / 4, column = warp() / K_N * K_COLUMNS;
#pragma unroll
    for (int m = 0; m < K_DOWN; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            stage_row((float *)memory, DIM, key + 16 * m + 8 * half, column, sums + m * K_ACROSS, K_ACROSS, half, factor);
    __syncthreads();
    store_staged(p, t, to, false, (int64_t)t->tile * KEYS, KEYS, DIM, 0, columns, 0, (const float *)memory, THREADS);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct job t;
    if (!job_of(&t, &p, blockIdx.x, KEYS, false, false)) return;
    const struct map map = map_of(memory);
    load_rows(map.k, t.k, p.k.row, t.tile * KEYS, KEYS, t.keys, DIM, p.dim, p.k.aligned, THREADS);
    load_rows(map.v, t.v, p.v.row, t.tile * KEYS, KEYS, t.keys, DIM, p.dim_v, p.v.aligned, THREADS);
    struct sums sums;
    clear(sums.dv, K_DOWN * K_ACROSS), clear(sums.dk, K_DOWN * K_ACROSS);
    run(&p, &t, &map, &sums);
    mark(&p, &t, &sums);
    if (FEATURES) {
        store_one(&p, &t, &p.dv, p.dim_v, memory, sums.dv, 1);
        store_one(&p, &t, &p.dk, p.dim, memory, sums.dk, p.scale);
    } else {
        store_both(&p, &t, &map, &sums);
    }
}
