/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_cluster.cu: decode.cu for calls so short that what does not depend on the keys takes most of the time: on Hopper, a
 * K/V head of a sequence is the work of one cluster. Its CTAs have a share of the keys each, of the same length, and merge
 * the parts of their warps; then each row is sent to the CTA that merges it. So there is no memory of counts to be cleared,
 * nothing is shared out, no part goes to memory and back, and nobody waits for a fence.
 *
 *   each CTA: its share of the keys, block by block, as decode.cu has it
 *     O, m, l of each warp to shared memory, merged by four columns a lane
 *     each row's O, m, l to the CTA whose rank is the row modulo CLUSTER (distributed shared memory), which merges again
 *
 * PLAIN, by -D: what is_plain() of decode_host.c lets through alone; half of the text, and instructions that are fetched for
 * the first time are most of what a short call waits for.
 *
 * Memory map: Q [BLOCK_M][DIM], then STAGES x (K [BLOCK_N][DIM], V [BLOCK_N][DIM]); after the last block the parts. */
#if !defined(PLAIN)
#define PLAIN 0
#endif
#include "cuda/sm80/decode_block.h"
#include "cuda/sm80/decode_merge.h"

#include "cuda/ptx/cluster_push.h"

enum { ROW = DIM + 8, QUARTERS = DIM / 4, OWN_ROWS = BLOCK_M / CLUSTER };

/* What a CTA's warps leave for each other. */
struct parts {
    float o[WARPS_N][BLOCK_M][ROW];
    float2 statistics[WARPS_N][BLOCK_M]; /* the maximum and the sum of weights */
};

/* What a CTA is sent by all of the cluster: of rows r with r % CLUSTER its rank. */
struct post {
    float4 o[CLUSTER][OWN_ROWS][QUARTERS];
    float2 statistics[CLUSTER][OWN_ROWS];
    uint64_t there;    /* counts the bytes */
    uint32_t marks[2]; /* a bit for each row that is not finite */
};
static_assert(WARPS_M == 1 && !TURNED && BLOCK_M % CLUSTER == 0, "warps share the rows, and CTAs divide them");
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

/* Rows of a job that CTA `rank` merges. */
INLINE int own_rows(const struct job *t, const struct params *p, int rank) {
    return (t->rows * p->group - rank + CLUSTER - 1) / CLUSTER;
}

/* Awaits what will be sent. One thread. */
INLINE void open_post(struct post *post, const struct job *t, const struct params *p, int rank) {
    const int rows = own_rows(t, p, rank);
    post->marks[0] = post->marks[1] = 0;
    mbarrier_init(&post->there, 1);
    if (rows > 0) mbarrier_expect(&post->there, (uint32_t)(rows * CLUSTER) * (DIM * sizeof(float) + sizeof(float2)));
    mbarrier_init_fence();
}

/* Merges the parts of the CTA's warps, and sends each row to the CTA whose it is. */
INLINE void send_rows(const struct params *p, const struct job *t, const struct parts *parts, struct post *post, int rank) {
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < t->rows * p->group * QUARTERS; at += THREADS) {
        const int row = at / QUARTERS, quarter = at % QUARTERS, to = row % CLUSTER, slot = row / CLUSTER;
        float2 statistics[WARPS_N];
        float4 o[WARPS_N];
#pragma unroll
        for (int n = 0; n < WARPS_N; ++n)
            statistics[n] = parts->statistics[n][row], o[n] = *(const float4 *)&parts->o[n][row][4 * quarter];
        struct quad q = {-INFINITY, 0, {0, 0, 0, 0}};
        add_to_quad(&q, statistics, o, WARPS_N, p->exponent);
        const uint32_t there = cluster_address(&post->there, to);
        push_4(cluster_address(&post->o[rank][slot][quarter], to), make_float4(q.o[0], q.o[1], q.o[2], q.o[3]), there);
        if (quarter == 0) push_2(cluster_address(&post->statistics[rank][slot], to), make_float2(q.most, q.l), there);
    }
}

