/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_dbias.cu: dbias of a broadcast bias in a fixed order, for STROBE_DETERMINISTIC. An element is then a sum over
 * batch entries, heads or rows, and a block of threads owns BLOCK_M x BLOCK_N elements (without rows of their own, BLOCK_N)
 * and computes the dS of all that are added to them, one after the other:
 *
 *   for each batch entry, head and block of rows:   S = Q K^T;  P = exp(S - lse);  dP = dO V^T;  sum += P (Z dP - delta)
 *
 * Two products more than the rest of the backward pass needs, and no memory. The head dim is walked through in chunks of 64
 * columns, so that one variant serves all. Heads are not packed here: the host sets group to 1 and heads_kv to the query
 * heads; kv_group is the number of them that share K and V.
 *
 * Memory map: Q, K, dO, V [64][64]. A warp owns 16 rows of S. */
#include "cuda/sm80/gradients.h"
#include "cuda/sm80/product.h"

enum {
    WARPS = 4,
    BLOCK_M = 16 * WARPS,
    N_TILES = 8,
    BLOCK_N = 8 * N_TILES,
    COLUMNS = 64,
    THREADS = 32 * WARPS,
    TILE_BYTES = BLOCK_M * COLUMNS * ELEMENT_BYTES,
};

static_assert(BLOCK_M == BLOCK_N, "tiles of rows and of keys have one size");

/* What a block of threads owns, and sums over: batch entries, heads and blocks of rows [first, end). */
struct share {
    int key, batch[2], head[2], tile[2];
};

INLINE struct share share_of(const struct params *p) {
    const int row_tiles = (p->seq_q + BLOCK_M - 1) / BLOCK_M;
    unsigned index = blockIdx.x;
    struct share s;
    s.key = take_digit(&index, p->tiles) * BLOCK_N;
    s.tile[0] = take_digit(&index, p->slices), s.tile[1] = p->bias.row ? s.tile[0] + 1 : row_tiles;
    s.head[0] = take_digit(&index, p->splits), s.head[1] = p->bias.head ? s.head[0] + 1 : p->heads_kv;
    s.batch[0] = (int)index, s.batch[1] = p->bias.batch ? s.batch[0] + 1 : p->batch;
    return s;
}

/* A chunk of columns of the tile's rows of x, whose row 0 lies at element `head`. */
INLINE void load_chunk_of(unsigned char *tile, const struct view *x, int64_t head, int first, int end, int column,
                          int columns) {
    load_rows(tile, (const element *)x->data + head + column, x->row, first, BLOCK_M, end, COLUMNS, columns - column,
              x->aligned, THREADS);
}

/* S and dP of the warp's rows, all columns. */
INLINE void multiply(const struct params *p, const struct job *t, unsigned char *memory, int row, int key, float (*s)[4],
                     float (*dp)[4]) {
    const struct place at = {0, t->kv};
    const int kv = t->kv / p->kv_group, own = (int)threadIdx.x / 32 * 16, most = p->dim > p->dim_v ? p->dim : p->dim_v;
    const int64_t k = t->batch_k * p->k.batch + t->first_key * p->k.row + kv * p->k.head;
    const int64_t v = t->batch_k * p->v.batch + t->first_key * p->v.row + kv * p->v.head;
#pragma unroll 1
    for (int column = 0; column < most; column += COLUMNS) {
        __syncthreads(); /* all are done with the chunk before */
        load_chunk_of(memory, &p->q, row_offset(&p->q, t, at), row, t->rows, column, p->dim);
        load_chunk_of(memory + TILE_BYTES, &p->k, k, key, t->keys, column, p->dim);
        load_chunk_of(memory + 2 * TILE_BYTES, &p->dout, row_offset(&p->dout, t, at), row, t->rows, column, p->dim_v);
        load_chunk_of(memory + 3 * TILE_BYTES, &p->v, v, key, t->keys, column, p->dim_v);
        cp_async_commit();
        cp_async_wait(0);
        __syncthreads();
        product_rows(s, 1, N_TILES, COLUMNS, memory, own, memory + TILE_BYTES, 0, COLUMNS);
        product_rows(dp, 1, N_TILES, COLUMNS, memory + 2 * TILE_BYTES, own, memory + 3 * TILE_BYTES, 0, COLUMNS);
    }
}

