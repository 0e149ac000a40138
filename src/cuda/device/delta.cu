/* SPDX-License-Identifier: BSD-3-Clause
 *
 * delta.cu: the small kernels around the backward pass, all bound by memory.
 *   strobe__row_deltas   delta = rowsum(dO * O) - dlse and lse, of fp32 tensors as it is and else in base 2, of every packed
 *                        row, 8, 16 or 32 lanes a row; and zeros where the main pass adds up dQ, dS and P
 *   strobe__sink_sums    dsink of a head = -sum over batch and rows of exp(sink - lse) (D - dlse), a block of threads each,
 *                        in a fixed order, in fp64
 *   strobe__dq_round     the fp32 sums of dQ to where and as the caller wants them
 *   strobe__dbias_round  the fp32 sums of dbias likewise */
#include "cuda/device/lanes.h"
#include "cuda/device/row_statistics.h"
#include "cuda/ptx/red.h"

/* Loads eight columns from element `at` on, of which `columns` are the tensor's; the others are 0. */
INLINE void load_eight(const struct view *x, int64_t at, int columns, float to[8]) {
    const bool whole = columns >= 8 && x->aligned;
    if (whole && (x->dtype == CUDA_BF16 || x->dtype == CUDA_FP16)) {
        const uint4 raw = *(const uint4 *)((const uint16_t *)x->data + at);
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const uint16_t half = (uint16_t)(words[e / 2] >> (16 * (e % 2)));
            to[e] = x->dtype == CUDA_BF16 ? bf16_to_float(half) : fp16_to_float(half);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) to[e] = e < columns ? load_any(x->data, x->dtype, at + e) : 0;
}

/* A block of threads of these kernels has PACKED_PADDING packed rows of one head; returns the first. */
INLINE int rows_of_block(struct job *t, const struct params *p) {
    unsigned index = blockIdx.x;
    const int first = take_digit(&index, p->packed_rows / PACKED_PADDING) * PACKED_PADDING;
    t->kv = take_digit(&index, p->heads_kv), t->b = (int)index;
    job_sequence(t, p);
    return first;
}

/* This lane's part of a row's delta. */
INLINE float delta_of_row(const struct params *p, const struct job *t, struct place at, int lane, int lanes) {
    const int64_t out = row_offset(&p->out, t, at), dout = row_offset(&p->dout, t, at);
    float sum = 0;
    for (int x = 8 * lane; x < p->dim_v; x += 8 * lanes) {
        float left[8], right[8];
        load_eight(&p->out, out + x, p->dim_v - x, left);
        load_eight(&p->dout, dout + x, p->dim_v - x, right);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(left[e], right[e], sum);
    }
    if (p->dlse.data && lane == 0) sum -= ((const float *)p->dlse.data)[row_offset(&p->dlse, t, at)];
    return sum;
}

/* Sets to 0 what backward_fused.cu adds to, and its recompute marks. */
INLINE void zero_sums(const struct params *p, int64_t row) {
    float4 *sums = (float4 *)(p->dq_sum + row * p->dq_columns);
#pragma unroll 4
    for (int n = (int)threadIdx.x; n < PACKED_PADDING / 4 * p->dq_columns; n += 256) sums[n] = make_float4(0, 0, 0, 0);
    for (int64_t n = (int64_t)blockIdx.x * 256 + threadIdx.x; n < p->recompute_count; n += (int64_t)gridDim.x * 256)
        p->recompute_keys[n] = 0;
}

extern "C" __global__ void __launch_bounds__(256) strobe__row_deltas(const __grid_constant__ struct params p) {
    const int lanes = p.dim_v <= 64 ? 8 : p.dim_v <= 128 ? 16 : 32, lane = (int)threadIdx.x % lanes, step = 256 / lanes;
    struct job t;
    const int first = rows_of_block(&t, &p);
    const int64_t to = statistic_at(&p, &t, first);
    if (p.dq_sum) zero_sums(&p, to);
#pragma unroll 4
    for (int row = (int)threadIdx.x / lanes; row < PACKED_PADDING; row += step) {
        const struct place at = place_of(&p, &t, first + row);
        const bool there = at.i < t.rows;
        const float lse = there ? ((const float *)p.lse.data)[row_offset(&p.lse, &t, at)] : -INFINITY;
        float sum = there ? delta_of_row(&p, &t, at, lane, lanes) : 0; /* does not wait for lse */
        sum = lanes_sum(sum, lanes);
        if (lane == 0) { /* a row that sees nothing may hold anything */
            p.row_delta[to + row] = lse == -INFINITY ? 0 : sum;
            p.row_lse[to + row] = lse == -INFINITY ? INFINITY : lse * (p.q.dtype == CUDA_FP32 ? 1 : (float)LOG2_E);
            if (p.row_ds) p.row_ds[to + row] = p.row_p[to + row] = 0;
        }
    }
}

