/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu: FlashAttention-2's forward (Dao, "FlashAttention-2", 2023, algorithm 1) for every GPU from sm_80 on: mma.sync
 * for fp16 and bf16, fused multiply-adds for fp32. Compiled once for each element type and head dim (cuda/variants.cmake).
 *
 *   a block of threads owns BLOCK_M packed query rows of one K/V head (device/job.h)
 *     for each block of BLOCK_N keys:      K and V by cp.async, one block ahead of the products
 *       S = Q K^T;  softcap, bias, ALiBi, mask                                 product_rows, finish_scores
 *       m' = max(m, S);  P = 2^(S c - m' c);  rescale by a = 2^((m - m') c): l = l a + sum P, O = O a     online_softmax
 *       O = O + P V                                                            product_registers
 *     O / l and lse = m + ln l are written once; where O is not finite, further passes come first (nonfinite.h)
 *
 *   time ->   | load K1 V1        | load K2 V2        |          a warp owns 16 M_TILES rows and keeps S, P, O in registers,
 *             | S0 softmax0 P0 V0 | S1 softmax1 P1 V1 |          one barrier a block of keys
 *
 * Memory map: Q [BLOCK_M][DIM], then STAGES x (K [BLOCK_N][DIM], V [BLOCK_N][DIM_V]), swizzled (load.h). Of a DIM above 512
 * the columns beyond are tiles of their own, behind the others'. Over a cache (cache.h), where rows of keys lie follows;
 * with two stages, numbers that are widened lie in the second one's place, in two halves, and the first has the elements.
 * With WARPS_N > 1 (few rows: decoding) warps share the rows and split each block's keys; their parts are merged at the end.
 * With splits > 1 (split-KV) blocks of threads share the rows and split the keys; device/merge.cu merges their parts.
 * Tiles, registers and measured figures of each variant: docs/kernels/cuda.md. */
#include "cuda/device/lse.h"
#include "cuda/sm80/load.h"
#include "cuda/sm80/nonfinite.h"
#include "cuda/sm80/product.h"
#include "cuda/sm80/softmax.h"
#include "cuda/sm80/store.h"

enum {
    BLOCK_M = 16 * M_TILES * WARPS_M,
    BLOCK_N = 8 * N_TILES * WARPS_N,
    THREADS = 32 * WARPS_M * WARPS_N,
    PARTS = (N_TILES + 7) / 8, /* of a warp's keys, whose bits fit a word */
    PART_TILES = N_TILES / PARTS,
    MAIN = DIM > 512 ? 512 : DIM, /* columns of the tiles of Q and K; addresses want a power of two */
    TAIL = DIM - MAIN,            /* and of those behind them */
    Q_BYTES = BLOCK_M * DIM * ELEMENT_BYTES,
    K_BYTES = BLOCK_N * DIM * ELEMENT_BYTES,
    V_BYTES = BLOCK_N * DIM_V * ELEMENT_BYTES,
    STAGE_BYTES = K_BYTES + V_BYTES,
};

#include "cuda/sm80/cache.h"

static_assert(BLOCK_M * STAGE_ROW(DIM_V) * 4 <= Q_BYTES + STAGES * STAGE_BYTES, "results are staged in this memory");

INLINE int warp_m(int warp) { return warp % WARPS_M; }
INLINE int warp_n(int warp) { return warp / WARPS_M; }
INLINE int warp_row(const struct job *t, int warp) { return t->tile * BLOCK_M + warp_m(warp) * 16 * M_TILES; }

/* The packed rows of the tile. */
INLINE void load_q(const struct params *p, const struct job *t, unsigned char *memory) {
    load_packed(memory, p, t, &p->q, t->q, t->tile * BLOCK_M, BLOCK_M, MAIN, p->dim, THREADS);
    if (TAIL > 0)
        load_packed(memory + BLOCK_M * MAIN * ELEMENT_BYTES, p, t, &p->q, t->q + MAIN, t->tile * BLOCK_M, BLOCK_M, TAIL,
                    p->dim - MAIN, THREADS);
}

/* K and V of the block at j0. */
INLINE void load_block(const struct params *p, const struct job *t, unsigned char *stage, int j0, bool wants_v) {
    const int column = t->slice * DIM_V;
    load_rows(stage, t->k, p->k.row, j0, BLOCK_N, t->keys, MAIN, p->dim, p->k.aligned, THREADS);
    if (TAIL > 0)
        load_rows(stage + BLOCK_N * MAIN * ELEMENT_BYTES, t->k + MAIN, p->k.row, j0, BLOCK_N, t->keys, TAIL, p->dim - MAIN,
                  p->k.aligned, THREADS);
    if (wants_v)
        load_rows(stage + K_BYTES, t->v + column, p->v.row, j0, BLOCK_N, t->keys, DIM_V, p->dim_v - column, p->v.aligned,
                  THREADS);
}

/* The same of a block of a cache, or the next step of it. stored: numbers that are widened, in this order too. */
INLINE void gather_block(enum stored_step step, const struct params *p, const struct job *t, unsigned char *stage,
                         unsigned char *stored, const struct key_rows *rows, int j0, bool wants_v) {
    const bool whole = j0 + BLOCK_N <= t->keys && !any_missing(rows);
#if CACHE == 3
    gather_pages(stage, p, rows, whole);
#else
    const int dtype = p->k.dtype, bytes = stored_bytes(dtype);
    const struct gathered k = {rows->k, 0, p->dim, p->k.aligned != 0, whole};
    const struct gathered rest = {rows->k, MAIN, p->dim, p->k.aligned != 0, whole};
    const struct gathered v = {rows->v, t->slice * DIM_V, p->dim_v, p->v.aligned != 0, whole};
    gather_tile(step, stage, stored, &k, MAIN, dtype);
    if (TAIL > 0)
        gather_tile(step, stage + BLOCK_N * MAIN * ELEMENT_BYTES, stored + BLOCK_N * MAIN * bytes, &rest, TAIL, dtype);
    if (wants_v) gather_tile(step, stage + K_BYTES, stored + BLOCK_N * DIM * bytes, &v, DIM_V, dtype);
#endif
}

/* Whether V is the first columns of K, whose tile then serves for both: multi-head latent attention. */
INLINE bool v_lies_in_k(const struct params *p) {
    const struct view *k = &p->k, *v = &p->v;
    return TAIL > 0 && v->data == k->data && v->dtype == k->dtype && v->batch == k->batch && v->row == k->row &&
           v->head == k->head;
}

/* Part n of the warp's patch: parts of the keys are counted first, then 16-row tiles. */
INLINE struct patch part_of(struct patch at, int n) {
    const struct patch part = {at.row, at.key + n % PARTS * 8 * PART_TILES};
    return part;
}

/* Sets weights that dropout leaves out to 0. Its factor 1 / (1 - p) is part of the division by l. */
INLINE void apply_dropout(const struct params *p, const struct job *t, struct patch at, float (*s)[4]) {
#pragma unroll
    for (int part = 0; part < M_TILES * PARTS; ++part) {
        const uint32_t bits = kept_bits(p, t, part_of(at, part), false, part / PARTS, PART_TILES);
#pragma unroll
        for (int n = 0; n < PART_TILES; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                s[part * PART_TILES + n][x] = bits >> bit_of(n, x) & 1 ? s[part * PART_TILES + n][x] : 0;
    }
}

/* S += Q K^T of a warp's rows and keys. */
INLINE void multiply_q_k(bool again, float (*s)[4], const unsigned char *q, const unsigned char *k, int row, int key) {
    product_rows_in_pass(again, s, M_TILES, N_TILES, MAIN, q, row, k, key, MAIN);
    if (TAIL > 0)
        product_rows_in_pass(again, s, M_TILES, N_TILES, TAIL, q + BLOCK_M * MAIN * ELEMENT_BYTES, row,
                             k + BLOCK_N * MAIN * ELEMENT_BYTES, key, TAIL);
}

/* One block of keys, at j0: scores, mask, online softmax, O += P V. Causal skip: not if no row of the warp sees a key. rows:
 * of a cache, else NULL. v_in_k: K's tile is V's too. */
INLINE void process_block(const struct params *p, const struct job *t, const unsigned char *q, const unsigned char *stage,
                          const struct key_rows *rows, bool v_in_k, const struct visible_range *visible, int warp, int j0,
                          int pass, struct state *state) {
    const int key = warp_n(warp) * 8 * N_TILES;
    const struct patch at = {warp_row(t, warp), j0 + key};
    enum coverage coverage = less_masked(p, t, range_covers(visible, at.key, 8 * N_TILES), false, at.row, 16 * M_TILES,
                                         at.key);
    if (coverage == BLOCK_SKIPPED) return;
    const bool missing = CACHE && rows && any_missing(rows);
    if (missing) coverage = BLOCK_PARTIAL;
    uint32_t bits[M_TILES * PARTS], any = 0;
#pragma unroll
    for (int n = 0; n < M_TILES * PARTS; ++n) {
        bits[n] = coverage == BLOCK_FULL ? 0xffffffffu : visible_bits(p, t, part_of(at, n), false, n / PARTS, PART_TILES);
        if (missing) bits[n] &= ~missing_bits(rows, key + n % PARTS * 8 * PART_TILES, PART_TILES);
        any |= bits[n];
    }
    if (!__any_sync(0xffffffffu, any != 0)) return;

    const bool again = pass != AS_IT_IS;
    float s[M_TILES * N_TILES][4];
    clear(s, M_TILES * N_TILES);
    multiply_q_k(again, s, q, stage, warp_m(warp) * 16 * M_TILES, key);
    if (CACHE && rows && has_scales(p) && p->cache.k_scale && pass <= FINITE)
        scale_scores(k_scales(rows) + key, M_TILES, N_TILES, s);
    if (coverage != BLOCK_FULL || (FEATURES && p->scaled)) {
#pragma unroll
        for (int n = 0; n < M_TILES * PARTS; ++n)
            finish_scores(p, t, part_of(at, n), false, n / PARTS, PART_TILES, bits[n], pass > FINITE, s + n * PART_TILES,
                          NULL);
    }
    online_softmax(s, state, p->exponent);
    if (FEATURES && p->dropout) apply_dropout(p, t, at, s);
    if (CACHE && rows && has_scales(p) && p->cache.v_scale && pass <= FINITE)
        scale_weights(v_scales(rows) + key, M_TILES, N_TILES, weight_unit(p), s);
    if (TAIL > 0 && v_in_k)
        product_registers_in_pass(again, state->o, M_TILES, COLUMN_TILES, 8 * N_TILES, s, stage, key, t->slice * DIM_V,
                                  MAIN);
    else
        product_registers_in_pass(again, state->o, M_TILES, COLUMN_TILES, 8 * N_TILES, s, stage + K_BYTES, key, 0, DIM_V);
}

/* The keys that the loop goes over: those that some row of the tile sees, in whole blocks, cut to this split (split-KV). */
INLINE void key_range(const struct params *p, const struct job *t, int64_t *first, int64_t *end) {
    const int rows_end = t->rows * p->group, last = t->tile * BLOCK_M + BLOCK_M - 1;
    *first = clamp(band_first(&t->band, place_of(p, t, t->tile * BLOCK_M).i), t->keys) / BLOCK_N * BLOCK_N;
    *end = band_end(&t->band, place_of(p, t, last < rows_end ? last : rows_end - 1).i);
    if (p->splits == 1) return;
    const int64_t split_first = (int64_t)t->split * p->split_keys, split_end = split_first + p->split_keys;
    *first = *first > split_first ? *first : split_first;
    *end = *end < split_end ? *end : split_end;
}

/* The first block of keys from j on of which the tile sees something, where masks are known. */
INLINE int next_seen(const struct params *p, const struct job *t, int j, int64_t end) {
    return next_keys(p, t, t->tile * BLOCK_M, BLOCK_M, j, (int)end);
}

/* Copies the block at j0 to stage number `stage`; over a cache, numbers that are widened to their half of the second one. */
INLINE void copy_block(const struct params *p, const struct job *t, unsigned char *stages, int stage,
                       const struct key_rows *rows, bool wants_v, int j0) {
    if (!is_cache(p))
        load_block(p, t, stages + stage * STAGE_BYTES, j0, wants_v);
    else if (STAGES == 1)
        gather_block(COPY_AND_WIDEN, p, t, stages, NULL, rows, j0, wants_v);
    else
        gather_block(COPY_STORED, p, t, stages + stage * STAGE_BYTES, stages + STAGE_BYTES + stage * (STAGE_BYTES / 2), rows,
                     j0, wants_v);
}

/* A block of keys that is there for all threads, changed for a pass after the first. */
INLINE void rewrite_block(unsigned char *tile, int pass, int *found) {
    if (pass == AS_IT_IS) return;
    rewrite_tile(tile + K_BYTES, BLOCK_N * DIM_V, pass, found, THREADS);
    if (pass > FINITE) rewrite_tile(tile, BLOCK_N * DIM, NOTHING, NULL, THREADS); /* scores of 0: all weights are equal */
}
#if CACHE != 3
INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, int pass, int *found,
                struct state *state) {
    unsigned char *stages = memory + Q_BYTES;
    struct key_rows *all_rows = (struct key_rows *)(stages + STAGES * STAGE_BYTES);
    const int warp = (int)threadIdx.x / 32;
    const struct visible_range visible = visible_range_of(p, t, warp_row(t, warp), 16 * M_TILES);
    const bool cache = is_cache(p), widens = STAGES > 1 && cache && is_stored(p);
    const uint32_t reciprocal = cache ? reciprocal_of_page(p) : 0;
    const bool v_in_k = pass == AS_IT_IS && v_lies_in_k(p);
    int64_t first, end;
    key_range(p, t, &first, &end);
    first = next_seen(p, t, (int)first, end);
    int next = CACHE ? next_seen(p, t, (int)first + BLOCK_N, end) : 0;
    clear(state->o, M_TILES * COLUMN_TILES);
#pragma unroll
    for (int row = 0; row < 2 * M_TILES; ++row) state->m[row] = pass <= FINITE ? -INFINITY : 0, state->l[row] = 0;
    if (cache) {
        put_rows(all_rows, p, t, (int)first, find_page(all_rows, p, t, (int)first, reciprocal), reciprocal);
        put_rows(all_rows + 1, p, t, next, find_page(all_rows + 1, p, t, next, reciprocal), reciprocal);
        __syncthreads();
    }
    load_q(p, t, memory);
    if (STAGES > 1 && first < end) copy_block(p, t, stages, 0, all_rows, !v_in_k, (int)first);
    cp_async_commit();
    int stage = 0, slot = 0;
    for (int j0 = (int)first, after; j0 < end; j0 = next, next = after) {
        unsigned char *tile = stages + (widens ? 0 : stage * STAGE_BYTES);
        const struct key_rows *rows = cache ? all_rows + slot : NULL;
        if (!CACHE) next = next_seen(p, t, j0 + BLOCK_N, end);
        after = CACHE ? next_seen(p, t, next + BLOCK_N, end) : next;
        slot = (slot + 1) % KEY_ROWS_SLOTS;
        struct key_rows *const behind = all_rows + (slot + 1) % KEY_ROWS_SLOTS; /* of the block that is done with */
        const int page = cache ? find_page(behind, p, t, after, reciprocal) : 0;
        if (STAGES == 1) {
            __syncthreads(); /* all are done with the block before */
            copy_block(p, t, stages, 0, rows, !v_in_k, j0);
            cp_async_commit();
        }
        cp_async_wait(0);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (STAGES > 1) {
            if (widens)
                gather_block(WIDEN_COPIED, p, t, tile, stages + STAGE_BYTES + stage * (STAGE_BYTES / 2), rows, j0, !v_in_k);
            stage = (stage + 1) % STAGES;
            if (next < end) copy_block(p, t, stages, stage, all_rows + slot, !v_in_k, next);
            cp_async_commit();
            if (widens) __syncthreads(); /* elements are there for all */
        }
        rewrite_block(tile, pass, found);
        process_block(p, t, memory, tile, rows, v_in_k, &visible, warp, j0, pass, state);
        if (cache) {
            put_rows(behind, p, t, after, page, reciprocal);
            cp_async_commit();
        }
    }
    cp_async_wait(0);
    __syncthreads();
}
#else
/* The blocks of keys, in pages of elements: what has to be known of the blocks ahead is worked out before the products of a
 * block, and nothing of it is kept over them, because their operands want the registers. */
INLINE void run(const struct params *p, const struct job *t, unsigned char *memory, int pass, int *found,
                struct state *state) {
    enum { SLOTS = KEY_ROWS_32_SLOTS };
    static_assert(STAGES == 2 && SLOTS == 4, "the number of a block tells its stage and its slot");
    __shared__ uint32_t reciprocal;
    unsigned char *const stages = memory + Q_BYTES;
    struct key_rows *const rows = (struct key_rows *)(stages + STAGES * STAGE_BYTES);
    const struct visible_range visible = visible_range_of(p, t, warp_row(t, (int)threadIdx.x / 32), 16 * M_TILES);
    int64_t from, to;
    key_range(p, t, &from, &to);
    const int first = (int)from, end = (int)to;
    clear(state->o, M_TILES * COLUMN_TILES);
#pragma unroll
    for (int row = 0; row < 2 * M_TILES; ++row) state->m[row] = pass <= FINITE ? -INFINITY : 0, state->l[row] = 0;
    if (threadIdx.x == 0) reciprocal = reciprocal_of_page(p);
    __syncthreads();
#pragma unroll 1
    for (unsigned n = 0; n < SLOTS - 1; ++n)
        find_page(&rows[((unsigned)first / BLOCK_N + n) % SLOTS], p, t, first + (int)n * BLOCK_N, reciprocal);
    cp_async_commit();
    cp_async_wait(0);
#pragma unroll 1
    for (unsigned n = 0; n < SLOTS - 2; ++n)
        put_rows(&rows[((unsigned)first / BLOCK_N + n) % SLOTS], p, t, first + (int)n * BLOCK_N, reciprocal);
    __syncthreads();
    load_q(p, t, memory);
    if (first < end)
        copy_block(p, t, stages, first / BLOCK_N % STAGES, &rows[(unsigned)first / BLOCK_N % SLOTS], true, first);
    cp_async_commit();
    for (int j0 = first; j0 < end; j0 += BLOCK_N) {
        const unsigned number = (unsigned)j0 / BLOCK_N;
        cp_async_wait(0);
        put_rows(&rows[(number + 2) % SLOTS], p, t, j0 + 2 * BLOCK_N, reciprocal);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (j0 + BLOCK_N < end)
            copy_block(p, t, stages, (int)((number + 1) % STAGES), &rows[(number + 1) % SLOTS], true, j0 + BLOCK_N);
        find_page(&rows[(number + 3) % SLOTS], p, t, j0 + 3 * BLOCK_N, reciprocal);
        cp_async_commit();
        unsigned char *const tile = stages + number % STAGES * STAGE_BYTES;
        rewrite_block(tile, pass, found);
        process_block(p, t, memory, tile, &rows[number % SLOTS], false, &visible, (int)threadIdx.x / 32, j0, pass, state);
    }
    cp_async_wait(0);
    __syncthreads();
}
#endif

#if WARPS_N > 1
/* Merges the warps' parts over disjoint keys into warp 0's. Memory: for every other warp [4 COLUMN_TILES + 4][32 lanes]. */
INLINE void merge_warps(float *memory, struct state *state, float c) {
    enum { PART = (4 * COLUMN_TILES + 4) * 32 };
    const int lane = (int)threadIdx.x % 32, part = warp_n((int)threadIdx.x / 32);
    float *own = memory + (part - 1) * PART + lane;
    if (part > 0) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int x = 0; x < 4; ++x) own[(4 * n + x) * 32] = state->o[n][x];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            own[(4 * COLUMN_TILES + row) * 32] = state->m[row];
            own[(4 * COLUMN_TILES + 2 + row) * 32] = state->l[row];
        }
    }
    __syncthreads();
    if (part > 0) return;
    for (int w = 0; w < WARPS_N - 1; ++w) {
        const float *other = memory + w * PART + lane;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float before = state->m[row], its = other[(4 * COLUMN_TILES + row) * 32], m = fmaxf(before, its);
            const float keep = weight_of(before, m, c), add = weight_of(its, m, c);
            state->m[row] = m;
            state->l[row] = state->l[row] * keep + other[(4 * COLUMN_TILES + 2 + row) * 32] * add;
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    state->o[n][2 * row + e] = state->o[n][2 * row + e] * keep + other[(4 * n + 2 * row + e) * 32] * add;
        }
    }
}
#endif

