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

/* Whether a segment is an item with its only part, which then lies in shared memory, behind the weights of its rows, if
 * there is room. */
enum { WEIGHTS = 2 * BLOCK_M };
INLINE bool is_whole_item(const struct segment *s) {
    return (WEIGHTS + BLOCK_M * (DIM_V + 2)) * (int)sizeof(float) <= STAGE_BYTES && s->parts == 1;
}
INLINE float *whole_part(float *stage) { return stage + WEIGHTS; }

/* Reads of a part, which is another CTA's if not the whole. */
INLINE float2 part_2(const float *from, bool whole) { return whole ? *(const float2 *)from : __ldcg((const float2 *)from); }
INLINE float4 part_4(const float *from, bool whole) { return whole ? *(const float4 *)from : __ldcg((const float4 *)from); }

/* Stores the lane's columns of one of its two rows, [DIM_V]. */
INLINE void put_row(float *row, const struct state *state, int half) {
    const int lane = (int)threadIdx.x % 32;
#if defined(STORED_DTYPE) /* columns as decode_bytes.h has them */
    float4 *const to = (float4 *)row + lane % 4;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n += 2) {
        const float *const even = &state->o[n][2 * half], *const odd = &state->o[n + 1][2 * half];
        to[2 * n] = make_float4(even[0], odd[0], even[1], odd[1]);
    }
#else
    float2 *const to = (float2 *)row + lane % 4;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) to[4 * n] = make_float2(state->o[n][2 * half], state->o[n][2 * half + 1]);
#endif
}

/* Stores the warp's rows as a part, from registers. */
INLINE void store_part(const struct decode_params *d, const struct segment *s, float *part, const struct state *state,
                       int first) {
    const int lane = (int)threadIdx.x % 32, end = s->t.rows * d->p.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + 8 * half;
        float l = state->l[half];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (row >= end) continue;
        put_row(part + row * DIM_V, state, half);
        if (lane % 4 == 0) *(float2 *)(part + statistics_at(d, row)) = make_float2(state->m[half], l);
    }
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

/* Rows whose weights and sums, [part][row] each, fit the memory of a stage. */
INLINE int rows_at_a_time(const struct segment *s) { return STAGE_BYTES / (2 * (int)sizeof(float) * s->parts); }

/* How a row ends whose scores have the maximum `most`, and whose weights the sum l. */
INLINE struct row_end end_of_merged_row(const struct params *p, struct place at, float most, float l) {
    const float c = p->exponent, shift = most == -INFINITY ? 0 : most * c;
    const float rest = most == -INFINITY ? 0 : fmaf(most, c, -shift);
    return end_of_row(shift, rest * (float)LN_2, p->to_natural, l, p->sinks ? p->sinks + at.h : NULL);
}

/* Weights of `rows` rows from `first` on, [part][row], by their maxima and sums; then the rows' factors, [row]. lse is
 * stored. A row has some lanes, because loads that wait for each other are what takes time. */
INLINE void add_up_statistics(const struct decode_params *d, const struct segment *s, const float *begin, float *weights,
                              int first, int rows) {
    enum { LANES = 16 };
    const struct params *p = &d->p;
    const float c = p->exponent;
    float *const sums = weights + s->parts * rows;
    const int lane = (int)threadIdx.x % LANES, own = (int)threadIdx.x / LANES;
#pragma unroll 1
    for (int row = own; row - own < rows; row += THREADS / LANES) {
        const int parts = row < rows ? s->parts : 0;
        const float *const part = other_parts(d, s) + statistics_at(d, first + row);
        float most = -INFINITY, l = 0;
#pragma unroll 4
        for (int n = lane; n < parts; n += LANES) {
            const float *from = n == 0 ? begin + statistics_at(d, first + row) : part + n * part_floats(d);
            const float2 its = part_2(from, is_whole_item(s));
            weights[n * rows + row] = its.x, sums[n * rows + row] = its.y;
            most = fmaxf(most, its.x);
        }
#pragma unroll
        for (int w = LANES / 2; w > 0; w /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
#pragma unroll 1
        for (int n = lane; n < parts; n += LANES) {
            const float weight = weight_of(weights[n * rows + row], most, c);
            weights[n * rows + row] = weight;
            l += weight * sums[n * rows + row];
        }
        l = lanes_sum(l, LANES);
        if (lane > 0 || parts == 0) continue;
        const struct place at = place_of(p, &s->t, first + row);
        const struct row_end end = end_of_merged_row(p, at, most, l);
        sums[row] = end.factor; /* in place of part 0's sum, which this lane has used */
        if (p->lse.data) ((float *)p->lse.data)[row_offset(&p->lse, &s->t, at)] = end.lse;
    }
    __syncthreads();
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

/* Four columns of a row, from x on, of all parts of the item; `weights` of the row, `rows` apart. Returns whether they are
 * finite. */
INLINE bool merge_columns(const struct decode_params *d, const struct segment *s, const float *first, const float *weights,
                          int rows, float factor, int row, int x) {
    const struct params *p = &d->p;
    const float *const part = other_parts(d, s) + row * DIM_V + x;
    const int step = part_floats(d);
    const float4 begin = part_4(first + row * DIM_V + x, is_whole_item(s));
    float o[4] = {weights[0] * begin.x, weights[0] * begin.y, weights[0] * begin.z, weights[0] * begin.w};
#pragma unroll 8
    for (int n = 1; n < s->parts; ++n) {
        const float4 its = __ldcg((const float4 *)(part + n * step));
        const float weight = weights[n * rows];
        o[0] = fmaf(weight, its.x, o[0]), o[1] = fmaf(weight, its.y, o[1]);
        o[2] = fmaf(weight, its.z, o[2]), o[3] = fmaf(weight, its.w, o[3]);
    }
    return store_columns(p, &s->t, row, x, o, factor);
}

/* All threads. begin: the item's first part; marks: [2] in shared memory, a bit for each row; memory: of a stage. */
INLINE void merge_parts(const struct decode_params *d, const struct segment *s, const float *begin, float *memory,
                        uint32_t *marks) {
    enum { QUARTERS = DIM_V / 4 };
    const int rows = s->t.rows * d->p.group, most = rows_at_a_time(s);
    if (threadIdx.x < 2) marks[threadIdx.x] = 0;
#pragma unroll 1
    for (int first = 0; first < rows; first += most) {
        const int here = rows - first < most ? rows - first : most;
        __syncthreads();
        add_up_statistics(d, s, begin, memory, first, here);
        const float *const factors = memory + s->parts * here;
#pragma unroll 1
        for (int at = (int)threadIdx.x; at < here * QUARTERS; at += THREADS) {
            const int row = at / QUARTERS, x = at % QUARTERS * 4;
            if (x < d->p.dim_v && !merge_columns(d, s, begin, memory + row, here, factors[row], first + row, x))
                atomicOr(&marks[(first + row) / 32], 1u << (first + row) % 32);
        }
    }
    __syncthreads();
    if ((marks[0] | marks[1]) == 0) return;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < rows; row += THREADS / 32)
        if (marks[row / 32] >> row % 32 & 1) exact_row(&d->p, s, row);
}

#endif
