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
 *       the warps' O, m, l together; if the item has more parts, to the workspace: whoever brings the last merges all
 *
 * Memory map: Q [BLOCK_M][DIM], then STAGES x (K [BLOCK_N][DIM], V [BLOCK_N][DIM]), swizzled (load.h); with numbers of a
 * byte scales of keys behind them. Few rows: the four warps share the rows and split each block's keys (WARPS_N); more rows:
 * each has rows of its own (WARPS_M). */
#include "cuda/ptx/thread.h"
#include "cuda/sm80/decode_block.h"
#include "cuda/sm80/decode_merge.h"

/* Where the parts of the segment's item are counted. */
INLINE int count_of(const struct decode_params *d, const struct segment *s) {
    return d->part_blocks > 0 ? s->t.b * d->p.heads_kv + s->t.kv : s->first_slot;
}

/* How the warps that share rows bring them together, in the memory of a stage: eight rows of a tile at a time, of as many
 * tiles as there is room for, [tile][warp][8][DIM]. Columns are swizzled, so that the rows of a warp do not share banks. */
enum {
    TILE_FLOATS = WARPS_N * 8 * DIM,
    TILES_OF_STAGE = STAGE_BYTES / (TILE_FLOATS * (int)sizeof(float)),
    TILES_AT_A_TIME = TILES_OF_STAGE < WARPS_M ? TILES_OF_STAGE : WARPS_M,
    PASSES = TURNED ? 1 : 2, /* of eight rows */
};
static_assert(TILES_AT_A_TIME > 0 && WARPS_M % TILES_AT_A_TIME == 0, "a stage has room for eight rows");
INLINE int swizzle_of(int row) { return row % 8 * 8; }

struct gathering {
    float2 statistics[WARPS_N][BLOCK_M]; /* maximum and sum of weights */
    uint32_t marks[2];                   /* a bit for each row that is not finite */
    bool is_last;
};

/* Leaves eight rows of the warp's, of the pass. */
INLINE void leave_rows(float *memory, struct gathering *g, const struct state *state, int pass) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (!TURNED && half != pass) continue;
        const int row = row_of_lane(lane, half);
        float *const to = memory + ((warp_m() % TILES_AT_A_TIME * WARPS_N + warp_n()) * 8 + row % 8) * DIM;
        const float l = sum_of_row(state->l[half]);
        put_row(to, lane, swizzle_of(row), state, half);
        if (is_first_of_row(lane)) g->statistics[warp_n()][16 * warp_m() + row] = make_float2(state->m[half], l);
    }
}

/* Adds up what the warps have left of those rows: into the part, or an item that is whole is finished. */
INLINE void take_rows(const struct decode_params *d, const struct segment *s, const float *memory, struct gathering *g,
                      int first_tile, int pass) {
    enum { QUARTERS = DIM / 4 };
    const struct params *const p = &d->p;
    const int rows = s->t.rows * p->group;
    float *const part = part_at(d, s->slot);
#pragma unroll 1
    for (int at = thread_anew(); at < TILES_AT_A_TIME * 8 * QUARTERS; at += THREADS) {
        const int tile = at / (8 * QUARTERS), own = at / QUARTERS % 8, x = at % QUARTERS * 4;
        const int row = (first_tile + tile) * 16 + 8 * pass + own;
        if (row >= rows) continue;
        float2 statistics[WARPS_N];
        float4 o[WARPS_N];
#pragma unroll
        for (int n = 0; n < WARPS_N; ++n) {
            statistics[n] = g->statistics[n][row];
            o[n] = *(const float4 *)(memory + ((tile * WARPS_N + n) * 8 + own) * DIM + (x ^ swizzle_of(own)));
        }
        struct quad q = {-INFINITY, 0, {0, 0, 0, 0}};
        add_to_quad(&q, statistics, o, WARPS_N, p->exponent);
        if (is_whole_item(s)) {
            finish_quad(p, &s->t, row, x, &q, g->marks);
        } else {
            *(float4 *)(part + row * DIM_V + x) = make_float4(q.o[0], q.o[1], q.o[2], q.o[3]);
            if (x == 0) *(float2 *)(part + statistics_at(d, row)) = make_float2(q.most, q.l);
        }
    }
}

/* Brings the segment's part; memory: of a block that all will have left at the next barrier. */
INLINE void finish_segment(const struct decode_params *d, const struct segment *s, float *memory, struct state *state,
                           struct gathering *g) {
    const int rows = s->t.rows * d->p.group;
    if (threadIdx.x < 2) g->marks[threadIdx.x] = 0;
#pragma unroll 1
    for (int tile = 0; tile < WARPS_M && 16 * tile < rows; tile += TILES_AT_A_TIME)
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (16 * tile + 8 * pass >= rows) continue;
            __syncthreads();
            if (warp_m() / TILES_AT_A_TIME * TILES_AT_A_TIME == tile) leave_rows(memory, g, state, pass);
            __syncthreads();
            take_rows(d, s, memory, g, tile, pass);
        }
    if (is_whole_item(s)) {
        __syncthreads();
        finish_marked(&d->p, s, g->marks);
        return;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        g->is_last = atomicAdd(&d->arrived[count_of(d, s)], 1) == (uint32_t)s->parts - 1;
        if (g->is_last) __threadfence();
    }
    __syncthreads();
    if (g->is_last) merge_parts(d, s, g->marks);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) KERNEL(const __grid_constant__ struct decode_params d) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct segment segments[SEGMENTS];
    __shared__ struct walk walk;
    __shared__ struct shown shown[STAGES];
    __shared__ struct gathering gathering;
    __shared__ uint32_t sums[THREADS / 32 + 1];
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
    struct query query;
    float unit = LEAST_UNIT;
    int number = 0, block = 0, stage = 1; /* of the segment, the block in it, and its stage */
#pragma unroll 1
    for (uint32_t at = 0; at < blocks + STAGES - 1; ++at) { /* the first STAGES - 1 rounds have nothing to process */
        const struct segment *const s = &segments[number % SEGMENTS];
        const bool is_there = at >= STAGES - 1;
        if (is_there && block == 0) {
            clear(state.o, O_TILES);
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
            if (block == 0) take_query(&query, memory);
            if (WARPS_M == 1 || 16 * warp_m() < s->t.rows * p->group)
                process_block(p, s, &query, q_scales, stages + stage * STAGE_BYTES, &shown[stage], &mask,
                              s->first + block * BLOCK_N, &state, &unit);
            if (++block == s->blocks) {
#if defined(STORED_DTYPE)
                finish_byte_weights(&state, unit);
#endif
                finish_segment(&d, s, (float *)(stages + stage * STAGE_BYTES), &state, &gathering);
                ++number, block = 0;
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}
