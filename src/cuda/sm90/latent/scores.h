/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scores.h: the scores group, one warp group: S = Q K^T with Q in registers, online softmax, and P to shared memory, where
 * the values groups read it. Included by latent.cu alone. */
#ifndef STROBE_CUDA_SM90_LATENT_SCORES_H
#define STROBE_CUDA_SM90_LATENT_SCORES_H

#include "cuda/device/score_terms.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/ptx/wgmma_transposed.h"
#include "cuda/sm90/latent/shared.h"

/* What forward/softmax.h is compiled for. */
#define HEAD_DIM LATENT_DIM_V
enum { HAS_ROW_OFFSETS = 0 };
#include "cuda/sm90/forward/softmax.h"

/* Steps of 16 columns, and those for which Q is in registers. */
enum { STEPS = LATENT_DIM / 16, HELD_STEPS = HELD_SLABS * 4, SCORES_BARRIER = 1 };

/* The descriptor of a stage of K or of a part of it. slab_bytes: as wgmma_operand() has it. */
INLINE uint64_t key_operand(const unsigned char *stage, uint32_t slab_bytes) {
    return wgmma_operand(shared_address(stage), slab_bytes) + ((uint64_t)((EIGHT_BYTES - SLAB_EIGHT) / 16) << 32);
}

INLINE int warp_row(void) { return (int)threadIdx.x / 32 % 4 * 16; }

/* What threads of the scores group wrote to shared memory is seen by its products. */
INLINE void scores_barrier(void) {
    fence_proxy_async();
    named_barrier_wait(SCORES_BARRIER, 128);
}

/* Q's first slabs, as the A operand of their steps. */
INLINE void take_query(uint32_t (&q)[HELD_STEPS][4], const unsigned char *stage) {
    const int lane = (int)threadIdx.x % 32, row = warp_row() + lane % 16;
    const uint32_t base = shared_address(stage);
#pragma unroll
    for (int step = 0; step < HELD_STEPS; ++step)
        ldmatrix_x4(q[step], base + step / 4 * Q_SLAB + chunk_at(row, step % 4 * 2 + lane / 16, SLAB_EIGHT));
}

/* S = Q K^T, complete when it returns. rest: the slabs of Q that are in shared memory. */
INLINE void multiply_scores(float (&s)[KEYS / 2], const uint32_t (&q)[HELD_STEPS][4], uint64_t rest, uint64_t k) {
    wgmma_fence();
    wgmma_rd_48_first(s, q[0], k);
#pragma unroll
    for (int step = 1; step < STEPS; ++step) {
        const uint64_t its = k + step / 4 * (SLAB_EIGHT / 16) + step % 4 * 2;
        if (step < HELD_STEPS)
            wgmma_rd_48(s, q[step], its);
        else
            wgmma_sd_48(s, rest + (step / 4 - HELD_SLABS) * (Q_SLAB / 16) + step % 4 * 2, its);
    }
    wgmma_commit();
    wgmma_wait(0);
}

/* Sets a stage's rows of V from `begin` on to zero: slots past a sequence's length may hold NaN. The scores group. */
INLINE void clear_keys(unsigned char *stage, int begin) {
#pragma unroll 1
    for (int at = begin * 8 * (LATENT_DIM_V / 64) + (int)threadIdx.x % 128; at < KEYS * 8 * (LATENT_DIM_V / 64); at += 128) {
        const int row = at / (8 * (LATENT_DIM_V / 64)), slab = at / 8 % (LATENT_DIM_V / 64);
        *(uint4 *)(stage + row / 8 * EIGHT_BYTES + slab * SLAB_EIGHT + row % 8 * 128 + at % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
    scores_barrier();
}

/* Hides from each row what lies outside of its band, in the block from key j on, and keys without a page. */
INLINE void hide(const struct latent_params *d, const struct segment *s, uint32_t missing, float (&x)[KEYS / 2], int j) {
    const int lane = (int)threadIdx.x % 32, origin = j + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int packed = tile_of_cta(d) * ROWS + warp_row() + lane / 4 + 8 * half, i = packed / d->p.group;
        const int low = clamp(band_first(&s->t.band, i) - origin, KEYS), end = clamp(band_end(&s->t.band, i) - origin, KEYS);
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v)
            if (v / 2 % 2 == half && (8 * (v / 4) + v % 2 < low || 8 * (v / 4) + v % 2 >= end || missing >> v / 4 & 1))
                x[v] = -INFINITY;
    }
}