/* The weight of a row's sink, and of all its keys, which is 1 less that and keeps its digits however little it is. */
struct sink_weight {
    float sink, keys;
};

INLINE struct sink_weight weight_of_sink(float sink, float lse) {
    return (struct sink_weight){expf(sink - lse), -expm1f(sink - lse)};
}

/* What rounding lse to fp32 may do to a row's weights. */
INLINE float rounding_of_weights(struct sink_weight weight, float lse) { return weight.sink * fabsf(lse) * 0x1p-22f; }

/* Sums over a head's rows, p the weight of a row's sink: p delta, or what gradient_of_row() has in its place; p (D - dlse),
 * to which the parts of p dS belong; and of rows of the sample p (1 - p) less the parts of p P, which is 0 where all keys
 * were there, and how far from 0 it may be then: a thousandth of those parts, and p times what rounding does. */
enum sink_sum { ROUNDED, EXACT, MISSING, ALLOWED, SINK_SUMS };

INLINE void add_row_of_sink(double sums[SINK_SUMS], int row, struct sink_weight weight, double delta, float lse,
                            float dlse) {
    const double sink = weight.sink, keys = weight.keys;
    sums[ROUNDED] += sink * delta, sums[EXACT] += sink * (keys * delta - dlse);
    if (!IS_SINK_SAMPLE(row)) return;
    sums[MISSING] += sink * keys, sums[ALLOWED] += sink * rounding_of_weights(weight, lse);
}

INLINE void add_parts_of_sink(double sums[SINK_SUMS], const float2 *parts, int count) {
    for (int n = (int)threadIdx.x; n < count; n += SINK_THREADS)
        sums[EXACT] += parts[n].x, sums[MISSING] -= parts[n].y, sums[ALLOWED] += parts[n].y / 1024;
}

/* Nothing is missing, and nothing is NaN. The sinks' weight is no measure: beside a sink far above all scores all keys
 * together have less than a thousandth of it. */
INLINE bool all_keys_were_there(const double sums[SINK_SUMS]) {
    return fabs(sums[MISSING]) <= sums[ALLOWED] && isfinite(sums[EXACT]);
}

/* D - dlse of a row whose sink has this weight. Delta is that, with the error of an O that was rounded to 16 bits. The sum
 * of dS = P (Z dP - delta) over all keys is D less delta times the sum of P, and knows nothing of O but through delta, which
 * is added again. A call may have a part of the keys, or none: then delta stays, as the sum of P tells, 1 - weight of all
 * keys. It is compared with itself, since the weights of all keys together may be small; and with what rounding lse to fp32
 * does to the sink's, beside which they may be less. */
INLINE double gradient_of_row(const struct params *p, int64_t statistic, struct sink_weight weight, float lse, float dlse) {
    const double delta = p->row_delta[statistic];
    if (!p->row_ds) return delta;
    const double keys = p->row_p[statistic], sum = p->row_ds[statistic] + delta * keys - dlse;
    const double rounding = keys / 4096 + rounding_of_weights(weight, lse);
    return keys > 0 && fabs(keys - weight.keys) <= rounding && isfinite(sum) ? sum : delta;
}

