/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_finish.h: dQ's fp32 sums, scaled and rounded, to where the caller wants them; bound by memory. A CTA has a block
 * of ROWS rows of a query head, a thread what the thread of its number had of it in backward.cu.
 *
 * A warp whose sixteen rows are not all finite works them out again, from the keys that they see alone: in a block that the
 * band crosses, the matrix product brings 0 * NaN to a row from a key that is hidden from it. Finite data never come here.
 */
#ifndef STROBE_CUDA_SM90_BACKWARD_FINISH_H
#define STROBE_CUDA_SM90_BACKWARD_FINISH_H

#include "cuda/sm90/backward_terms.h"

INLINE float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

INLINE float element_at(const struct sm90_rows *rows, int64_t start, int column) {
    return element_to_float(((const element *)rows->data)[start + column]);
}

/* Row i of dQ by a warp, lane l having the columns l, l + 32, ... */
INLINE void exact_row(const struct sm90_backward_params *p, const struct pair_of_spans *in, int batch, int head, int i,
                      float lse, float term) {
    const struct slope slope = slope_of(p, in, batch, head);
    const int lane = (int)threadIdx.x % 32, kv = head / p->group;
    const int64_t q = row_start(&p->q_rows, &in->rows, i, head), dout = row_start(&p->dout_rows, &in->rows, i, head);
    const int first = i + in->first_shift > 0 ? i + in->first_shift : 0;
    const int end = i + in->end_shift < in->keys.count ? i + in->end_shift : in->keys.count;
    const uint64_t dropped = TERMS == 2 && p->dropout ? dropout_row(&p->place, batch, head, i) : 0;
    float dq[HEAD_DIM / 32] = {0};
    for (int j = first; j < end; ++j) {
        if (TERMS == 2 && !masks_show(p, batch, head, i, j)) continue;
        const int64_t k = row_start(&p->k_rows, &in->keys, j, kv), v = row_start(&p->v_rows, &in->keys, j, kv);
        float s = 0, dp = 0;
        for (int x = lane; x < p->q_rows.columns; x += 32) s += element_at(&p->q_rows, q, x) * element_at(&p->k_rows, k, x);
        for (int x = lane; x < p->v_rows.columns; x += 32)
            dp += element_at(&p->dout_rows, dout, x) * element_at(&p->v_rows, v, x);
        const float alibi = alibi_of(&slope, i, j), dot = warp_sum(s), sum = warp_sum(dp);
        const float bias = TERMS == 2 && p->bias.data ? bias_at(&p->bias, score_at(&p->bias, batch, head, i, j)) : 0;
        const bool kept = TERMS < 2 || !p->dropout || dropout_keeps(&p->place, dropped, j);
        const float weight = ex2(fmaf(biased(finish_score(p, dot, alibi), bias), p->exponent, lse));
        if (weight == 0) continue;
        float ds = weight * (undropped(p, kept ? 1 : -1, sum) - term);
        if (TERMS && p->softcap > 0) ds *= softcap_slope(p, weight, lse, bias - alibi);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 32; ++n)
            if (lane + 32 * n < p->q_rows.columns) dq[n] += ds * element_at(&p->k_rows, k, lane + 32 * n);
    }
    element *to = (element *)p->dq_rows.data + row_start(&p->dq_rows, &in->rows, i, head);
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 32; ++n)
        if (lane + 32 * n < p->dq_rows.columns) to[lane + 32 * n] = (element)pack(dq[n] * p->scale, 0);
}

#define FINISH_(name) name##_finish
#define FINISH(name)  FINISH_(name)

extern "C" __global__ void __launch_bounds__(128 * DQ_TILES)
    FINISH(KERNEL)(const __grid_constant__ struct sm90_backward_params p) {
    __shared__ __align__(128) unsigned char staging[BLOCK_ELEMENTS * 2];
    __shared__ int not_finite[ROWS / 16];
    const int m = (int)(blockIdx.x % (unsigned)p.row_blocks), heads = p.heads_kv * p.group;
    const int head = (int)(blockIdx.x / (unsigned)p.row_blocks) % heads,
              batch = (int)(blockIdx.x / (unsigned)p.row_blocks) / heads;
    const int tile = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const float *sum = p.dq_sum + (int64_t)blockIdx.x * BLOCK_ELEMENTS + tile * DQ_TILE;
    const int first_row = (ROW_PARTS == 2 ? 64 * tile : 0), first_column = (ROW_PARTS == 1 ? 64 * tile : 0);
    float4 dq[8];
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
#pragma unroll
    for (int n = 0; n < 8; ++n) dq[n] = *(const float4 *)(sum + n * 512 + thread * 4);
    if (threadIdx.x < ROWS / 16) not_finite[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int row = first_row + 16 * warp + lane / 4, column = first_column + 8 * n + 2 * (lane % 4);
        *(uint32_t *)(staging + swizzled(row, column, ROWS)) = pack(dq[n].x * p.scale, dq[n].y * p.scale);
        *(uint32_t *)(staging + swizzled(row + 8, column, ROWS)) = pack(dq[n].z * p.scale, dq[n].w * p.scale);
        nothing = fmaf(dq[n].x, 0, fmaf(dq[n].y, 0, fmaf(dq[n].z, 0, fmaf(dq[n].w, 0, nothing))));
    }
    if (p.may_hide && nothing != 0) not_finite[first_row / 16 + warp] = 1;
    __syncthreads();
    const struct pair_of_spans in = spans_of(&p, batch);
    for (int part = (int)threadIdx.x / 32; part < ROWS / 16; part += 4 * DQ_TILES) {
        const int i = m * ROWS + 16 * part;
        if (!not_finite[part]) {
            store_warp_rows(&p.dq_rows, staging, 16 * part, ROWS, &in.rows, head, i);
            continue;
        }
        for (int row = 0; row < 16 && i + row < in.rows.count; ++row) {
            const int64_t at = (int64_t)blockIdx.x * ROWS + 16 * part + row;
            exact_row(&p, &in, batch, head, i + row, p.row_lse[at], p.row_term[at]);
        }
    }
}

#endif
