/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_steps.h: the steps that both forms of the Hopper backward, backward.cu and backward_wide.cu, take: what the
 * producer copies, products, weights and gradients from accumulators, results to memory. Included by them alone, after the
 * constants and struct shared. */
#ifndef STROBE_CUDA_SM90_BACKWARD_STEPS_H
#define STROBE_CUDA_SM90_BACKWARD_STEPS_H

#include "cuda/ptx/bulk.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma_transposed.h"
#include "cuda/sm90/backward_exact.h"
#include "cuda/sm90/trace.h"

#define JOIN_(a, b)  a##b
#define JOIN(a, b)   JOIN_(a, b)
#define SCORES_STEP  JOIN(wgmma_ss_, ROWS)
#define SCORES_FIRST JOIN(SCORES_STEP, _first)
#if COLUMNS == 96
#define SUM_COLUMNS 96
#elif COLUMNS % 128
#define SUM_COLUMNS 64
#else
#define SUM_COLUMNS 128
#endif
#define SUM_STEP JOIN(wgmma_rs_, SUM_COLUMNS)

#define STAGE_STEP (SLABS * Q_SLAB / 16) /* from stage to stage in a descriptor of Q or dO */

/* Blocks are counted by both sides. A reader waits for `full`, the writer for `empty`, one phase behind. */
INLINE uint32_t stage_of(uint32_t count) { return count % STAGES; }
INLINE uint32_t full_parity(uint32_t count) { return count / STAGES % 2; }
INLINE uint32_t empty_parity(uint32_t count) { return full_parity(count) ^ 1; }
INLINE uint32_t dout_stage_of(uint32_t count) { return count % DOUT_STAGES; }
INLINE uint32_t dout_parity(uint32_t count) { return count / DOUT_STAGES % 2; }

INLINE void load_tile(unsigned char *to, const CUtensorMap *map, uint64_t *full, int slab_bytes, int row, int head,
                      int batch, uint64_t policy) {
    for (int slab = 0; slab < SLABS; ++slab)
        tma_load_4d(to + slab * slab_bytes, map, full, slab * 64, row, head, batch, policy);
}

/* The last block of a packed or shortened sequence row by row: past its end stand other rows, of which a NaN would reach
 * this one's sums with a weight of 0. From beyond the tensor come zeros, and bytes that count. */
INLINE void load_last_rows(unsigned char *to, const CUtensorMap *map, uint64_t *full, const struct span *rows, int row,
                           int head) {
    const int beyond = 1 << 30;
#pragma unroll 1
    for (int at = 0; at < SLABS * ROWS; ++at) {
        const int i = row + at % ROWS;
        tma_load_4d(to + at / ROWS * Q_SLAB + at % ROWS * ROW_BYTES, map, full, at / ROWS * 64,
                    i < rows->count ? rows->first + i : beyond, head, rows->batch, TMA_EVICT_LAST);
    }
}

INLINE void load_rows_of(unsigned char *to, const CUtensorMap *map, const CUtensorMap *row_map, uint64_t *full,
                         const struct span *rows, int row, int head, bool cut) {
    if (cut && row + ROWS > rows->count)
        load_last_rows(to, row_map, full, rows, row, head);
    else
        load_tile(to, map, full, Q_SLAB, rows->first + row, head, rows->batch, TMA_EVICT_LAST);
}

