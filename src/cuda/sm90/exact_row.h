/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_row.h: rows whose output is not finite are computed again, by a warp, from the keys that they see alone: in a block
 * that the mask crosses, the matrix product brings 0 * NaN to a row from a key that it does not see. Finite data never come
 * here. */
#ifndef STROBE_CUDA_SM90_EXACT_ROW_H
#define STROBE_CUDA_SM90_EXACT_ROW_H

#include "math/float16.h"

static __device__ __forceinline__ float element(const void *data, int64_t at) {
    const uint16_t bits = ((const uint16_t *)data)[at];
#if defined(ELEMENT_BF16)
    return bf16_to_float(bits);
#else
    return fp16_to_float(bits);
#endif
}

static __device__ __forceinline__ float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

/* Score of row i and key j, in natural units; all lanes share the dot product. */
static __device__ __forceinline__ float exact_score(const struct sm90_forward_params *p, const struct tile *t, int64_t q,
                                                    int64_t k, int64_t i, int64_t j) {
    float dot = 0;
    for (int x = threadIdx.x % 32; x < p->dim; x += 32) dot += element(p->q_data, q + x) * element(p->k_data, k + x);
    float s = warp_sum(dot) * p->scale;
    if (p->softcap > 0) s = p->softcap * tanhf(s / p->softcap);
    if (p->alibi) s -= p->alibi[t->batch * p->alibi_stride + t->head] * fabsf((float)(i + p->start + t->keys - t->rows - j));
    return s;
}

static __device__ __forceinline__ void exact_row(const struct sm90_forward_params *p, const struct tile *t, int i) {
    const int lane = threadIdx.x % 32, kv = t->head / p->group;
    const int64_t q = (p->cu_seqlens_q ? 0 : t->batch * p->q_stride[0]) + (t->first_row + i) * p->q_stride[1] +
                      t->head * p->q_stride[2];
    const int64_t k = (p->cu_seqlens_k ? 0 : t->batch * p->k_stride[0]) + kv * p->k_stride[2];
    const int64_t v = (p->cu_seqlens_k ? 0 : t->batch * p->v_stride[0]) + kv * p->v_stride[2];
    float o[8] = {0}, maximum = p->sinks ? p->sinks[t->head] : -INFINITY, sum = p->sinks ? 1 : 0;
    for (int j = first_key_of(t, i); j < end_key_of(t, i); ++j) {
        const float s = exact_score(p, t, q, k + (t->first_key + j) * p->k_stride[1], i, j);
        const float higher = fmaxf(maximum, s), growth = maximum == -INFINITY ? 0 : expf(maximum - higher);
        const float weight = expf(s - higher);
        sum = sum * growth + weight;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (lane + 32 * n < p->dim_v)
                o[n] = o[n] * growth + weight * element(p->v_data, v + (t->first_key + j) * p->v_stride[1] + lane + 32 * n);
        maximum = higher;
    }
    uint16_t *out = (uint16_t *)p->out + (p->cu_seqlens_q ? 0 : t->batch * p->out_stride[0]) +
                    (t->first_row + i) * p->out_stride[1] + t->head * p->out_stride[2];
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (lane + 32 * n < p->dim_v) out[lane + 32 * n] = (uint16_t)pack16(sum > 0 || sum != sum ? o[n] / sum : 0, 0);
}

/* Notes that the warp's rows of a tile are to be computed again; returns the chain of them. */
static __device__ __forceinline__ int note_repair(struct sm90_workspace *workspace, int tile, int chain) {
    int at = 0;
    if (threadIdx.x % 32 == 0) {
        at = (int)atomicAdd(&workspace->repairs, 1);
        workspace->repair[at].tile = tile;
        workspace->repair[at].next = chain;
    }
    return __shfl_sync(0xffffffffu, at, 0);
}

/* Computes what was noted. The lse of these rows is right already, K's NaNs having been hidden. */
static __device__ __forceinline__ void repair(const struct sm90_forward_params *p, int chain, int first) {
    for (; chain >= 0; chain = p->workspace->repair[chain].next) {
        const struct tile t = tile_of(p, p->workspace->repair[chain].tile);
        for (int row = t.row + first; row < t.row + first + 16 && row < t.rows; ++row) exact_row(p, &t, row);
    }
}

#endif
