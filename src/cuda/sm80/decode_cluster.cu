/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_cluster.cu: decode.cu for calls so short that what does not depend on the keys takes most of the time: on Hopper, a
 * K/V head of a sequence is the work of one cluster. Its CTAs have a share of the keys each, of the same length; the parts
 * of all warps lie in their shared memory, and every CTA merges some columns of some rows. So there is no memory of counts
 * to be cleared, nothing is shared out, and no part goes to memory and back.
 *
 *   each CTA: its share of the keys, block by block, as decode.cu has it
 *     O, m, l of each warp to shared memory; the cluster's barrier
 *     each group of LANES lanes: four columns of a row, of the parts of all CTAs (distributed shared memory)
 *
 * Memory map: Q [BLOCK_M][DIM], then STAGES x (K [BLOCK_N][DIM], V [BLOCK_N][DIM]); after the last block the parts. */
#include "cuda/sm80/decode_block.h"
#include "cuda/sm80/decode_merge.h"

#include "cuda/ptx/cluster.h"

enum { PARTS = CLUSTER * WARPS_N, EACH = 4, LANES = PARTS / EACH, ROW = DIM + 8, GROUPS = THREADS / LANES };

/* What a CTA's warps leave to the cluster. */
struct parts {
    float o[WARPS_N][BLOCK_M][ROW];
    float2 statistics[WARPS_N][BLOCK_M]; /* the maximum and the sum of weights */
    uint32_t marks[BLOCK_M], any;        /* in CTA 0: rows that are not finite, and whether there are such */
};
static_assert(WARPS_M == 1 && !TURNED && LANES * EACH == PARTS && LANES <= 16, "warps share the rows, and lanes the parts");
static_assert((int)sizeof(struct parts) <= STAGES * STAGE_BYTES, "the parts lie where blocks lay");

/* Describes CTA `rank`'s share of the keys of item `item`. One thread. */
INLINE void describe(struct segment *s, const struct params *p, int item, int rank) {
    enum { LEAST = 16 }; /* keys of a share are a multiple of it */
    struct job t;
    t.b = item / p->heads_kv, t.kv = item - t.b * p->heads_kv;
    job_sequence(&t, p);
    find_tensors(s, &t, p);
    const int first = clamp(band_first(&t.band, 0), t.keys), end = clamp(band_end(&t.band, t.rows - 1), t.keys);
    const int each = (end - first + CLUSTER * LEAST - 1) / (CLUSTER * LEAST) * LEAST, own = first + rank * each;
    const int own_end = own + each < end ? own + each : end, full_end = (int)band_end(&t.band, 0);
    s->first = own, s->blocks = own < own_end ? (own_end - own + BLOCK_N - 1) / BLOCK_N : 0;
    s->full_first = clamp(band_first(&t.band, t.rows - 1), t.keys);
    s->full_end = full_end < own_end ? full_end : own_end;
    if (own_end < t.keys) t.keys = own_end, t.band.keys = own_end;
    s->t = t;
}

/* Q's packed rows, in the group of copies that is closed next. */
INLINE void send_for_query(unsigned char *tile, const struct params *p, const struct job *t) {
    enum { CHUNKS_OF_ROW = DIM / CHUNK };
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < BLOCK_M * CHUNKS_OF_ROW; at += THREADS) {
        const int row = at / CHUNKS_OF_ROW, chunk = at % CHUNKS_OF_ROW, i = row / p->group;
        const bool there = row < t->rows * p->group;
        const element *const from = t->q + (there ? i * p->q.row + (row - i * p->group) * p->q.head + chunk * CHUNK : 0);
        load_chunk(tile + chunk_at(DIM * ELEMENT_BYTES, row, chunk), from, there ? p->dim - chunk * CHUNK : 0, p->q.aligned);
    }
}

/* Leaves the warp's rows to the cluster, from registers. */
INLINE void leave_part(struct parts *parts, const struct state *state, int rows) {
    const int lane = (int)threadIdx.x % 32, warp = warp_n();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
        float l = state->l[half];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (row >= rows) continue;
        put_row(parts->o[warp][row], lane, 0, state, half);
        if (lane % 4 == 0) parts->statistics[warp][row] = make_float2(state->m[half], l);
    }
}

/* Merges four columns of a row, from x on, by LANES lanes; stores them and the row's lse if `there`. Returns whether they
 * are finite, in the first lane. */
