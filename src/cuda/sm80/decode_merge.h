/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_merge.h: parts of an item, in the workspace, become rows of out and lse. The CTA that brings the last part merges
 * them, in the order of the keys: nothing waits, and the same schedule gives the same bits. */
#ifndef STROBE_CUDA_SM80_DECODE_MERGE_H
#define STROBE_CUDA_SM80_DECODE_MERGE_H

#include "cuda/device/lanes.h"
#include "cuda/device/lse.h"
#include "cuda/sm80/decode_load.h"
#include "cuda/sm80/softmax.h"
#include "math/fp8.h"

/* Floats of a part. Every CTA has a place for the part of an item that begins in it, and one for that of an item that began
 * before: the first part of an item lies among the former, the others in a row among the latter. Parts of a fixed size lie
 * in a row, item after item. */
INLINE int part_floats(const struct decode_params *d) { return d->rows_most * (DIM_V + 2); }

INLINE float *part_at(const struct decode_params *d, int slot) { return d->parts + (int64_t)slot * part_floats(d); }

/* Where part n of the item would lie; of n > 0 it does. */
INLINE const float *other_parts(const struct decode_params *d, const struct segment *s) {
    return part_at(d, s->first_slot + (d->part_blocks > 0 ? 0 : (int)gridDim.x));
}

INLINE int statistics_at(const struct decode_params *d, int row) { return d->rows_most * DIM_V + 2 * row; }

/* Whether a segment is an item with its only part, which does not go through memory. */
INLINE bool is_whole_item(const struct segment *s) { return s->parts == 1; }

/* Stores the lane's columns of one of its two rows, [DIM_V]; column x at x ^ swizzle, a multiple of 8. */
INLINE void put_row(float *row, int lane, int swizzle, const struct state *state, int half) {
#if TURNED /* columns as decode_turned.h has them */
    const int own = 2 * (lane / 4) ^ swizzle;
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
        *(float2 *)(row + (16 * n ^ own)) = make_float2(state->o[n][half], state->o[n][2 + half]);
#elif defined(STORED_DTYPE) /* columns as decode_bytes.h has them */
    const int own = 4 * (lane % 4) ^ swizzle;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n += 2) {
        const float *const even = &state->o[n][2 * half], *const odd = &state->o[n + 1][2 * half];
        *(float4 *)(row + (8 * n ^ own)) = make_float4(even[0], odd[0], even[1], odd[1]);
    }
#else
    const int own = 2 * (lane % 4) ^ swizzle;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n)
        *(float2 *)(row + (8 * n ^ own)) = make_float2(state->o[n][2 * half], state->o[n][2 * half + 1]);
#endif
}

INLINE float query_to_float(const struct params *p, element x) {
#if defined(STORED_DTYPE)
    return query_pair(p, x).x;
#else
    (void)p;
    return element_to_float(x);
#endif
}

INLINE float stored_to_float(stored x) {
#if defined(STORED_INT8)
    return (float)(int8_t)x;
#elif defined(STORED_FP8_E4M3)
    return e4m3_to_float(x);
#else
    return element_to_float(x);
#endif
}

/* The scale of a key that lies at `slot` of a sequence's keys or of a page; 1 where there is none. */
INLINE float key_scale(const float *scale, const int64_t *stride, const struct params *p, const struct job *t, int64_t batch,
                       int64_t slot) {
    return STORED_BYTES < ELEMENT_BYTES && scale ? *scale_of_key(scale, stride, p, t, batch, slot) : 1;
}

/* Row `packed` from the keys that it sees alone, one after the other, by a warp: for data that are not finite, where a
 * product of tiles brings 0 * NaN from a key that is hidden. */
