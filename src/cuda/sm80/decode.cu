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
#include "cuda/sm80/decode_block.h"
#include "cuda/sm80/decode_merge.h"

/* Adds up the sums of the warps that share rows, by halves; the first of them has all at the end. As many pairs of warps at
 * a time as the memory of a stage has room for: [pair][4 COLUMN_TILES + 4][32 lanes]. */
INLINE void gather_warps(float *memory, struct state *state, float c) {
    enum { SUMS = 32 * (4 * COLUMN_TILES + 4), AT_A_TIME = STAGE_BYTES / (SUMS * (int)sizeof(float)) };
    static_assert(WARPS_N == 1 || AT_A_TIME > 0, "a stage has room for the sums of a warp");
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

/* Where the parts of the segment's item are counted. */
INLINE int count_of(const struct decode_params *d, const struct segment *s) {
    return d->part_blocks > 0 ? s->t.b * d->p.heads_kv + s->t.kv : s->first_slot;
}

/* Brings the segment's part; `free`: the memory of a block that all will have left at the next barrier. A part that is the
 * whole item does not leave that memory. */
INLINE void finish_segment(const struct decode_params *d, const struct segment *s, unsigned char *free, struct state *state,
                           uint32_t *marks) {
    __shared__ bool is_last;
    const bool whole = is_whole_item(s);
    float *const part = whole ? whole_part((float *)free) : part_at(d, s->slot);
    gather_warps((float *)free, state, d->p.exponent);
    if (whole) __syncthreads(); /* sums have been read */
    if (warp_n() == 0) {
        store_part(d, s, part, state, 16 * warp_m());
        if (!whole) __threadfence();
    }
    __syncthreads();
    if (!whole) {
        if (threadIdx.x == 0) {
            is_last = s->parts == 1 || atomicAdd(&d->arrived[count_of(d, s)], 1) == (uint32_t)s->parts - 1;
            if (is_last) __threadfence();
        }
        __syncthreads();
        if (!is_last) return;
    }
    merge_parts(d, s, whole ? part : part_at(d, s->first_slot), (float *)free, marks);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct decode_params d) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct segment segments[SEGMENTS];
    __shared__ struct walk walk;
    __shared__ struct shown shown[STAGES];
    __shared__ uint32_t marks[2], sums[THREADS / 32 + 1];
    __shared__ float q_scales[STORED_BYTES < ELEMENT_BYTES ? BLOCK_M : 1];
    const struct params *const p = &d.p;
    find_share(&walk, &segments[0], sums, &d);
    const uint32_t blocks = walk.units;
    if (blocks == 0) return;
    if (STORED_BYTES == ELEMENT_BYTES)
        load_packed(memory, p, &segments[0].t, &p->q, segments[0].t.q, 0, BLOCK_M, DIM, p->dim, THREADS);
    struct loader loader = {.left = blocks};
    if (p->cache.page_table) {
        if (threadIdx.x == 0) next_segment(&segments[1], &walk, &d);
        look_up(&loader.lookup, p, &segments[0], segments[0].first);
    }
    unsigned char *const stages = memory + Q_BYTES;
    struct state state;
    float unit = LEAST_UNIT;
    int number = 0, block = 0, stage = 1; /* of the segment, the block in it, and its stage */
#pragma unroll 1
    for (uint32_t at = 0; at < blocks + STAGES - 1; ++at) { /* the first STAGES - 1 rounds have nothing to process */
        const struct segment *const s = &segments[number % SEGMENTS];
        const bool is_there = at >= STAGES - 1;
        if (is_there && block == 0) {
            clear(state.o, COLUMN_TILES);
            state.m[0] = state.m[1] = -INFINITY, state.l[0] = state.l[1] = 0;
            unit = LEAST_UNIT;
            if (number > 0 || STORED_BYTES < ELEMENT_BYTES) load_query(memory, q_scales, p, &s->t);
        }
        struct mask_pairs mask;
        if (is_there && p->bool_mask.data) load_mask(&mask, p, &s->t, s->first + block * BLOCK_N);
        if (is_there) cp_async_wait(STAGES - 2);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        const int free = stage == 0 ? STAGES - 1 : stage - 1;
        load_next(&loader, &d, segments, &walk, stages + free * STAGE_BYTES, &shown[free]);
        if (is_there) {
            if (WARPS_M == 1 || 16 * warp_m() < s->t.rows * p->group)
                process_block(p, s, memory, q_scales, stages + stage * STAGE_BYTES, &shown[stage], &mask,
                              s->first + block * BLOCK_N, &state, &unit);
            if (++block == s->blocks) {
#if defined(STORED_DTYPE)
                finish_byte_weights(&state, unit);
#endif
                finish_segment(&d, s, stages + stage * STAGE_BYTES, &state, marks);
                ++number, block = 0;
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}