INLINE bool merge_parts_of(const struct params *p, const struct job *t, const struct parts *parts, int row, int x,
                           bool there) {
    const int lane = (int)threadIdx.x % LANES;
    float2 its[EACH];
    float4 v[EACH];
    float most = -INFINITY, l = 0, o[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int part = lane + n * LANES;
        its[n] = cluster_load_2(cluster_address(&parts->statistics[part % WARPS_N][row], part / WARPS_N));
        v[n] = cluster_load_4(cluster_address(&parts->o[part % WARPS_N][row][x], part / WARPS_N));
    }
#pragma unroll
    for (int n = 0; n < EACH; ++n) most = fmaxf(most, its[n].x);
#pragma unroll
    for (int w = LANES / 2; w > 0; w /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const float weight = weight_of(its[n].x, most, p->exponent);
        l = fmaf(weight, its[n].y, l);
        o[0] = fmaf(weight, v[n].x, o[0]), o[1] = fmaf(weight, v[n].y, o[1]);
        o[2] = fmaf(weight, v[n].z, o[2]), o[3] = fmaf(weight, v[n].w, o[3]);
    }
    l = lanes_sum(l, LANES);
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] = lanes_sum(o[e], LANES);
    if (lane > 0 || !there) return true;
    const struct place at = place_of(p, t, row);
    const struct row_end end = end_of_merged_row(p, at, most, l);
    if (x == 0 && p->lse.data) ((float *)p->lse.data)[row_offset(&p->lse, t, at)] = end.lse;
    return x >= p->dim_v || store_columns(p, t, row, x, o, end.factor);
}

/* Merges this CTA's columns, and marks rows that are not finite. */
INLINE void merge_cluster(const struct params *p, const struct job *t, struct parts *parts, int rank) {
    enum { QUARTERS = DIM / 4 };
    const int count = t->rows * p->group * QUARTERS;
#pragma unroll 1
    for (int first = rank * GROUPS; first < count; first += CLUSTER * GROUPS) {
        const int at = first + (int)threadIdx.x / LANES, there = at < count ? at : 0;
        if (merge_parts_of(p, t, parts, there / QUARTERS, there % QUARTERS * 4, at < count)) continue;
        cluster_store(cluster_address(&parts->marks[there / QUARTERS], 0), 1);
        cluster_store(cluster_address(&parts->any, 0), 1);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, CTAS)
    KERNEL(const __grid_constant__ struct decode_params d) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct segment own;
    __shared__ struct shown shown[STAGES];
    __shared__ float q_scales[STORED_BYTES < ELEMENT_BYTES ? BLOCK_M : 1];
    const struct params *const p = &d.p;
    const int item = (int)blockIdx.x / CLUSTER, rank = cluster_rank();
    if (threadIdx.x == 0) describe(&own, p, item, rank);
    __syncthreads();
    struct lookup lookup;
    if (p->cache.page_table) look_up(&lookup, p, &own, own.first);
    unsigned char *const stages = memory + Q_BYTES;
    struct state state;
    struct query query;
    float unit = LEAST_UNIT;
    take_query(&query, memory);
    clear(state.o, COLUMN_TILES);
    state.m[0] = state.m[1] = -INFINITY, state.l[0] = state.l[1] = 0;
    if (STORED_BYTES == ELEMENT_BYTES) send_for_query(memory, p, &own.t);
#pragma unroll 1
    for (int at = 1 - STAGES; at < own.blocks; ++at) { /* the first rounds have nothing to process */
        const int next = at + STAGES - 1, slot = next % STAGES;
        if (at == 0 && STORED_BYTES < ELEMENT_BYTES) load_query(memory, q_scales, p, &own.t);
        struct mask_pairs mask;
        if (at >= 0 && p->bool_mask.data) load_mask(&mask, p, &own.t, own.first + at * BLOCK_N);
        if (at >= 0) cp_async_wait(STAGES - 2);
        __syncthreads(); /* this block is there for all, and all are done with the one before */
        if (next < own.blocks) {
            load_block(p, &own, &lookup, stages + slot * STAGE_BYTES, &shown[slot], own.first + next * BLOCK_N);
            if (p->cache.page_table) look_up(&lookup, p, &own, own.first + (next + 1) * BLOCK_N);
        }
        cp_async_commit();
        if (at >= 0)
            process_block(p, &own, &query, q_scales, stages + at % STAGES * STAGE_BYTES, &shown[at % STAGES], &mask,
                          own.first + at * BLOCK_N, &state, &unit);
    }
#if defined(STORED_DTYPE)
    finish_byte_weights(&state, unit);
#endif
    struct parts *const parts = (struct parts *)stages;
    __syncthreads();
    leave_part(parts, &state, own.t.rows * p->group);
    if (threadIdx.x < BLOCK_M) parts->marks[threadIdx.x] = parts->any = 0;
    cluster_barrier();
    merge_cluster(p, &own.t, parts, rank);
    cluster_barrier(); /* the parts have been read, and marks are there */
    if (rank > 0 || !parts->any) return;
    if (threadIdx.x == 0) job_sequence(&own.t, p); /* with all keys */
    __syncthreads();
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < own.t.rows * p->group; row += THREADS / 32)
        if (parts->marks[row]) exact_row(p, &own, row);
}