/* Adds the dS of one head of one batch entry to the sum; t is complete and seen by all threads. */
INLINE void add_tile(const struct params *p, const struct job *t, unsigned char *memory, int row, int key, float (*sum)[4]) {
    const int own = row + (int)threadIdx.x / 32 * 16;
    const struct patch at = {own, key};
    float s[N_TILES][4], dp[N_TILES][4], slope[N_TILES][4], lse[2] = {INFINITY, INFINITY}, delta[2] = {0, 0};
    const struct visible_range whole = visible_range_of(p, t, row, BLOCK_M);
    if (range_covers(&whole, key, BLOCK_N) == BLOCK_SKIPPED) return; /* causal skip, the same for all warps */
    const uint32_t bits = visible_bits(p, t, at, false, 0, N_TILES);
    clear(s, N_TILES), clear(dp, N_TILES);
    multiply(p, t, memory, row, key, s, dp);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = own + half * 8 + (int)threadIdx.x % 32 / 4, h = t->kv;
        if (i >= t->rows) continue;
        const int64_t from = ((int64_t)t->b * (p->heads_kv / p->kv_group) + h / p->kv_group) * p->packed_rows +
                             (int64_t)i * p->kv_group + h % p->kv_group;
        lse[half] = p->row_lse[from], delta[half] = p->row_delta[from];
    }
    if (p->scaled) finish_scores(p, t, at, false, 0, N_TILES, bits, false, s, slope);
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) slope[n][x] = 1; /* bias is added after softcap */
    p_and_ds(p, t, at, false, 0, N_TILES, true, bits, false, s, dp, slope, lse, delta, NULL);
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) sum[n][x] += dp[n][x];
}

INLINE void store_tile(const struct params *p, int64_t at, int row, int key, const float (*sum)[4]) {
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const struct patch patch = {row + (int)threadIdx.x / 32 * 16, key};
            const struct pair pair = pair_of(patch, false, 0, n, x / 2, x % 2);
            if (pair.packed < p->seq_q && pair.j < p->seq_k)
                store_any(p->dbias.data, p->dbias.dtype, at + pair.packed * p->dbias.row + pair.j, sum[n][x]);
        }
}

/* For a bias without rows of its own: sums over the warp's rows, then over the warps. */
INLINE void store_columns(const struct params *p, int64_t at, int key, const float (*sum)[4], float *stage) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, column = (int)threadIdx.x;
    __syncthreads(); /* the memory is free */
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float all = sum[n][e] + sum[n][2 + e];
            for (int d = 4; d < 32; d *= 2) all += __shfl_xor_sync(0xffffffffu, all, d);
            if (lane < 4) stage[warp * BLOCK_N + 8 * n + 2 * lane + e] = all;
        }
    __syncthreads();
    if (column >= BLOCK_N || key + column >= p->seq_k) return;
    float all = 0;
    for (int w = 0; w < WARPS; ++w) all += stage[w * BLOCK_N + column];
    store_any(p->dbias.data, p->dbias.dtype, at + key + column, all);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct job t;
    const struct share own = share_of(&p);
    float sum[N_TILES][4];
    clear(sum, N_TILES);
    for (int b = own.batch[0]; b < own.batch[1]; ++b)
        for (int h = own.head[0]; h < own.head[1]; ++h) {
            __syncthreads(); /* all are done with t */
            if (threadIdx.x == 0) t.b = b, t.kv = h, job_sequence(&t, &p);
            __syncthreads();
            for (int tile = own.tile[0]; tile < own.tile[1]; ++tile) add_tile(&p, &t, memory, tile * BLOCK_M, own.key, sum);
        }
    const int64_t at = own.batch[0] * p.dbias.batch + own.head[0] * p.dbias.head;
    if (p.bias.row)
        store_tile(&p, at, own.tile[0] * BLOCK_M, own.key, sum);
    else
        store_columns(&p, at, own.key, sum, (float *)memory);
}
