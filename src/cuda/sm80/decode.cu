/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode.cu: attention of few query rows to a cache, FlashDecoding's split of the keys (Dao et al., 2023) in one launch, for
 * every GPU from sm_80 on; fp16 and bf16 by mma.sync, K and V contiguous, packed or in pages. Such calls wait for memory, so
 * that the copies decide: a ring of STAGES blocks of keys is always on its way, across the ends of sequences too.
 *
 *   CTAs stay, as many as fit the GPU; each has an even share of all blocks of keys (decode_schedule.h)
 *     for each segment, the share's part of one K/V head:   Q to shared memory
 *       for each block:   wait for it, ask for the one STAGES - 1 later (decode_load.h)
 *         S = Q K^T, score terms and mask, online softmax, O += P V: the products of forward.cu
 *       O, m, l to the workspace; whoever brings the last part merges all (decode_merge.h)
 *
 * Memory map: Q [BLOCK_M][DIM], then STAGES x (K [BLOCK_N][DIM], V [BLOCK_N][DIM]), swizzled (load.h); with numbers of a
 * byte scales of keys behind them. Few rows: the four warps share the rows and split each block's keys (WARPS_N); more rows:
 * each has rows of its own (WARPS_M). */
#define FEATURES 1
#define DIM_V    DIM

#include "cuda/device/element.h"

enum {
    M_TILES = 1,
    BLOCK_M = 16 * WARPS_M,
    BLOCK_N = 8 * N_TILES * WARPS_N,
    THREADS = 32 * WARPS_M * WARPS_N,
    Q_BYTES = BLOCK_M * DIM * ELEMENT_BYTES,
};

#include "cuda/device/score_terms.h"
#include "cuda/sm80/decode_bytes.h"
#include "cuda/sm80/decode_load.h"
#include "cuda/sm80/decode_merge.h"
#include "cuda/sm80/product.h"

INLINE int warp_m(void) { return (int)threadIdx.x / 32 % WARPS_M; }
INLINE int warp_n(void) { return (int)threadIdx.x / 32 / WARPS_M; }

/* Softcap and ALiBi of the lane's scores of row (`half`), at position i; its first score is at key j. */
INLINE void apply_score_terms(const struct params *p, const struct job *t, struct place at, int half, int j, float (*s)[4]) {
    const float rate = p->softcap > 0 ? (float)(2 * LOG2_E) * p->scale / p->softcap : 0;
    const float slope = p->slopes && at.i < t->rows ? p->slopes[t->b * p->slopes_batch + at.h] : 0;
    const int64_t diagonal = at.i + t->alibi_diagonal - j;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float *const x = &s[n][2 * half + e];
            *x = p->softcap > 0 ? softcapped(*x, p->softcap, rate) : *x * p->scale;
            *x -= slope * fabsf((float)(diagonal - (8 * n + e)));
        }
}

/* Score terms and the mask, on a warp's scores of the keys from `key` on. */
INLINE void finish_scores(const struct params *p, const struct job *t, const struct shown *shown, int key, float (*s)[4]) {
    const int lane = (int)threadIdx.x % 32, first = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const struct place at = place_of(p, t, 16 * warp_m() + lane / 4 + 8 * half);
        const int low = clamp(band_first(&t->band, at.i) - key - first, 8 * N_TILES);
        const int end = clamp(band_end(&t->band, at.i) - key - first, 8 * N_TILES);
        if (p->scaled) apply_score_terms(p, t, at, half, key + first, s);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * n + e < low || 8 * n + e >= end) s[n][2 * half + e] = -INFINITY;
    }
    if (!p->cache.page_table || !shown->missing) return;
    const unsigned char *const its = shown->key + warp_n() * 8 * N_TILES + first;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x)
            if (!its[8 * n + x % 2]) s[n][x] = -INFINITY;
}

/* One block of keys, at j0: scores, mask, online softmax, O += P V. */
INLINE void process_block(const struct params *p, const struct segment *s, const unsigned char *q,
                          const unsigned char *stage, const struct shown *shown, int j0, struct state *state) {
    const int keys = warp_n() * 8 * N_TILES, key = j0 + keys;
    if (key >= s->t.keys) return;
    float scores[N_TILES][4];
    clear(scores, N_TILES);
#if defined(STORED_DTYPE)
    const float *const scales = (const float *)(stage + 2 * K_BYTES) + keys;
    product_bytes(scores, q, 16 * warp_m(), stage, keys);
    scale_scores(scales, 1, N_TILES, scores);
#else
    product_rows(scores, 1, N_TILES, DIM, q, 16 * warp_m(), stage, keys, DIM);
#endif
    if (p->scaled || key < s->full_first || key + 8 * N_TILES > s->full_end || (p->cache.page_table && shown->missing))
        finish_scores(p, &s->t, shown, key, scores);
    online_softmax(scores, state, p->exponent);
#if defined(STORED_DTYPE)
    scale_weights(scales + BLOCK_N, 1, N_TILES, weight_unit(p), scores);
    product_weights(state->o, scores, stage + K_BYTES, keys);
#else
    product_registers(state->o, 1, COLUMN_TILES, 8 * N_TILES, scores, stage + K_BYTES, keys, 0, DIM);
#endif
}

