/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.cu: the split-KV merge. Parts (out_n, lse_n) over disjoint keys become one result (math/lse.h):
 *
 *     lse = log sum_n exp(lse_n)          out = sum_n exp(lse_n - lse) out_n
 *
 * A row is merged by one warp or, where it has many parts, by all warps of a block; sums are fp32 and in a fixed order. A
 * warp reads 128 columns of a row, and all of its lse, before it writes them, so the result may lie over part 0. With few
 * rows the kernel waits for memory alone, so where the parts are those of split keys, whose type and spacing are known, each
 * warp reads eight parts at a time. One or two parts, as in a ring of many processes, are many rows: of those of a
 * warp each lane works out one, and the warp reads four of them at a time. */
#include "cuda/device/merge.h"

#include "cuda/device/lanes.h"
#include "cuda/device/sequence.h"
#include "cuda/ptx/dependent.h"

INLINE int64_t offset(const struct view *x, int64_t b, int64_t i, int64_t h) {
    return b * x->batch + i * x->row + h * x->head;
}

struct row {
    int64_t b, i, h; /* b and i in the tensors: 0 and the packed row where they are packed */
};

/* Takes the lowest digit of a number of mixed base. It divides 32 bits where they suffice, since 64 take much longer. */
INLINE int take_digit(int64_t *number, int base) {
    const int64_t before = *number;
    *number = before >> 32 ? before / base : (int64_t)((uint32_t)before / (uint32_t)base);
    return (int)(before - *number * base);
}

/* False past the end of a short sequence. */
INLINE bool row_of(const struct merge_params *p, int64_t index, struct row *r) {
    r->h = take_digit(&index, p->heads_q), r->i = take_digit(&index, p->seq_q), r->b = index;
    int64_t rows = p->seq_q, first = 0;
    if (p->cu_q) first = entry(p->cu_q, p->index64, r->b), rows = entry(p->cu_q, p->index64, r->b + 1) - first;
    if (p->used_q) rows = entry(p->used_q, p->index64, r->b);
    if (r->i >= rows) return false;
    if (p->cu_q) r->b = 0, r->i += first;
    return true;
}

INLINE float part_lse(const struct merge_params *p, int n, struct row r) {
    const struct view *x = &p->part[p->evenly ? 0 : n].lse;
    return ((const float *)x->data)[offset(x, r.b, r.i, r.h) + (p->evenly ? n * p->step_lse : 0)];
}

#if MERGE_PARTS == TWO_MERGE_PARTS

/* Of one or two parts. */
struct two_weights {
    float first, second, lse;
};

INLINE struct two_weights weights_of_two(const struct merge_params *p, struct row r) {
    const float a = part_lse(p, 0, r), b = p->count > 1 ? part_lse(p, 1, r) : -INFINITY, most = fmaxf(a, b);
    const float first = a == -INFINITY ? 0 : expf(a - most), second = b == -INFINITY ? 0 : expf(b - most);
    const float sum = first + second;
    if (most == -INFINITY && sum == 0) return (struct two_weights){0, 0, -INFINITY};
    return (struct two_weights){first / sum, second / sum, sum != sum ? sum : most + logf(sum)};
}

INLINE void store_four(const struct merge_params *p, int64_t at, float4 x) {
    if (p->out.dtype == CUDA_FP32)
        *(float4 *)((float *)p->out.data + at) = x;
    else if (p->out.dtype == CUDA_BF16)
        *(uint2 *)((uint16_t *)p->out.data + at) = make_uint2(cvt_bf16x2(x.x, x.y), cvt_bf16x2(x.z, x.w));
    else
        *(uint2 *)((uint16_t *)p->out.data + at) = make_uint2(cvt_f16x2(x.x, x.y), cvt_f16x2(x.z, x.w));
}

INLINE float4 weighted(float weight, float4 x) {
    return weight == 0 ? make_float4(0, 0, 0, 0) : make_float4(weight * x.x, weight * x.y, weight * x.z, weight * x.w);
}

/* Where a row lies, as the lane that has worked it out says it to all. */
INLINE int64_t of_lane(int64_t at, int lane) {
    const uint32_t low = __shfl_sync(0xffffffffu, (uint32_t)at, lane);
    return (int64_t)((uint64_t)__shfl_sync(0xffffffffu, (uint32_t)((uint64_t)at >> 32), lane) << 32 | low);
}

/* Rows index to index + ROWS_OF_TWO - 1, each of which one lane works out; all loads of BATCH_OF_TWO of them are issued
 * before the first is waited for. */
