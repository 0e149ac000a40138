/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.cu: partial results over disjoint keys become one (math/lse.h): lse = log sum_n exp(lse_n),
 * out = sum_n exp(lse_n - lse) out_n. A warp a row; parts in the order of their index, sums in fp32. All of a row's 32 * 4
 * columns are read before they are written, and its lse by every lane, so that the result may lie over part 0. Bound by
 * memory. */
#include "cuda/common/merge.h"

#include "cuda/tile/element.h"

INLINE int64_t offset(const struct view *x, int64_t b, int64_t i, int64_t h) {
    return b * x->batch + i * x->row + h * x->head;
}

struct row {
    int64_t b, i, h; /* b and i in the tensors: 0 and the packed row where they are packed */
};

INLINE int64_t entry(const void *entries, int index64, int64_t at) {
    return index64 ? ((const int64_t *)entries)[at] : ((const int32_t *)entries)[at];
}

/* False past the end of a short sequence. */
INLINE bool row_of(const struct merge_params *p, int64_t index, struct row *r) {
    r->h = index % p->heads_q, index /= p->heads_q;
    r->i = index % p->seq_q, r->b = index / p->seq_q;
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

/* log sum exp over parts, by the whole warp: the largest first, then the sum in a fixed order. */
INLINE float whole_lse(const struct merge_params *p, struct row r) {
    const int lane = (int)threadIdx.x % 32;
    float most = p->sinks ? p->sinks[r.h] : -INFINITY, sum = 0, poison = 0;
    for (int n = lane; n < p->count; n += 32) {
        const float lse = part_lse(p, n, r);
        most = fmaxf(most, lse);
        if (lse != lse) poison = lse;
    }
    for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (most > -INFINITY)
        for (int n = lane; n < p->count; n += 32) sum += expf(part_lse(p, n, r) - most);
    sum += poison;
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (p->sinks && most > -INFINITY) sum += expf(p->sinks[r.h] - most);
    if (sum != sum) return sum;
    return most == -INFINITY || most == INFINITY ? most : most + logf(sum);
}

/* An empty part may hold anything. */
INLINE void add_part(const struct merge_params *p, int n, struct row r, int x, float weight, float sum[4]) {
    const struct view *part = &p->part[p->evenly ? 0 : n].out;
    const int64_t at = offset(part, r.b, r.i, r.h) + (p->evenly ? n * p->step_out : 0) + x;
#pragma unroll
    for (int c = 0; c < 4; ++c)
        if (weight != 0 && x + 32 * c < p->dim_v) sum[c] += weight * load_any(part->data, part->dtype, at + 32 * c);
}

extern "C" __global__ void __launch_bounds__(128) KERNEL(const __grid_constant__ struct merge_params p) {
    const int64_t index = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    struct row r;
    if (index >= (int64_t)p.batch * p.seq_q * p.heads_q || !row_of(&p, index, &r)) return;
    const float whole = whole_lse(&p, r);
    for (int x0 = 0; x0 < p.dim_v; x0 += 128) {
        float sum[4] = {0, 0, 0, 0};
        for (int n0 = 0; n0 < p.count; n0 += 32) { /* a weight a lane, then the parts with many loads on their way */
            const float lse = n0 + lane < p.count ? part_lse(&p, n0 + lane, r) : -INFINITY;
            const float weights = lse == -INFINITY ? 0 : expf(lse - whole);
            const int parts = p.count - n0 < 32 ? p.count - n0 : 32;
#pragma unroll 8
            for (int n = 0; n < parts; ++n) add_part(&p, n0 + n, r, x0 + lane, __shfl_sync(0xffffffffu, weights, n), sum);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (x0 + lane + 32 * c < p.dim_v)
                store_any(p.out.data, p.out.dtype, offset(&p.out, r.b, r.i, r.h) + x0 + lane + 32 * c, sum[c]);
    }
    __syncwarp();
    if (p.lse.data && lane == 0) ((float *)p.lse.data)[offset(&p.lse, r.b, r.i, r.h)] = whole;
}