/* One thread: K and V, then Q with lse and dO with D of every block. */
INLINE void producer(const struct sm90_backward_params *p, struct shared *s, const struct tile *t) {
    const struct walk walk = walk_of(p, t);
    const bool cut = p->cu_seqlens_q || p->used_q;
    struct tracer tracer = tracer_of(p, STROBE_TRACE_LOADER, true);
    uint32_t count = 0;
    mbarrier_expect(&s->k_full, SLABS * K_SLAB);
    load_tile(s->k, &p->k, &s->k_full, K_SLAB, t->in.keys.first + t->key, t->head_kv, t->in.keys.batch, TMA_EVICT_FIRST);
#pragma unroll 1
    for (int head = t->head_kv * p->group; head < (t->head_kv + 1) * p->group; ++head) {
        const int64_t block = ((int64_t)t->batch * p->heads_kv * p->group + head) * p->row_blocks;
#pragma unroll 1
        for (int n = 0, m = walk.first; n < walk.blocks; ++n, m = next_block(p, &walk, m), ++count) {
            const uint32_t stage = stage_of(count);
            trace(&tracer, STROBE_TRACE_WAIT_ROOM, count);
            mbarrier_wait(&s->q_empty[stage], empty_parity(count));
            trace(&tracer, STROBE_TRACE_LOAD_Q, count);
            mbarrier_expect(&s->q_full[stage], SLABS * Q_SLAB + ROWS * sizeof(float));
            load_rows_of(s->q[stage], &p->q, &p->q_row, &s->q_full[stage], &t->in.rows, m * ROWS, head, cut);
            bulk_load(s->lse[stage], p->row_lse + (block + m) * ROWS, ROWS * sizeof(float), &s->q_full[stage]);
            if (count == 0) {
                mbarrier_expect(&s->v_full, SLABS * K_SLAB);
                load_tile(s->v, &p->v, &s->v_full, K_SLAB, t->in.keys.first + t->key, t->head_kv, t->in.keys.batch,
                          TMA_EVICT_FIRST);
            }
            const uint32_t slot = dout_stage_of(count);
            trace(&tracer, STROBE_TRACE_WAIT_ROOM, count);
            mbarrier_wait(&s->dout_empty[slot], dout_parity(count) ^ 1);
            trace(&tracer, STROBE_TRACE_LOAD_DOUT, count);
            mbarrier_expect(&s->dout_full[slot], SLABS * Q_SLAB + ROWS * sizeof(float));
            load_rows_of(s->dout[slot], &p->dout, &p->dout_row, &s->dout_full[slot], &t->in.rows, m * ROWS, head, cut);
            bulk_load(s->term[stage], p->row_term + (block + m) * ROWS, ROWS * sizeof(float), &s->dout_full[slot]);
        }
    }
    trace(&tracer, STROBE_TRACE_END, count);
}

/* Arrivals of a warp that releases something. One lane speaks for all behind a barrier of the warp, which the sanitizer's
 * racecheck does not follow: in builds for it every lane arrives. */
#if defined(STROBE_RACECHECK)
#define ARRIVALS 32
#else
#define ARRIVALS 1
#endif

/* The warp is done with what the barrier guards, or has written it. */
INLINE void release(uint64_t *barrier) {
    __syncwarp();
    if (ARRIVALS == 32 || threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

/* S^T = K Q^T, or dP^T = V dO^T, of the group's keys. */
INLINE void issue_scores(float (&s)[SCORES], uint64_t keys, uint64_t rows) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < COLUMNS / 16; ++step) {
        const int columns = step % 4 * 2;
        if (step == 0)
            SCORES_FIRST(s, keys, rows);
        else
            SCORES_STEP(s, keys + step / 4 * (K_SLAB / 16) + columns, rows + step / 4 * (Q_SLAB / 16) + columns, 1);
    }
    wgmma_commit();
}

/* A thread's part of dK or dV of 64 keys, in parts of as many columns as one product has: with 512 threads no more than 128.
 */
enum { SUM_PARTS = COLUMNS / SUM_COLUMNS };
struct sums {
    float part[SUM_PARTS][SUM_COLUMNS / 2];
};

INLINE void clear(struct sums *sums) {
#pragma unroll
    for (int n = 0; n < SUM_PARTS; ++n)
#pragma unroll
        for (int v = 0; v < SUM_COLUMNS / 2; ++v) sums->part[n][v] = 0;
}