/* Scale, softcap and ALiBi, in the block from key j on. */
INLINE void add_terms(const struct latent_params *d, const struct job *t, float (&x)[KEYS / 2], int j) {
    const struct params *p = &d->p;
    const int lane = (int)threadIdx.x % 32, first = j + lane % 4 * 2;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v)
        x[v] = p->softcap > 0 ? softcapped(x[v], p->softcap, d->softcap_rate) : x[v] * p->scale;
    if (!p->slopes) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const struct place at = place_of(p, t, tile_of_cta(d) * ROWS + warp_row() + lane / 4 + 8 * half);
        const float slope = at.i < t->rows ? p->slopes[t->b * p->slopes_batch + at.h] : 0;
        const int distance = (int)t->alibi_diagonal + at.i - first;
#pragma unroll
        for (int v = 0; v < KEYS / 2; ++v)
            if (v / 2 % 2 == half) x[v] -= slope * fabsf((float)(distance - 8 * (v / 4) - v % 2));
    }
}

/* P, rounded, into its place as the A operand of P V. */
INLINE void put_weights(unsigned char *p, const float (&s)[KEYS / 2]) {
    const int lane = (int)threadIdx.x % 32, row = warp_row() + lane % 16;
    const uint32_t base = shared_address(p);
    uint32_t packed[KEYS / 4];
    pack_p(packed, s);
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step)
        stmatrix_x4(base + chunk_at(row, 2 * step + lane / 16, SLAB_EIGHT), &packed[4 * step]);
}

/* The maximum and the sum of the warp's rows, after a segment's last block. */
INLINE void put_end(float2 *end, struct rows *r) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = r->sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) end[warp_row() + lane / 4 + 8 * half] = make_float2(sum == 0 ? -INFINITY : r->shift[half], sum);
    }
}

/* A block of K, the n-th of `blocks` of segment `number`: its P. What can be known before the scores is worked out before:
 * the softmax is on the path that the tensor cores wait for. */
INLINE void score_block(const struct latent_params *d, struct shared *shared, const uint32_t (&q)[HELD_STEPS][4],
                        struct rows *r, int n, int blocks, uint32_t number, uint32_t count) {
    const struct segment *s = &shared->segment[number % SEGMENTS];
    const uint32_t stage = stage_of(count), before = stage == 0 ? STAGES - 1 : stage - 1;
    const int j = s->first + n * KEYS, left = s->t.keys - j, lane = (int)threadIdx.x % 32; /* left: keys from here on */
    const bool is_last = n == blocks - 1;
    const float nothing[2] = {0, 0};
    float x[KEYS / 2];
    mbarrier_wait(&shared->full[stage], parity_of(count));
    const uint32_t missing = shared->missing[stage];
    const bool hides = j < s->full_first || j + KEYS > s->full_end || missing;
    if (left < KEYS) clear_keys(shared->stage[stage], left > 0 ? left : 0);
    multiply_scores(x, q, wgmma_operand(shared_address(shared->q[0]), 0), key_operand(shared->stage[stage], 0));
    if (n > 0) arrive(&shared->next[before]);
    if (IS_RAW) scale_scores(shared->scale[stage], 1, KEYS / 8, (float(*)[4])x);
    if (HAS_TERMS && d->p.scaled) add_terms(d, &s->t, x, j);
    if (hides) hide(d, s, missing, x, j);
    const struct lag lag = {d->lag_unit, d->least_lag, n};
    online_softmax(x, r, d->p.exponent, &lag, nothing);
    if (IS_RAW) scale_weights(shared->scale[stage], 1, KEYS / 8, 1, (float(*)[4])x);
    put_weights(shared->p[stage], x);
    if (lane % 4 < 2) {
        const float factor = lane % 4 ? r->factor[1] : r->factor[0];
        shared->factor[stage][warp_row() + lane / 4 + lane % 4 * 8] = r->grown ? factor : 1;
    }
    if (is_last) put_end(shared->end[number % 2], r);
    fence_proxy_async();
    arrive(&shared->weights[stage]);
    if (is_last) arrive(&shared->next[stage]);
}

INLINE void scores_group(const struct latent_params *d, struct shared *shared) {
    uint32_t q[HELD_STEPS][4];
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
        const uint32_t stage = stage_of(count);
        mbarrier_wait(&shared->full[stage], parity_of(count));
        const int blocks = shared->segment[number % SEGMENTS].blocks;
        take_query(q, shared->stage[stage]);
        arrive(&shared->weights[stage]);
        arrive(&shared->next[stage]);
        if (blocks == 0) break;
        ++count;
        struct rows r = NO_ROWS;
#pragma unroll 1
        for (int n = 0; n < blocks; ++n, ++count) score_block(d, shared, q, &r, n, blocks, number, count);
    }
}

#endif
