/* SPDX-License-Identifier: BSD-3-Clause
 *
 * values.h: the values groups, a warp group each: O += P V for half of the columns of O, and a segment's end, out and lse or
 * a part of them. V lies in the stages of K. Included by latent.cu alone. */
#ifndef STROBE_CUDA_SM90_LATENT_VALUES_H
#define STROBE_CUDA_SM90_LATENT_VALUES_H

#include "cuda/device/lse.h"
#include "cuda/sm90/latent/exact_rows.h"
#include "cuda/sm90/latent/scores.h"

/* O of a group, by columns: ptxas takes no product of 256 columns in a kernel of 512 threads. */
enum { PANELS = 2, PANEL = VALUES / PANELS };
typedef float values[PANELS][PANEL / 2];

/* As if they were one array. */
INLINE float value(const values &o, int v) { return o[v / (PANEL / 2)][v % (PANEL / 2)]; }

/* O += P V, complete when it returns. */
INLINE void multiply_values(values &o, uint64_t p, uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step)
            wgmma_st_128(o[panel], p + step * 2, v + panel * (PANEL / 64 * SLAB_EIGHT / 16) + step * (2 * EIGHT_BYTES / 16));
    wgmma_commit();
    wgmma_wait(0);
}

INLINE void rescale_values(values &o, const float (&factor)[2]) {
#pragma unroll
    for (int v = 0; v < VALUES / 2; ++v) o[v / (PANEL / 2)][v % (PANEL / 2)] *= factor[v / 2 % 2];
}

/* A block of a segment, when P is there and the scores of the next block are done. */
INLINE void add_block(struct shared *shared, values &o, int index, uint32_t count) {
    const uint32_t stage = stage_of(count);
    const int row = warp_row() + (int)threadIdx.x % 32 / 4;
    const unsigned char *its = shared->stage[stage];
    mbarrier_wait(&shared->weights[stage], parity_of(count));
    const float factor[2] = {shared->factor[stage][row], shared->factor[stage][row + 8]};
    mbarrier_wait(&shared->next[stage], parity_of(count));
    if (__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1)) rescale_values(o, factor);
    multiply_values(o, wgmma_operand(shared_address(shared->p[stage]), 0),
                    key_operand(its + index * (VALUES / 64 * SLAB_EIGHT), SLAB_EIGHT));
}

/* Stores the group's columns of a part that is still to be merged. */
INLINE void store_part(const struct latent_params *d, const struct segment *s, const float2 *ends, int index,
                       const values &o) {
    const int lane = (int)threadIdx.x % 32, tile = tile_of_cta(d), end = s->t.rows * d->p.group - tile * ROWS;
    float *const part = part_of(d, s->slot, tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + lane / 4 + 8 * half;
        if (row >= end) continue;
        float2 *const to = (float2 *)(part + row * LATENT_DIM_V + index * VALUES) + lane % 4;
#pragma unroll
        for (int n = 0; n < VALUES / 8; ++n)
            to[4 * n] = make_float2(value(o, 4 * n + 2 * half), value(o, 4 * n + 2 * half + 1));
        if (index == 0 && lane % 4 == 0) *((float2 *)(part + ROWS * LATENT_DIM_V) + row) = ends[row];
    }
}

/* Stores the group's columns of a row of out, rounded; of neighbouring lanes each gets four columns. */
INLINE void store_row(element *to, bool is_there, int half, float factor, const values &o) {
    const int odd = (int)threadIdx.x % 2;
#pragma unroll
    for (int n = 0; n < VALUES / 16; ++n) {
        const int v = 8 * n + 2 * half;
        const uint32_t low = pack(value(o, v) * factor, value(o, v + 1) * factor);
        const uint32_t high = pack(value(o, v + 4) * factor, value(o, v + 5) * factor);
        const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        if (is_there) *(uint2 *)(to + 16 * n) = make_uint2(odd ? got : low, odd ? high : got);
    }
}

/* Stores out and lse of a whole sequence, and marks it where the warp's O is not finite. */
INLINE void store_whole(const struct latent_params *d, const struct segment *s, const float2 *ends, int index,
                        const values &o) {
    const struct params *p = &d->p;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + lane / 4 + 8 * half, packed = tile_of_cta(d) * ROWS + row;
        const bool is_there = packed < s->t.rows * p->group;
        const struct place at = place_of(p, &s->t, is_there ? packed : 0);
        const float2 its = ends[row];
        const struct row_end end = end_of_row(its.x == -INFINITY ? 0 : its.x, 0, p->to_natural, its.y,
                                              p->sinks ? p->sinks + at.h : NULL);
        if (index == 0 && is_there && lane % 4 == 0 && p->lse.data)
            ((float *)p->lse.data)[row_offset(&p->lse, &s->t, at)] = end.lse;
        element *const to = (element *)p->out.data + row_offset(&p->out, &s->t, at) + index * VALUES + 8 * (lane % 2) +
                            4 * (lane % 4 / 2);
        if (half == 0)
            store_row(to, is_there, 0, end.factor, o);
        else
            store_row(to, is_there, 1, end.factor, o);
    }
    if (!d->may_hide) return;
    float nothing[4] = {0}; /* 0 x = 0 unless x is an infinity or a NaN */
#pragma unroll
    for (int v = 0; v < VALUES / 2; ++v) nothing[v % 4] = fmaf(value(o, v), 0, nothing[v % 4]);
    if (nothing[0] + nothing[1] + nothing[2] + nothing[3] != 0)
        *recompute_mark(d, s->t.b * p->heads_kv + s->t.kv, tile_of_cta(d)) = 1;
}

/* A values group, its index 0 or 1: segment after segment. */
INLINE void values_group(const struct latent_params *d, struct shared *shared, int index) {
    values o;
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
        const struct segment *s = &shared->segment[number % SEGMENTS];
        mbarrier_wait(&shared->weights[stage_of(count)], parity_of(count));
        mbarrier_wait(&shared->next[stage_of(count)], parity_of(count));
        const uint32_t end = count + (uint32_t)s->blocks;
        if (end == count) break;
#pragma unroll
        for (int v = 0; v < VALUES / 2; ++v) o[v / (PANEL / 2)][v % (PANEL / 2)] = 0;
#pragma unroll 1
        do {
            arrive(&shared->empty[stage_of(count)]); /* of Q, or of the block before */
            add_block(shared, o, index, ++count);
        } while (count != end);
        if (s->parts > 1)
            store_part(d, s, shared->end[number % 2], index, o);
        else
            store_whole(d, s, shared->end[number % 2], index, o);
        arrive(&shared->empty[stage_of(count++)]);
    }
}

#endif
