/* SPDX-License-Identifier: BSD-3-Clause
 *
 * steps.h: the steps that backward.cu and backward_pair.cu share: what the producer copies, the five products, P and dS from
 * accumulators, and results to memory. Included by them alone, after the constants and struct shared. */
#ifndef STROBE_CUDA_SM90_BACKWARD_STEPS_H
#define STROBE_CUDA_SM90_BACKWARD_STEPS_H

#include "cuda/ptx/bulk.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/tma_5d.h"
#include "cuda/ptx/wgmma_transposed.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/backward/exact_row.h"
#include "cuda/sm90/backward/sinks.h"
#include "cuda/sm90/backward/softcap.h"
#include "cuda/sm90/trace.h"

#define JOIN_(a, b)  a##b
#define JOIN(a, b)   JOIN_(a, b)
#define SCORES_STEP  JOIN(wgmma_ss_, ROWS)
#define SCORES_FIRST JOIN(SCORES_STEP, _first)
#if COLUMNS == 48 || COLUMNS == 96
#define SUM_COLUMNS COLUMNS
#elif COLUMNS % 128
#define SUM_COLUMNS 64
#else
#define SUM_COLUMNS 128
#endif
#define SUM_STEP JOIN(wgmma_rs_, SUM_COLUMNS)
#if COLUMNS < 64
#define DQ_STEP JOIN(wgmma_st_, COLUMNS)
#else
#define DQ_STEP wgmma_st_64
#endif
#define DQ_FIRST JOIN(DQ_STEP, _first)

#define STAGE_STEP (SLABS * Q_SLAB / 16) /* from stage to stage in a descriptor of Q or dO */

/* Both sides count blocks; the count tells the stage and the parity of its barrier's phase. A reader waits for `full`, the
 * writer for `empty`, which is one phase behind. */
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

/* Copies a block of rows of `columns`. Rows past a sequence's end belong to others, and a NaN of theirs would reach this
 * sequence's sums with a weight of 0: where sequences are `cut`, packed or shortened, the copy engine delivers zeros for
 * those. A box without one column of the tensor, zeros as well, comes by `map`: for such a box the engine touches the
 * address that a map begins at, and that of `ends` lies in front of the tensor, where there may be no memory. */
INLINE void load_rows_of(unsigned char *to, const CUtensorMap *map, const CUtensorMap *ends, int columns, uint64_t *full,
                         const struct span *rows, int row, int head, bool cut) {
    const int left = rows->count - row;
    if (!cut || left >= ROWS) {
        load_tile(to, map, full, Q_SLAB, rows->first + row, head, rows->batch, TMA_EVICT_LAST);
        return;
    }
#pragma unroll 1
    for (int slab = 0; slab < SLABS; ++slab)
        if (SLABS == 1 || slab * 64 < columns)
            tma_load_5d(to + slab * Q_SLAB, ends, full,
                        {slab * 64, ROWS - left, head, rows->first + rows->count, rows->batch}, TMA_EVICT_LAST);
        else
            tma_load_4d(to + slab * Q_SLAB, map, full, slab * 64, rows->first + row, head, rows->batch, TMA_EVICT_LAST);
}

/* Copies K or V of the tile. */
INLINE void load_keys(unsigned char *to, const CUtensorMap *map, uint64_t *full, const struct tile *t) {
    mbarrier_expect(full, SLABS * K_SLAB);
    load_tile(to, map, full, K_SLAB, t->in.keys.first + t->key, t->head_keys, t->in.keys.batch, TMA_EVICT_FIRST);
}

/* Prefetches K or V of the tile to the L2 cache. */
INLINE void prefetch_keys(const CUtensorMap *map, const struct tile *t) {
    for (int slab = 0; slab < SLABS; ++slab)
        tma_prefetch_4d(map, slab * 64, t->in.keys.first + t->key, t->head_keys, t->in.keys.batch);
}

INLINE bool rows_are_cut(const struct sm90_backward_params *p) { return p->cu_seqlens_q || p->used_q; }

/* A block of rows: its first row, and where its lse and delta lie. */
struct block {
    int head, row;
    int64_t statistics;
};