extern "C" __global__ void __launch_bounds__(SINK_THREADS) strobe__sink_sums(const __grid_constant__ struct params p) {
    __shared__ double all[SINK_THREADS][SINK_SUMS];
    const int h = (int)blockIdx.x;
    double *sums = all[threadIdx.x];
    for (int n = 0; n < SINK_SUMS; ++n) sums[n] = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
        struct job t;
        t.b = (int)b, t.kv = h / p.group;
        job_sequence(&t, &p);
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < t.rows; i += SINK_THREADS) {
            const int packed = i * p.group + h % p.group;
            const struct place at = place_of(&p, &t, packed);
            const float lse = ((const float *)p.lse.data)[row_offset(&p.lse, &t, at)];
            const float dlse = p.dlse.data ? ((const float *)p.dlse.data)[row_offset(&p.dlse, &t, at)] : 0;
            if (lse == -INFINITY) continue;
            const struct sink_weight weight = weight_of_sink(p.sinks[h], lse);
            add_row_of_sink(sums, i, weight, gradient_of_row(&p, statistic_at(&p, &t, packed), weight, lse, dlse), lse,
                            dlse);
        }
        const int64_t head = (int64_t)b * p.heads_kv * p.group + h;
        if (p.sink_parts)
            add_parts_of_sink(sums, (const float2 *)p.sink_parts + head * p.sink_parts_of_head, p.sink_parts_of_head);
    }
    for (int d = SINK_THREADS / 2; d; d /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < d)
            for (int n = 0; n < SINK_SUMS; ++n) sums[n] += all[threadIdx.x + d][n];
    }
    if (threadIdx.x == 0) p.dsinks[h] = -(float)sums[p.sink_parts && all_keys_were_there(sums) ? EXACT : ROUNDED];
}

/* Rounds and stores eight columns of a row of dQ; marks the row's unit for recomputation if one is not finite. */
INLINE void round_eight(const struct params *p, const struct job *t, int packed, int x, const float from[8]) {
    const struct place at = place_of(p, t, packed);
    float sum = 0;
    if (at.i >= t->rows) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(from[e], 0.0f, sum);
    if (sum != 0)
        mark_for_recompute(p->recompute_rows, p, t, packed / RECOMPUTE_UNIT * RECOMPUTE_UNIT, RECOMPUTE_UNIT, p->row_units);
    const int64_t to = row_offset(&p->dq, t, at) + x;
    if (store_eight(&p->dq, to, from, p->dim - x)) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) /* unrolled: from is registers */
        if (e < p->dim - x) store_any(p->dq.data, p->dq.dtype, to + e, from[e]);
}

/* A thread has eight columns of two rows at a time; they lie in one run, where four lanes put them (ptx/red.h). */
extern "C" __global__ void __launch_bounds__(256) strobe__dq_round(const __grid_constant__ struct params p) {
    const int eights = p.dq_columns / 8;
    struct job t;
    const int first = rows_of_block(&t, &p);
    const float *sums = p.dq_sum + statistic_at(&p, &t, first) * p.dq_columns;
#pragma unroll 2
    for (int n = (int)threadIdx.x; n < PACKED_PADDING / 2 * eights; n += 256) {
        const int g = n % 8, run = n / 8, column = run % eights * 8, row = first + run / eights * 16 + g;
        __align__(16) float low[8], high[8];
        if (column >= p.dim) continue;
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
            const float4 four = red_read_4(sums + run * 128, 4 * g + lane);
            low[2 * lane] = four.x * p.scale, low[2 * lane + 1] = four.y * p.scale;
            high[2 * lane] = four.z * p.scale, high[2 * lane + 1] = four.w * p.scale;
        }
        round_eight(&p, &t, row, column, low);
        round_eight(&p, &t, row + 8, column, high);
    }
}

/* The bias has extent 1 where its stride is 0. */
extern "C" __global__ void __launch_bounds__(256) strobe__dbias_round(const __grid_constant__ struct params p) {
    const int64_t rows = p.dbias_sum.row ? p.seq_q : 1, heads = p.dbias_sum.head ? p.heads_kv * p.group : 1;
    const int64_t batch = p.dbias_sum.batch ? p.batch : 1, all = batch * heads * rows * p.seq_k;
    for (int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x; at < all; at += (int64_t)gridDim.x * 256) {
        const int64_t j = at % p.seq_k, i = at / p.seq_k % rows, h = at / p.seq_k / rows % heads,
                      b = at / p.seq_k / rows / heads;
        store_any(p.dbias.data, p.dbias.dtype, b * p.dbias.batch + h * p.dbias.head + i * p.dbias.row + j,
                  ((const float *)p.dbias_sum.data)[at]);
    }
}