static __device__ __noinline__ void exact_row(const struct params *p, const struct segment *s, int packed) {
    const struct job *t = &s->t;
    const struct place at = place_of(p, t, packed);
    const int lane = (int)threadIdx.x % 32;
    const element *const q = t->q + at.i * p->q.row + (at.h - t->kv * p->group) * p->q.head;
    float o[DIM_V / 32] = {0}, most = p->sinks ? p->sinks[at.h] : -INFINITY, sum = p->sinks ? 1 : 0;
#pragma unroll 1
    for (int64_t j = band_first(&t->band, at.i); j < band_end(&t->band, at.i); ++j) {
        int64_t key = t->first_key + j, page = 0, batch = t->batch_k;
        if (p->bool_mask.data && !((const uint8_t *)p->bool_mask.data)[score_offset(&p->bool_mask, t, at) + j]) continue;
        if (p->cache.page_table) {
            page = p->cache.page_table[t->b * p->cache.table_stride + key / p->cache.page_size];
            if (page < 0 || page >= p->cache.pages) continue;
            key %= p->cache.page_size, batch = page;
        }
        const stored *const k = s->k + page * p->k.batch + key * p->k.row, *const v = s->v + page * p->v.batch +
                                                                                      key * p->v.row;
        const float k_scale = key_scale(p->cache.k_scale, p->cache.k_scale_stride, p, t, batch, key);
        const float v_scale = key_scale(p->cache.v_scale, p->cache.v_scale_stride, p, t, batch, key);
        float dot = 0;
        for (int x = lane; x < p->dim; x += 32) dot += query_to_float(p, q[x]) * stored_to_float(k[x]);
        float score = warp_sum(dot) * k_scale * p->scale;
        if (p->softcap > 0) score = p->softcap * tanhf(score / p->softcap);
        if (p->slopes) score -= p->slopes[t->b * p->slopes_batch + at.h] * fabsf((float)(at.i + t->alibi_diagonal - j));
        const float higher = fmaxf(most, score), rescale = most == -INFINITY ? 0 : expf(most - higher);
        const float weight = expf(score - higher);
        sum = sum * rescale + weight, most = higher;
#pragma unroll
        for (int n = 0; n < DIM_V / 32; ++n)
            if (lane + 32 * n < p->dim_v) o[n] = o[n] * rescale + weight * (v_scale * stored_to_float(v[lane + 32 * n]));
    }
    const int64_t out = row_offset(&p->out, t, at);
#pragma unroll
    for (int n = 0; n < DIM_V / 32; ++n)
        if (lane + 32 * n < p->dim_v)
            store_any(p->out.data, p->out.dtype, out + lane + 32 * n, sum > 0 || sum != sum ? o[n] / sum : 0);
}

/* How a row ends whose scores have the maximum `most`, and whose weights the sum l. */
INLINE struct row_end end_of_merged_row(const struct params *p, struct place at, float most, float l) {
    const float c = p->exponent, shift = most == -INFINITY ? 0 : most * c;
    const float rest = most == -INFINITY ? 0 : fmaf(most, c, -shift);
    return end_of_row(shift, rest * (float)LN_2, p->to_natural, l, p->sinks ? p->sinks + at.h : NULL);
}

/* Stores four columns of a row, from x on, times factor. Returns whether they are finite. */
INLINE bool store_columns(const struct params *p, const struct job *t, int row, int x, float (&o)[4], float factor) {
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] *= factor, finite = finite && o[e] - o[e] == 0;
    const int64_t to = row_offset(&p->out, t, place_of(p, t, row)) + x;
    const int columns = p->dim_v - x;
    if (columns >= 4 && p->out.aligned && p->out.dtype == ELEMENT_DTYPE)
        *(uint2 *)((element *)p->out.data + to) = make_uint2(pack(o[0], o[1]), pack(o[2], o[3]));
    else if (STORED_BYTES < ELEMENT_BYTES && columns >= 4 && p->out.aligned && p->out.dtype == CUDA_BF16)
        *(uint2 *)((element *)p->out.data + to) = make_uint2(cvt_bf16x2(o[0], o[1]), cvt_bf16x2(o[2], o[3]));
    else
#pragma unroll 1
        for (int e = 0; e < 4 && e < columns; ++e) store_any(p->out.data, p->out.dtype, to + e, o[e]);
    return finite;
}

/* Four columns of a row: O of some keys, not normalised, with the maximum of their scores and the sum of their weights. */
struct quad {
    float most, l, o[4];
};