INLINE struct block block_at(int head, int m, int64_t head_statistics) {
    const struct block block = {head, m * ROWS, head_statistics + m * ROWS};
    return block;
}

/* The block of a note. */
INLINE struct block block_noted(const struct sm90_backward_params *p, const struct tile *t, const struct note *note) {
    const int head = (t->head_kv + 1) * p->group - note->heads;
    return block_at(head, block_of_note(note), statistic_at(p, t->batch, head, 0));
}

/* Copies Q and lse of a block, the `count`th that the CTA processes, when its stage is free. */
INLINE void load_q(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, struct block block,
                   uint32_t count, struct tracer *tracer) {
    const uint32_t stage = stage_of(count);
    trace(tracer, STROBE_TRACE_WAIT_ROOM, count);
    mbarrier_wait(&s->q_empty[stage], empty_parity(count));
    trace(tracer, STROBE_TRACE_LOAD_Q, count);
    mbarrier_expect(&s->q_full[stage], SLABS * Q_SLAB + ROWS * sizeof(float));
    load_rows_of(s->q[stage], &p->q, &p->q_ends, p->q_rows.columns, &s->q_full[stage], &t->in.rows, block.row, block.head,
                 rows_are_cut(p));
    bulk_load(s->lse[stage], p->row_lse + block.statistics, ROWS * sizeof(float), &s->q_full[stage]);
}

/* Copies dO and delta of a block likewise, and the sink's weights. */
INLINE void load_dout(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, struct block block,
                      uint32_t count, struct tracer *tracer) {
    const uint32_t slot = dout_stage_of(count);
    trace(tracer, STROBE_TRACE_WAIT_ROOM, count);
    mbarrier_wait(&s->dout_empty[slot], dout_parity(count) ^ 1);
    trace(tracer, STROBE_TRACE_LOAD_DOUT, count);
    const uint32_t rows = sums_sinks(p) ? 2 * ROWS : ROWS;
    mbarrier_expect(&s->dout_full[slot], SLABS * Q_SLAB + rows * sizeof(float));
    load_rows_of(s->dout[slot], &p->dout, &p->dout_ends, p->dout_rows.columns, &s->dout_full[slot], &t->in.rows, block.row,
                 block.head, rows_are_cut(p));
    bulk_load(s->delta[stage_of(count)], p->row_delta + block.statistics, ROWS * sizeof(float), &s->dout_full[slot]);
    if (sums_sinks(p))
        bulk_load(s->sink[stage_of(count)], p->row_sink + block.statistics, ROWS * sizeof(float), &s->dout_full[slot]);
}

/* Copies the block of a note, and leaves the note; returns whether it is the tile's last. */
INLINE bool load_noted(const struct sm90_backward_params *p, struct shared *s, const struct tile *t, const struct note *note,
                       uint32_t count, struct tracer *tracer) {
    const struct block block = block_noted(p, t, note);
    mbarrier_wait(&s->q_empty[stage_of(count)], empty_parity(count)); /* the consumers are near enough for its note, too */
    s->note[count % NOTES] = *note;
    load_q(p, s, t, block, count, tracer);
    load_dout(p, s, t, block, count, tracer);
    return note->block & NOTE_LAST;
}

/* The warp is done with what the barrier guards, or has written it. */
INLINE void release(uint64_t *barrier) { arrive_as_warp(barrier); }

/* Issues S^T = K Q^T of the group's keys, or the same of V and dO. */
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

/* With blocks of 64 rows dP's accumulators start at delta and dP is taken from them, so that nothing is left to subtract
 * when dP is there. With 128 rows that was slower, as it was of pairs with a fixed dQ order. */
enum { DELTA_IN_DP = MASKS_SCORES && ROWS == 64 };

/* delta: from the block's first row on. */
INLINE void start_at_delta(float (&dp)[SCORES], const float *delta, bool delta_in_dp) {
#pragma unroll
    for (int c = 0; delta_in_dp && c < SCORES / 4; ++c) {
        const float2 two = *(const float2 *)(delta + (int)threadIdx.x % 4 * 2 + 8 * c);
        dp[4 * c] = dp[4 * c + 2] = two.x, dp[4 * c + 1] = dp[4 * c + 3] = two.y;
    }
}