INLINE void merge_two(const struct merge_params *p, int64_t index) {
    const int64_t rows = (int64_t)p->batch * p->seq_q * p->heads_q, last = rows - index;
    const int lane = (int)threadIdx.x % 32, own = lane % ROWS_OF_TWO;
    const struct view *a = &p->part[0].out, *b = &p->part[p->count - 1].out;
    struct row r;
    row_of(p, own < last ? index + own : rows - 1, &r);
    const struct two_weights w = weights_of_two(p, r);
    const int64_t first_at = offset(a, r.b, r.i, r.h), second_at = offset(b, r.b, r.i, r.h),
                  out_at = offset(&p->out, r.b, r.i, r.h);
    for (int n0 = 0; n0 < ROWS_OF_TWO && n0 < last; n0 += BATCH_OF_TWO)
        for (int x0 = 0; x0 < p->dim_v; x0 += 128) {
            const int x = x0 + 4 * lane < p->dim_v ? x0 + 4 * lane : p->dim_v - 4;
            float4 first[BATCH_OF_TWO], second[BATCH_OF_TWO];
#pragma unroll
            for (int n = 0; n < BATCH_OF_TWO; ++n) {
                first[n] = *(const float4 *)((const float *)a->data + of_lane(first_at, n0 + n) + x);
                second[n] = *(const float4 *)((const float *)b->data + of_lane(second_at, n0 + n) + x);
            }
#pragma unroll
            for (int n = 0; n < BATCH_OF_TWO; ++n) {
                const float4 u = weighted(__shfl_sync(0xffffffffu, w.first, n0 + n), first[n]),
                             v = weighted(__shfl_sync(0xffffffffu, w.second, n0 + n), second[n]);
                const int64_t to = of_lane(out_at, n0 + n);
                if (n0 + n < last && x0 + 4 * lane < p->dim_v)
                    store_four(p, to + x, make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w));
            }
        }
    if (p->lse.data && lane < ROWS_OF_TWO && lane < last) ((float *)p->lse.data)[offset(&p->lse, r.b, r.i, r.h)] = w.lse;
}

extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS) KERNEL(const __grid_constant__ struct merge_params p) {
    const int64_t first = ((int64_t)blockIdx.x * MERGE_WARPS + threadIdx.x / 32) * ROWS_OF_TWO;
    if (first < (int64_t)p.batch * p.seq_q * p.heads_q) merge_two(&p, first);
}

#else

/* What the lse of a part of split keys lacks by its rounding, which stands behind all lse: where lse is large, its rounding
 * would move the weight of all keys of the part together. */
INLINE float part_rest(const struct merge_params *p, int n, struct row r) {
    if (!p->evenly) return 0;
    return ((const float *)p->part[0].lse.data)[offset(&p->part[0].lse, r.b, r.i, r.h) + (p->count + n) * p->step_lse];
}

/* A row's parts together: their greatest lse, the sum of their exponentials relative to it, and lse. */
struct whole {
    float most, sum, lse;
};

/* e^(lse of a part - most). An empty part may hold anything, and counts 0. */
INLINE float exponential_of(const struct merge_params *p, int n, struct row r, float most) {
    const float lse = part_lse(p, n, r);
    return lse == -INFINITY ? 0 : expf(lse - most + part_rest(p, n, r));
}

/* By the whole warp: first the largest, then the sum in a fixed order. */
INLINE struct whole whole_of(const struct merge_params *p, struct row r) {
    const int lane = (int)threadIdx.x % 32;
    struct whole w = {p->sinks ? p->sinks[r.h] : -INFINITY, 0, 0};
    float poison = 0;
    for (int n = lane; n < p->count; n += 32) {
        const float lse = part_lse(p, n, r);
        w.most = fmaxf(w.most, lse);
        if (lse != lse) poison = lse;
    }
    for (int d = 16; d; d /= 2) w.most = fmaxf(w.most, __shfl_xor_sync(0xffffffffu, w.most, d));
    if (w.most > -INFINITY)
        for (int n = lane; n < p->count; n += 32) w.sum += exponential_of(p, n, r, w.most);
    w.sum = warp_sum(w.sum + poison);
    if (p->sinks && w.most > -INFINITY) w.sum += expf(p->sinks[r.h] - w.most);
    w.lse = w.sum != w.sum ? w.sum : w.most == -INFINITY || w.most == INFINITY ? w.most : w.most + logf(w.sum);
    return w;
}

/* What part n counts in the result. */
INLINE float weight_of(const struct merge_params *p, int n, struct row r, const struct whole *w) {
    const bool is_there = n < p->count && !(w->most == -INFINITY && w->sum == 0);
    return is_there ? exponential_of(p, n, r, w->most) / w->sum : 0;
}

/* Adds columns x + 32 c of part n, which may lie anywhere and be of any type. */
INLINE void add_part(const struct merge_params *p, int n, struct row r, int x, float weight, float sum[4]) {
    const struct view *part = &p->part[p->evenly ? 0 : n].out;
    const int64_t at = offset(part, r.b, r.i, r.h) + (p->evenly ? n * p->step_out : 0) + x;
#pragma unroll
    for (int c = 0; c < 4; ++c)
        if (weight != 0 && x + 32 * c < p->dim_v) sum[c] += weight * load_any(part->data, part->dtype, at + 32 * c);
}