/* Adds up the sums of the warps that share rows, by halves; the first of them has all at the end. As many pairs of warps at
 * a time as the memory of a stage has room for: [pair][4 COLUMN_TILES + 4][32 lanes]. */
INLINE void gather_warps(float *memory, struct state *state, float c) {
    enum { SUMS = 32 * (4 * COLUMN_TILES + 4), AT_A_TIME = STAGE_BYTES / (SUMS * (int)sizeof(float)) };
#pragma unroll 1
    for (int step = WARPS_N / 2; step > 0; step /= 2)
#pragma unroll 1
        for (int first = 0; first < step * WARPS_M; first += AT_A_TIME) {
            const int pair = warp_n() % step * WARPS_M + warp_m() - first;
            const bool mine = 0 <= pair && pair < AT_A_TIME && warp_n() < 2 * step;
            float *const sums = memory + pair * SUMS + threadIdx.x % 32;
            __syncthreads();
            if (mine && warp_n() >= step) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    sums[(4 * COLUMN_TILES + half) * 32] = state->m[half];
                    sums[(4 * COLUMN_TILES + 2 + half) * 32] = state->l[half];
                }
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
                    for (int x = 0; x < 4; ++x) sums[(4 * n + x) * 32] = state->o[n][x];
            }
            __syncthreads();
            if (!mine || warp_n() >= step) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float before = state->m[half], its = sums[(4 * COLUMN_TILES + half) * 32], m = fmaxf(before, its);
                const float keep = weight_of(before, m, c), add = weight_of(its, m, c);
                state->m[half] = m;
                state->l[half] = state->l[half] * keep + sums[(4 * COLUMN_TILES + 2 + half) * 32] * add;
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
                    for (int x = 2 * half; x < 2 * half + 2; ++x)
                        state->o[n][x] = state->o[n][x] * keep + sums[(4 * n + x) * 32] * add;
            }
        }
}

/* Brings the segment's part; `free`: the memory of a block that all will have left at the next barrier. */
INLINE void finish_segment(const struct decode_params *d, const struct segment *s, unsigned char *free, struct state *state,
                           uint32_t *marks) {
    __shared__ bool is_last;
    gather_warps((float *)free, state, d->p.exponent);
    if (warp_n() == 0) store_part(d, s, state, 16 * warp_m());
    if (s->ctas > 1) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = s->ctas == 1 || atomicAdd(&d->arrived[s->first_cta], 1) == (uint32_t)s->ctas - 1;
        if (s->ctas > 1) __threadfence();
    }
    __syncthreads();
    if (is_last) merge_parts(d, s, (float *)free, marks);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct decode_params d) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct segment segments[SEGMENTS];
    __shared__ struct walk walk;
    __shared__ struct shown shown[STAGES];
    __shared__ uint32_t marks[2], sums[THREADS / 32];
    const struct params *const p = &d.p;
    find_share(&walk, &segments[0], sums, &d);
    const uint32_t blocks = walk.units;
    if (blocks == 0) return;
    if (STORED_BYTES == ELEMENT_BYTES)
        load_packed(memory, p, &segments[0].t, &p->q, segments[0].t.q, 0, BLOCK_M, DIM, p->dim, THREADS);
    struct loader loader = {.left = blocks};
    if (p->cache.page_table) {
        if (threadIdx.x == 0) next_segment(&segments[1], &walk, p);
        look_up(&loader.lookup, p, &segments[0], segments[0].first);
    }
    unsigned char *const stages = memory + Q_BYTES;
    struct state state;
    int number = 0, block = 0, stage = 1; /* of the segment, the block in it, and its stage */
#pragma unroll 1
    for (uint32_t at = 0; at < blocks + STAGES - 1; ++at) { /* the first STAGES - 1 rounds have nothing to process */
        const struct segment *const s = &segments[number % SEGMENTS];
        const bool is_there = at >= STAGES - 1;
        if (is_there && block == 0) {
            clear(state.o, COLUMN_TILES);
            state.m[0] = state.m[1] = -INFINITY, state.l[0] = state.l[1] = 0;
            if (number > 0 || STORED_BYTES < ELEMENT_BYTES) load_query(memory, p, &s->t);
        }
        if (is_there) cp_async_wait(STAGES - 2);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        const int free = stage == 0 ? STAGES - 1 : stage - 1;
        load_next(&loader, p, segments, &walk, stages + free * STAGE_BYTES, &shown[free]);
        if (is_there) {
            if (WARPS_M == 1 || 16 * warp_m() < s->t.rows * p->group)
                process_block(p, s, memory, stages + stage * STAGE_BYTES, &shown[stage], s->first + block * BLOCK_N, &state);
            if (++block == s->blocks) {
                finish_segment(&d, s, stages + stage * STAGE_BYTES, &state, marks);
                ++number, block = 0;
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}