/* Adds `count` others, of statistics (maximum, sum) and O. */
INLINE void add_to_quad(struct quad *q, const float2 *statistics, const float4 *o, int count, float c) {
    float most = q->most;
#pragma unroll
    for (int n = 0; n < count; ++n) most = fmaxf(most, statistics[n].x);
    const float keep = weight_of(q->most, most, c);
    q->most = most, q->l *= keep;
#pragma unroll
    for (int e = 0; e < 4; ++e) q->o[e] *= keep;
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const float weight = weight_of(statistics[n].x, most, c);
        q->l = fmaf(weight, statistics[n].y, q->l);
        q->o[0] = fmaf(weight, o[n].x, q->o[0]), q->o[1] = fmaf(weight, o[n].y, q->o[1]);
        q->o[2] = fmaf(weight, o[n].z, q->o[2]), q->o[3] = fmaf(weight, o[n].w, q->o[3]);
    }
}

/* Stores columns x.. of a row that has all its keys, with x = 0 also lse; marks the row if they are not finite. */
INLINE void finish_quad(const struct params *p, const struct job *t, int row, int x, struct quad *q, uint32_t *marks) {
    const struct place at = place_of(p, t, row);
    const struct row_end end = end_of_merged_row(p, at, q->most, q->l);
    if (x == 0 && p->lse.data) ((float *)p->lse.data)[row_offset(&p->lse, t, at)] = end.lse;
    if (x < p->dim_v && !store_columns(p, t, row, x, q->o, end.factor)) atomicOr(&marks[row / 32], 1u << row % 32);
}

/* Rows that are marked, after a barrier. */
INLINE void finish_marked(const struct params *p, const struct segment *s, const uint32_t *marks) {
    if ((marks[0] | marks[1]) == 0) return;
    const int rows = s->t.rows * p->group;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < rows; row += THREADS / 32)
        if (marks[row / 32] >> row % 32 & 1) exact_row(p, s, row);
}

/* Merges the parts of an item in the workspace. Parts are loaded some at a time, because loads that wait for each other are
 * what takes time. All threads; marks: [2] in shared memory, 0 before the last barrier. */
INLINE void merge_parts(const struct decode_params *d, const struct segment *s, uint32_t *marks) {
    enum { QUARTERS = DIM_V / 4, LANES = THREADS / 128, EACH = 8 };
    static_assert(LANES == 1 || LANES == 2, "lanes that share a quad");
    const struct params *p = &d->p;
    const int count = s->t.rows * p->group * QUARTERS, lane = (int)threadIdx.x % LANES, step = part_floats(d);
    const float *const begin = part_at(d, s->first_slot), *const others = other_parts(d, s);
#pragma unroll 1
    for (int at = (int)threadIdx.x / LANES; at - (int)threadIdx.x / LANES < count; at += THREADS / LANES) {
        const bool is_there = at < count;
        const int row = is_there ? at / QUARTERS : 0, x = is_there ? at % QUARTERS * 4 : 0;
        struct quad q = {-INFINITY, 0, {0, 0, 0, 0}};
#pragma unroll 1
        for (int first = lane; first < s->parts; first += LANES * EACH) {
            float2 statistics[EACH];
            float4 o[EACH];
#pragma unroll
            for (int n = 0; n < EACH; ++n) {
                const int part = first + n * LANES;
                const float *const from = part == 0 ? begin : others + part * step;
                statistics[n] = make_float2(-INFINITY, 0), o[n] = make_float4(0, 0, 0, 0);
                if (part >= s->parts) continue;
                statistics[n] = __ldcg((const float2 *)(from + statistics_at(d, row)));
                o[n] = __ldcg((const float4 *)(from + row * DIM_V + x));
            }
            add_to_quad(&q, statistics, o, EACH, p->exponent);
        }
        if (LANES > 1) {
            const float2 its = make_float2(__shfl_xor_sync(0xffffffffu, q.most, 1), __shfl_xor_sync(0xffffffffu, q.l, 1));
            const float4 o = make_float4(__shfl_xor_sync(0xffffffffu, q.o[0], 1), __shfl_xor_sync(0xffffffffu, q.o[1], 1),
                                         __shfl_xor_sync(0xffffffffu, q.o[2], 1), __shfl_xor_sync(0xffffffffu, q.o[3], 1));
            add_to_quad(&q, &its, &o, 1, p->exponent);
        }
        if (lane == 0 && is_there) finish_quad(p, &s->t, row, x, &q, marks);
    }
    __syncthreads();
    finish_marked(p, s, marks);
}

#endif