/* dV += P^T dO, or dK += dS^T Q. */
INLINE void issue_sum(struct sums *sums, const uint32_t (&weights)[SCORES / 2], uint64_t rows, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = part * (PART / 8); step < (part + 1) * (PART / 8); ++step)
#pragma unroll
        for (int n = 0; n < SUM_PARTS; ++n)
            SUM_STEP(sums->part[n], &weights[4 * step],
                     rows + n * (SUM_COLUMNS / 64 * Q_SLAB / 16) + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

/* dQ = dS K: a tile. */
INLINE void issue_dq(float (&dq)[32], uint64_t ds, uint64_t keys) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step)
        if (step == 0)
            wgmma_st_64_first(dq, ds, keys);
        else
            wgmma_st_64(dq, ds + step / 4 * (Q_SLAB / 16) + step % 4 * 2, keys + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

/* Where a lane's row goes when sixteen rows of a warp's sixteen keys, of the 64 in a slab of dS, are stored with stmatrix:
 * matrix l / 8 has the keys 8 (l / 8 % 2) and the rows 8 (l / 16) and following. */
INLINE uint32_t transposed_store(uint32_t slab) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
    return slab + (lane / 16 * 8 + lane % 8) * ROW_BYTES + ((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16;
}

INLINE void store_transposed(uint32_t to, const uint32_t (&gradients)[SCORES / 2], int part) {
#pragma unroll
    for (int step = part * (PART / 8); step < (part + 1) * (PART / 8); ++step)
        stmatrix_x4_trans(to + step * (16 * ROW_BYTES), &gradients[4 * step]);
}

/* lse, term: from the thread's first row on. */
INLINE void to_weights(const struct sm90_backward_params *p, float (&s)[SCORES], const float *lse, int part) {
#pragma unroll
    for (int c = part * (PART / 4); c < (part + 1) * (PART / 4); ++c) {
        const float2 shift = *(const float2 *)(lse + 8 * c);
#pragma unroll
        for (int v = 4 * c; v < 4 * c + 4; ++v) s[v] = ex2(fmaf(s[v], p->exponent, v % 2 ? shift.y : shift.x));
    }
}

INLINE void to_gradients(const struct sm90_backward_params *p, float (&dp)[SCORES], const float (&s)[SCORES],
                         const float *term, int part) {
#pragma unroll
    for (int c = part * (PART / 4); c < (part + 1) * (PART / 4); ++c) {
        const float2 shift = *(const float2 *)(term + 8 * c);
#pragma unroll
        for (int v = 4 * c; v < 4 * c + 4; ++v)
            dp[v] = (TERMS == 2 ? fabsf(s[v]) : s[v]) * (undropped(p, s[v], dp[v]) - (v % 2 ? shift.y : shift.x));
    }
}

INLINE void pack_part(uint32_t (&packed)[SCORES / 2], const float (&x)[SCORES], int part) {
#pragma unroll
    for (int i = part * (PART / 2); i < (part + 1) * (PART / 2); ++i) packed[i] = pack(x[2 * i], x[2 * i + 1]);
}

INLINE void unpack_part(float (&x)[SCORES], const uint32_t (&packed)[SCORES / 2], int part) {
#pragma unroll
    for (int i = part * (PART / 2); i < (part + 1) * (PART / 2); ++i) {
        x[2 * i] = element_to_float((element)packed[i]);
        x[2 * i + 1] = element_to_float((element)(packed[i] >> 16));
    }
}

/* P of a part, from S. */
INLINE void make_weights(const struct sm90_backward_params *p, const struct shared *shared, const struct tile *t,
                         const struct slope *slope, const struct meeting *at, float (&s)[SCORES],
                         uint32_t (&packed)[SCORES / 2], int part) {
    finish_scores(p, t, slope, at, s, part);
    to_weights(p, s, shared->lse[at->stage] + 2 * (threadIdx.x % 4), part);
    finish_weights(p, t, slope, at, s, part);
    pack_part(packed, s, part);
}

/* dS of a part, from dP and P. */
INLINE void make_gradients(const struct sm90_backward_params *p, const struct shared *shared, const struct tile *t,
                           const struct slope *slope, const struct meeting *at, float (&dp)[SCORES],
                           const float (&weights)[SCORES], uint32_t (&packed)[SCORES / 2], int part) {
    to_gradients(p, dp, weights, shared->term[at->stage] + 2 * (threadIdx.x % 4), part);
    finish_gradients(p, t, slope, at, dp, weights, shared->lse[at->stage] + 2 * (threadIdx.x % 4), part);
    pack_part(packed, dp, part);
}

/* A warp group's sums, rounded, to the tensor, by way of its own rows of shared memory that is done with. */
INLINE void store_sums(const struct sm90_backward_params *p, const struct sm90_rows *to, const struct tile *t,
                       unsigned char *staging, const struct sums *sums, float factor, int own) {
    const int lane = (int)threadIdx.x % 32;
    if (p->may_hide) {
#pragma unroll
        for (int n = 0; n < SUM_PARTS; ++n) mark_keys(p, t, t->key + own, sums->part[n]);
    }
#pragma unroll
    for (int n = 0; n < SUM_PARTS; ++n)
#pragma unroll
        for (int v = 0; v < SUM_COLUMNS / 2; v += 2) {
            const int row = own + lane / 4 + 8 * (v / 2 % 2), column = n * SUM_COLUMNS + 8 * (v / 4) + 2 * (lane % 4);
            *(uint32_t *)(staging + swizzled(row, column, KEYS)) = pack(sums->part[n][v] * factor,
                                                                        sums->part[n][v + 1] * factor);
        }
    __syncwarp();
    store_warp_rows(to, staging, own, KEYS, &t->in.keys, t->head_kv, t->key + own);
}

/* Keys that no row sees have gradients of 0. */
INLINE void clear_sums(const struct sm90_rows *to, const struct tile *t) {
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < KEYS * HEAD_DIM; at += THREADS) {
        const int j = t->key + at / HEAD_DIM, column = at % HEAD_DIM;
        if (j < t->in.keys.count && column < to->columns)
            ((element *)to->data)[row_start(to, &t->in.keys, j, t->head_kv) + column] = 0;
    }
}

#endif