/* Issues dP^T = V dO^T of the group's keys or, with delta_in_dp, delta - dP^T. */
INLINE void issue_dp(float (&dp)[SCORES], uint64_t keys, uint64_t rows, bool delta_in_dp) {
#if ROWS == 64
    if (delta_in_dp) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < COLUMNS / 16; ++step) {
            const int columns = step % 4 * 2;
            wgmma_ss_64_less(dp, keys + step / 4 * (K_SLAB / 16) + columns, rows + step / 4 * (Q_SLAB / 16) + columns);
        }
        wgmma_commit();
        return;
    }
#endif
    issue_scores(dp, keys, rows);
}

INLINE void issue_dp_from(float (&dp)[SCORES], const float *delta, uint64_t keys, uint64_t rows, bool delta_in_dp) {
    start_at_delta(dp, delta, delta_in_dp);
    issue_dp(dp, keys, rows, delta_in_dp);
}

/* A thread's part of dK or dV of 64 keys, in parts of as many columns as one product has. */
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

/* Issues dV += P^T dO, or dK += dS^T Q; packed: P or dS. */
INLINE void issue_sum(struct sums *sums, const uint32_t (&packed)[SCORES / 2], uint64_t rows, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = part * (PART / 8); step < (part + 1) * (PART / 8); ++step)
#pragma unroll
        for (int n = 0; n < SUM_PARTS; ++n)
            SUM_STEP(sums->part[n], &packed[4 * step],
                     rows + n * (SUM_COLUMNS / 64 * Q_SLAB / 16) + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

/* Issues dQ = dS K: a tile. */
INLINE void issue_dq(float (&dq)[DQ_WORDS], uint64_t ds, uint64_t keys) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step)
        if (step == 0)
            DQ_FIRST(dq, ds, keys);
        else
            DQ_STEP(dq, ds + step / 4 * (Q_SLAB / 16) + step % 4 * 2, keys + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

/* The address that lane l gives to stmatrix when a warp stores sixteen rows of dS of its sixteen keys, of the 64 keys in a
 * slab: matrix l / 8 has the keys from 8 (l / 8 % 2) and the rows from 8 (l / 16) on. */
INLINE uint32_t transposed_store(uint32_t slab) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
    return slab + (lane / 16 * 8 + lane % 8) * ROW_BYTES + ((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16;
}

/* Stores dS of a part, transposed back. */
INLINE void store_transposed(uint32_t to, const uint32_t (&packed)[SCORES / 2], int part) {
#pragma unroll
    for (int step = part * (PART / 8); step < (part + 1) * (PART / 8); ++step)
        stmatrix_x4_trans(to + step * (16 * ROW_BYTES), &packed[4 * step]);
}

/* With MASKS_SCORES: a hidden score becomes one of which the exponential makes 0, and P = 0 makes dS = 0 of any finite dP.
 * What a NaN or an infinity of a hidden pair does to sums is found in them (exact_row.h). With no branch between the
 * exponentials and what takes them, ptxas packs P beside them. */
INLINE void mask_scores(const struct sm90_backward_params *p, const struct tile *t, const struct block_pair *at,
                        float (&s)[SCORES]) {
    if (!MASKS_SCORES || at->full) return;
    const struct seen seen = seen_of(t, at);
    const float hidden = copysignf(INFINITY, -p->exponent);
#pragma unroll
    for (int v = 0; v < SCORES; ++v)
        if (!SEEN(seen, v)) s[v] = hidden;
}

/* P = 2^(S c - lse), in place. lse: negated, from the thread's first row on. A bias of -inf hides its key also from a row
 * whose lse is NaN; where the user's function gives it, what that row does to the sums is found in them (exact_row.h). */
INLINE void exponentials(const struct sm90_backward_params *p, float (&s)[SCORES], const float *lse, int part) {
#pragma unroll
    for (int c = part * (PART / 4); c < (part + 1) * (PART / 4); ++c) {
        const float2 shift = *(const float2 *)(lse + 8 * c);
#pragma unroll
        for (int v = 4 * c; v < 4 * c + 4; ++v) {
            const float weight = ex2(fmaf(s[v], p->exponent, v % 2 ? shift.y : shift.x));
            s[v] = FEATURE_CLASS == FEATURES_ALL && s[v] == -INFINITY ? 0 : weight;
        }
    }
}

/* dS = P * (dP - delta), in place of dP; s: P. delta: from the thread's first row on. With delta_in_dp dp has
 * delta - dP. */
INLINE void p_times_dp_less_delta(const struct sm90_backward_params *p, float (&dp)[SCORES], const float (&s)[SCORES],
                                  const float *delta, int part, bool delta_in_dp) {
#pragma unroll
    for (int c = part * (PART / 4); c < (part + 1) * (PART / 4); ++c) {
        if (delta_in_dp) {
#pragma unroll
            for (int v = 4 * c; v < 4 * c + 4; ++v) dp[v] = -s[v] * dp[v];
            continue;
        }
        const float2 shift = *(const float2 *)(delta + 8 * c);
#pragma unroll
        for (int v = 4 * c; v < 4 * c + 4; ++v)
            dp[v] = (HAS_ALL ? fabsf(s[v]) : s[v]) * (undropped(p, s[v], dp[v]) - (v % 2 ? shift.y : shift.x));
    }
}

/* The same with dropout alone: dP of a weight that is left out counts as 0. */
INLINE void p_times_kept_dp_less_delta(const struct sm90_backward_params *p, float (&dp)[SCORES], const float (&s)[SCORES],
                                       const float *delta, const struct kept *kept) {
#pragma unroll
    for (int v = 0; v < SCORES; ++v) {
        const float less = -delta[ROW_OF(v)];
        dp[v] = s[v] * (is_kept(kept, v) ? fmaf(dp[v], p->dv_factor, less) : less);
    }
}

INLINE void pack_part(uint32_t (&packed)[SCORES / 2], const float (&x)[SCORES], int part) {
#pragma unroll
    for (int i = part * (PART / 2); i < (part + 1) * (PART / 2); ++i) packed[i] = pack(x[2 * i], x[2 * i + 1]);
}

/* Keeps the upper 24 bits of each P, sixteen of them significant, four weights in three words: the fourth lies in the lowest
 * bytes of the words of the others. */
INLINE void keep_part(uint32_t (&kept)[SCORES / 4 * 3], const float (&x)[SCORES], int part) {
#pragma unroll
    for (int i = part * (PART / 4); i < (part + 1) * (PART / 4); ++i) {
        const uint32_t fourth = __float_as_uint(x[4 * i + 3]);
#pragma unroll
        for (int n = 0; n < 3; ++n) kept[3 * i + n] = __byte_perm(__float_as_uint(x[4 * i + n]), fourth, 0x3215 + n);
    }
}

/* The weights again. The lowest byte of each is another's: an error of 2^-15 at most, where a rounding to bf16 has 2^-9 and
 * one to fp16 2^-12. */
INLINE void restore_part(float (&x)[SCORES], const uint32_t (&kept)[SCORES / 4 * 3], int part) {
#pragma unroll
    for (int i = part * (PART / 4); i < (part + 1) * (PART / 4); ++i) {
#pragma unroll
        for (int n = 0; n < 3; ++n) x[4 * i + n] = __uint_as_float(kept[3 * i + n]);
        const uint32_t low = __byte_perm(kept[3 * i], kept[3 * i + 1], 0x0400);
        x[4 * i + 3] = __uint_as_float(__byte_perm(low, kept[3 * i + 2], 0x4210));
    }
}

/* P of a part, from S: score terms, exponential, mask. */
INLINE void make_p(const struct sm90_backward_params *p, const struct shared *shared, const struct tile *t,
                   const struct slope *slope, const struct block_pair *at, float (&s)[SCORES], float (&input)[INPUTS],
                   struct relatives *relatives, uint32_t (&packed)[SCORES / 2], int part) {
    const float *lse = shared->lse[at->stage] + at->lane_row;
    if (SOFTCAP_ALONE) {
        capped_exponentials(p, s, lse, part);
    } else {
        apply_score_terms(p, t, slope, at, s, input, relatives, part);
        exponentials(p, s, lse, part);
    }
    apply_masks(p, t, slope, at, s, part);
    pack_part(packed, s, part);
}

/* dS of a part, from dP and P. */
INLINE void make_ds(const struct sm90_backward_params *p, const struct shared *shared, const struct tile *t,
                    const struct slope *slope, const struct block_pair *at, float (&dp)[SCORES],
                    const float (&weights)[SCORES], const float (&input)[INPUTS], struct sink_sums *sinks,
                    uint32_t (&packed)[SCORES / 2], int part, bool delta_in_dp) {
    const float *delta = shared->delta[at->stage] + at->lane_row;
    if (DROPOUT_ALONE)
        p_times_kept_dp_less_delta(p, dp, weights, delta, &at->kept);
    else
        p_times_dp_less_delta(p, dp, weights, delta, part, delta_in_dp);
    hide_ds(t, at, dp, weights, part);
    if (sums_sinks(p)) add_to_sinks(sinks, shared->sink[at->stage] + at->lane_row, dp, weights, part);
    apply_ds_terms(p, t, slope, at, dp, weights, input, shared->lse[at->stage] + 2 * (threadIdx.x % 4), part);
    pack_part(packed, dp, part);
}

/* A thread's part of a row from `column` on, of all that are stored of it: whole pieces, if they can be stored so. */
template <int count>
INLINE void store_pieces(const struct sm90_rows *rows, element *to, bool there, const float (&sums)[count], int half,
                         int column, float factor) {
#pragma unroll
    for (int v = 2 * half; v < count; v += 16) {
        uint32_t packed[4] = {0, 0, 0, 0}; /* of 48 columns the last sixteen make two pieces */
#pragma unroll
        for (int n = 0; n < 4 && v + 4 * n < count; ++n)
            packed[n] = pack(sums[v + 4 * n] * factor, sums[v + 4 * n + 1] * factor);
        const uint4 piece = gather_piece(packed[0], packed[1], packed[2], packed[3]);
        const int from = column + 2 * (v - 2 * half) + (int)threadIdx.x % 4 * 8;
        if (there && from < rows->columns) *(uint4 *)(to + from) = piece;
    }
}

template <int count>
INLINE void store_elements(const struct sm90_rows *rows, GRADIENT *to, bool there, const float (&sums)[count], int half,
                           int column, float factor) {
#pragma unroll
    for (int v = 2 * half; v < count; v += 4)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
            const int at = column + 2 * (v - 2 * half) + (int)threadIdx.x % 4 * 2 + x;
            if (there && at < rows->columns) to[at] = (GRADIENT)PACK_GRADIENT(sums[v + x] * factor, 0);
        }
}

/* A warp's sums of sixteen keys from `key` on, rounded, to the tensor: from registers, so that nothing of the tile's shared
 * memory is needed for it. */
INLINE void store_sums(const struct sm90_backward_params *p, const struct sm90_rows *to, const struct tile *t,
                       const struct sums *sums, float factor, int key) {
    const bool whole = to->aligned && to->columns % 8 == 0;
    if (p->may_hide) {
#pragma unroll
        for (int n = 0; n < SUM_PARTS; ++n) mark_keys(p, t, key, sums->part[n]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int j = key + (int)threadIdx.x % 32 / 4 + 8 * half;
        GRADIENT *row = (GRADIENT *)to->data + row_start(to, &t->in.keys, j, t->head_kv);
#pragma unroll
        for (int n = 0; n < SUM_PARTS; ++n)
            if (whole)
                store_pieces(to, row, j < t->in.keys.count, sums->part[n], half, n * SUM_COLUMNS, factor);
            else
                store_elements(to, row, j < t->in.keys.count, sums->part[n], half, n * SUM_COLUMNS, factor);
    }
}

#endif