INLINE void merge_any(const struct merge_params *p, struct row r, const struct whole *whole) {
    const int lane = (int)threadIdx.x % 32;
    for (int x0 = 0; x0 < p->dim_v; x0 += 128) {
        float sum[4] = {0, 0, 0, 0};
        for (int n0 = 0; n0 < p->count; n0 += 32) {
            const float weights = weight_of(p, n0 + lane, r, whole); /* of 32 parts, one a lane */
            const int parts = p->count - n0 < 32 ? p->count - n0 : 32;
            for (int n = 0; n < parts; ++n) add_part(p, n0 + n, r, x0 + lane, __shfl_sync(0xffffffffu, weights, n), sum);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (x0 + lane + 32 * c < p->dim_v)
                store_any(p->out.data, p->out.dtype, offset(&p->out, r.b, r.i, r.h) + x0 + lane + 32 * c, sum[c]);
    }
}

/* Adds the warps' sums of a row in the order of the warps; the first warp gets the result. All threads of the block. */
INLINE void add_up(float4 *sum) {
    __shared__ float4 sums[MERGE_WARPS][32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    sums[warp][lane] = *sum;
    __syncthreads();
    for (int w = 1; w < MERGE_WARPS && warp == 0; ++w) {
        const float4 more = sums[w][lane];
        sum->x += more.x, sum->y += more.y, sum->z += more.z, sum->w += more.w;
    }
    __syncthreads();
}

/* Adds part n0 + n, of columns x to x + 3, which lane n % 32 knows the weight of. */
INLINE void add_columns(const struct merge_params *p, const float *from, int n0, int n, float weights, int x, float4 *sum) {
    const float weight = __shfl_sync(0xffffffffu, weights, n);
    float4 part = make_float4(0, 0, 0, 0);
    if (weight != 0 && x < p->dim_v) part = *(const float4 *)(from + (n0 + n) * p->step_out + x);
    sum->x += weight * part.x, sum->y += weight * part.y;
    sum->z += weight * part.z, sum->w += weight * part.w;
}

/* Merges the parts of split keys: fp32, rows of whole 16 bytes; a lane has columns x to x + 3. Of `warps` that share the
 * row, warp `own` takes every warps-th part. One warp alone adds in the order of MERGE_WARPS of them: how many they are
 * depends on the number of rows, and a row's bits do not. */
INLINE void merge_even(const struct merge_params *p, struct row r, const struct whole *whole, int warps, int own) {
    const int lane = (int)threadIdx.x % 32;
    const float *from = (const float *)p->part[0].out.data + offset(&p->part[0].out, r.b, r.i, r.h);
    for (int x0 = 0; x0 < p->dim_v; x0 += 128) {
        const int x = x0 + 4 * lane;
        float4 sum[MERGE_WARPS] = {};
        for (int n0 = 0; n0 < p->count; n0 += 32) {
            const float weights = weight_of(p, n0 + lane, r, whole); /* of 32 parts, one a lane */
            const int parts = p->count - n0 < 32 ? p->count - n0 : 32;
            if (warps > 1) {
#pragma unroll 8
                for (int n = own; n < parts; n += MERGE_WARPS) add_columns(p, from, n0, n, weights, x, &sum[0]);
            } else {
#pragma unroll 2
                for (int n = 0; n < parts; n += MERGE_WARPS)
#pragma unroll
                    for (int w = 0; w < MERGE_WARPS; ++w)
                        if (n + w < parts) add_columns(p, from, n0, n + w, weights, x, &sum[w]);
            }
        }
        if (warps > 1) {
            add_up(&sum[0]);
        } else {
#pragma unroll
            for (int w = 1; w < MERGE_WARPS; ++w)
                sum[0].x += sum[w].x, sum[0].y += sum[w].y, sum[0].z += sum[w].z, sum[0].w += sum[w].w;
        }
        if (own > 0 || x >= p->dim_v) continue;
        const int64_t to = offset(&p->out, r.b, r.i, r.h) + x;
        store_any(p->out.data, p->out.dtype, to, sum[0].x), store_any(p->out.data, p->out.dtype, to + 1, sum[0].y);
        store_any(p->out.data, p->out.dtype, to + 2, sum[0].z), store_any(p->out.data, p->out.dtype, to + 3, sum[0].w);
    }
}

extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS) KERNEL(const __grid_constant__ struct merge_params p) {
    const int warp = (int)threadIdx.x / 32, warps = merge_warps(&p), own = warp % warps;
    const int64_t index = (int64_t)blockIdx.x * (MERGE_WARPS / warps) + warp / warps;
    struct row r;
    const bool there = index < (int64_t)p.batch * p.seq_q * p.heads_q && row_of(&p, index, &r);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    wait_for_previous(); /* it may have been launched early, see host/merge.c */
#endif
    if (!there) return;
    const struct whole whole = whole_of(&p, r);
    if (merge_is_even(&p))
        merge_even(&p, r, &whole, warps, own);
    else
        merge_any(&p, r, &whole);
    __syncwarp();
    if (p.lse.data && own == 0 && threadIdx.x % 32 == 0) ((float *)p.lse.data)[offset(&p.lse, r.b, r.i, r.h)] = whole.lse;
}
#endif