/* Where a row's shift ends, and its lse, at 2.3e38: of biases near the least number, as finfo.min, the shift in base 2 is
 * infinite, here or in a backward, and lse and all gradients were NaN. */
#define MOST_SHIFT 0x1.fp127f

/* The end of a row. The sink is added here; for parts of a split, by the merge. */
INLINE struct row_end finish_row(const struct params *p, float m, float l, int h) {
    const float *sink = p->sinks && p->splits == 1 ? p->sinks + h : NULL;
    const float shift = m == -INFINITY ? 0 : fminf(fmaxf(m * p->exponent, -MOST_SHIFT), MOST_SHIFT);
    const float rest = m == -INFINITY || fabsf(shift) == MOST_SHIFT ? 0 : fmaf(m, p->exponent, -shift);
    struct row_end end = end_of_row(shift, rest * (float)LN_2, p->to_natural, l, sink);
    if (p->dropout) end.factor *= p->place.keep_scale;
    if (CACHE && has_scales(p) && p->cache.v_scale) end.factor /= weight_unit(p);
    return end;
}

/* Stores lse of row (m, half); returns what O is multiplied by. */
INLINE float end_row(const struct params *p, const struct job *t, const struct state *state, int row) {
    float l = state->l[row];
    l += __shfl_xor_sync(0xffffffffu, l, 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    const int thread = thread_anew(), own = thread / 32 % WARPS_M * 16 * M_TILES + thread % 32 / 4;
    const int packed = t->tile * BLOCK_M + own + row / 2 * 16 + row % 2 * 8;
    const bool there = packed < t->rows * p->group;
    const struct place at = place_of(p, t, there ? packed : 0);
    const struct row_end end = finish_row(p, state->m[row], l, at.h);
    if (there && p->lse.data && t->slice == 0 && threadIdx.x % 4 == 0) {
        float *lse = (float *)p->lse.data + row_offset(&p->lse, t, at) + t->split * p->split_lse;
        lse[0] = end.lse;
        if (p->splits > 1) lse[p->splits * p->split_lse] = end.rest;
    }
    return end.factor;
}

#if !FEATURES
/* Stores rows of the element type that are aligned, not packed and not parts: 16 bytes a thread, through Q's memory. */
INLINE void store_plain(const struct params *p, const struct job *t, unsigned char *memory, const struct state *state,
                        const float *factor) {
    const int row = t->tile * BLOCK_M, column = t->slice * DIM_V;
#pragma unroll
    for (int m = 0; m < M_TILES; ++m)
        keep_rows(memory, DIM_V * ELEMENT_BYTES, warp_m(thread_anew() / 32) * 16 * M_TILES + 16 * m, 0,
                  state->o + m * COLUMN_TILES, COLUMN_TILES, factor[2 * m], factor[2 * m + 1], thread_anew() % 32);
    __syncthreads();
    unload_rows((element *)p->out.data + row_offset(&p->out, t, place_of(p, t, row)) + column, p->out.row, memory, BLOCK_M,
                t->rows - row, DIM_V, p->dim_v - column, THREADS);
}
#endif

INLINE void finish(const struct params *p, const struct job *t, unsigned char *memory, int pass, struct state *state) {
    const int warp = thread_anew() / 32;
    float factor[2 * M_TILES];
#if WARPS_N > 1
    merge_warps((float *)(memory + Q_BYTES), state, p->exponent);
    __syncthreads();
    if (warp_n(warp) == 0)
#endif
#pragma unroll
        for (int row = 0; row < 2 * M_TILES; ++row) factor[row] = pass <= FINITE ? end_row(p, t, state, row) : 1;
#if !FEATURES
    if (pass <= FINITE && p->group == 1 && p->splits == 1 && p->out.aligned && p->out.dtype == ELEMENT_DTYPE &&
        p->dim_v % CHUNK == 0) {
        store_plain(p, t, memory, state, factor);
        return;
    }
#endif
    if (warp_n(warp) == 0)
#pragma unroll
        for (int row = 0; row < 2 * M_TILES; ++row)
            stage_row((float *)memory, DIM_V,
                      warp_m(warp) * 16 * M_TILES + row / 2 * 16 + row % 2 * 8 + thread_anew() % 32 / 4, 0,
                      state->o + row / 2 * COLUMN_TILES, COLUMN_TILES, row % 2, factor[row]);
    __syncthreads();
    const int64_t first = (int64_t)t->tile * BLOCK_M, part = t->split * p->split_out;
    const float *stage = (const float *)memory;
    if (pass <= FINITE)
        store_staged(p, t, &p->out, true, first, BLOCK_M, DIM_V, t->slice * DIM_V, p->dim_v, part, stage, THREADS);
    else
        add_infinities(p, t, &p->out, true, first, BLOCK_M, DIM_V, t->slice * DIM_V, p->dim_v, part, stage,
                       pass == POSITIVE ? INFINITY : -INFINITY, THREADS);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL(const __grid_constant__ struct params p) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ int found;
    __shared__ struct job t; /* one copy, since registers are for the accumulators */
    if (threadIdx.x == 0) found = 0;
    if (!job_of(&t, &p, blockIdx.x, BLOCK_M, true, true)) return;
#pragma unroll 1
    for (int pass = AS_IT_IS; pass <= NEGATIVE; ++pass) { /* nearly always the first is the last */
        if (!pass_is_needed(pass, found)) continue;
        struct state state;
        run(&p, &t, memory, pass, &found, &state);
        if (pass == AS_IT_IS && __syncthreads_or(!are_finite(state.o, M_TILES * COLUMN_TILES))) continue;
        finish(&p, &t, memory, pass, &state);
        if (pass == AS_IT_IS) return;
        __syncthreads(); /* all are done with the memory, and what was written is seen */
    }
}