/* Merges what has come, and stores the CTA's rows. */
INLINE void merge_post(const struct params *p, const struct job *t, struct post *post, int rank) {
    const int count = own_rows(t, p, rank) * QUARTERS;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < count; at += THREADS) {
        const int slot = at / QUARTERS, quarter = at % QUARTERS;
        float2 statistics[CLUSTER];
        float4 o[CLUSTER];
#pragma unroll
        for (int n = 0; n < CLUSTER; ++n) statistics[n] = post->statistics[n][slot], o[n] = post->o[n][slot][quarter];
        struct quad q = {-INFINITY, 0, {0, 0, 0, 0}};
        add_to_quad(&q, statistics, o, CLUSTER, p->exponent);
        finish_quad(p, t, slot * CLUSTER + rank, 4 * quarter, &q, post->marks);
    }
}

/* What is left of an item when the CTA has seen its keys: its rows. whole: the description with all that it has; own: with
 * the CTA's keys. */
INLINE void merge_cluster(const struct params *p, const struct params *whole, struct segment *own, const struct state *state,
                          struct parts *parts, struct post *post, int rank) {
    __syncthreads();
    leave_part(parts, state, own->t.rows * p->group);
    cluster_wait(); /* all posts are open */
    __syncthreads();
    send_rows(p, &own->t, parts, post, rank);
    if (own_rows(&own->t, p, rank) <= 0) return;
    mbarrier_wait(&post->there, 0);
    merge_post(p, &own->t, post, rank);
    __syncthreads();
    if ((post->marks[0] | post->marks[1]) == 0) return;
    if (threadIdx.x == 0) job_sequence(&own->t, p); /* with all keys */
    __syncthreads();
    finish_marked(whole, own, post->marks);
}

#if PLAIN
/* What a call is known to have none of, and to be: the compiler leaves out the rest, of which instructions would be fetched
 * from memory for the first time. The whole description is d.p's. */
INLINE void make_plain(struct params *p) {
    p->cu_q = p->cu_k = p->used_q = p->used_k = NULL;
    p->cache.page_table = NULL, p->cache.leftpad = NULL;
    p->bool_mask.data = NULL, p->slopes = NULL, p->sinks = NULL;
    p->scaled = 0, p->softcap = 0;
    p->q.aligned = p->k.aligned = p->v.aligned = p->out.aligned = 1;
    p->out.dtype = ELEMENT_DTYPE;
    p->dim = p->dim_v = DIM;
}
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, CTAS)
    KERNEL(const __grid_constant__ struct decode_params d) {
    extern __shared__ __align__(1024) unsigned char memory[]; /* aligned for product_mma.h */
    __shared__ struct segment own;
    __shared__ struct shown shown[STAGES];
    __shared__ float q_scales[STORED_BYTES < ELEMENT_BYTES ? BLOCK_M : 1];
    __shared__ __align__(16) struct post post;
#if PLAIN
    struct params plain = d.p;
    make_plain(&plain);
    const struct params *const p = &plain;
#else
    const struct params *const p = &d.p;
#endif
    const int item = (int)blockIdx.x / CLUSTER, rank = cluster_rank();
    if (threadIdx.x == 0) {
        describe(&own, p, item, rank);
        open_post(&post, &own.t, p, rank);
    }
    cluster_arrive();
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
        if (at == 1 - STAGES && STORED_BYTES == ELEMENT_BYTES) send_for_query(memory, p, &own.t);
        cp_async_commit();
        if (at >= 0)
            process_block(p, &own, &query, q_scales, stages + at % STAGES * STAGE_BYTES, &shown[at % STAGES], &mask,
                          own.first + at * BLOCK_N, &state, &unit);
    }
#if defined(STORED_DTYPE)
    finish_byte_weights(&state, unit);
#endif
    merge_cluster(p, &d.p, &own, &state, (struct parts *)stages, &post, rank);
}
