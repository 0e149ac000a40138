/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_row.h: rows whose output is not finite are computed again, by a warp, from the keys that they see alone: in a block
 * that the mask crosses, the matrix product brings 0 * NaN to a row from a key that it does not see. Finite data never come
 * here. */
#ifndef STROBE_CUDA_SM90_EXACT_ROW_H
#define STROBE_CUDA_SM90_EXACT_ROW_H

#include <math.h>

#include "cuda/sm90/forward/schedule.h"
#include "cuda/sm90/forward/score_terms.h"

static __device__ __forceinline__ float element(const void *data, int64_t at) {
    return unpack16(((const uint16_t *)data)[at]);
}

static __device__ __forceinline__ float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

/* Score of row i and key j, in natural units, -inf where hidden; all lanes share the dot product. */
static __device__ __forceinline__ float exact_score(const struct sm90_forward_params *p, const struct tile *t, int64_t q,
                                                    int64_t k, int64_t i, int64_t j) {
    float dot = 0;
    for (int x = threadIdx.x % 32; x < p->dim; x += 32) dot += element(p->q_data, q + x) * element(p->k_data, k + x);
    float s = warp_sum(dot) * p->scale;
    if (p->softcap > 0) s = p->softcap * tanhf(s / p->softcap);
    if (TERMS == 2 && p->mask.data &&
        !((const uint8_t *)p->mask.data)[t->batch * p->mask.batch + t->head * p->mask.head + i * p->mask.row + j])
        return -INFINITY;
    if (TERMS == 2 && p->blocks.data &&
        !((const uint8_t *)p->blocks.data)[t->batch * p->blocks.batch + t->head * p->blocks.head +
                                           i / p->block_q * p->blocks.row + j / p->block_k])
        return -INFINITY;
    if (TERMS == 2 && p->bias.data) {
        s = biased(s, bias_at(&p->bias, t->batch * p->bias.batch + t->head * p->bias.head + i * p->bias.row + j));
    }
    if (p->alibi) s -= p->alibi[t->batch * p->alibi_stride + t->head] * fabsf((float)(i + p->start + t->keys - t->rows - j));
    return s;
}

static __device__ __forceinline__ void exact_row(const struct sm90_forward_params *p, const struct tile *t, int i) {
    const int lane = threadIdx.x % 32, kv = t->head / p->group;
    const int64_t q = (p->cu_seqlens_q ? 0 : t->batch * p->q_stride[0]) + (t->first_row + i) * p->q_stride[1] +
                      t->head * p->q_stride[2];
    const int64_t k = (p->cu_seqlens_k ? 0 : t->batch * p->k_stride[0]) + kv * p->k_stride[2];
    const int64_t v = (p->cu_seqlens_k ? 0 : t->batch * p->v_stride[0]) + kv * p->v_stride[2];
    const uint64_t dropped = TERMS == 2 && p->dropout ? dropout_row(&p->place, t->batch, t->head, i) : 0;
    const float keep_scale = TERMS == 2 && p->dropout ? p->place.keep_scale : 1;
    float o[8] = {0}, maximum = p->sinks ? p->sinks[t->head] : -INFINITY, sum = p->sinks ? 1 : 0;
#pragma unroll 1
    for (int j = first_key_of(t, i); j < end_key_of(t, i); ++j) {
        const float s = exact_score(p, t, q, k + (t->first_key + j) * p->k_stride[1], i, j);
        if (s == -INFINITY) continue;
        const float higher = fmaxf(maximum, s), growth = maximum == -INFINITY ? 0 : expf(maximum - higher);
        const float weight = expf(s - higher);
        const bool kept = TERMS != 2 || !p->dropout || dropout_keeps(&p->place, dropped, j);
        const int64_t row = v + (t->first_key + j) * p->v_stride[1];
        sum = sum * growth + weight;
        maximum = higher;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (lane + 32 * n < p->dim_v) {
                o[n] *= growth;
                if (kept) o[n] += weight * keep_scale * element(p->v_data, row + lane + 32 * n);
            }
    }
    uint16_t *out = (uint16_t *)p->out + (p->cu_seqlens_q ? 0 : t->batch * p->out_stride[0]) +
                    (t->first_row + i) * p->out_stride[1] + t->head * p->out_stride[2];
#pragma unroll
    for (int n = 0; n < 8; ++n)
        if (lane + 32 * n < p->dim_v) out[lane + 32 * n] = (uint16_t)pack16(sum > 0 || sum != sum ? o[n] / sum : 0, 0);
}

/* The place of a tile in its warp's chain. */
static __device__ __forceinline__ int32_t *repair_after(struct sm90_workspace *workspace, int tile, int first) {
    return &workspace->repair_after[tile * (int64_t)(4 * GROUPS) + first / 16];
}

/* Notes that the warp's rows of a tile, from `first` on, are to be computed again, in front of its chain. */
static __device__ __forceinline__ void note_repair(struct sm90_workspace *workspace, int tile, int32_t *chain, int first) {
    if (threadIdx.x % 32 == 0) *repair_after(workspace, tile, first) = *chain, *chain = tile;
    __syncwarp();
}

/* Computes what was noted. The lse of these rows is right already, K's NaNs having been hidden. */
static __device__ __forceinline__ void repair(const struct sm90_forward_params *p, int chain, int first) {
    for (; chain >= 0; chain = *repair_after(p->workspace, chain, first)) {
        struct tile t;
        struct cursor cursor = {0, 0};
        describe_tile(p, chain, &cursor, &t, true);
        for (int row = t.row + first; row < t.row + first + 16 && row < t.rows; ++row) exact_row(p, &t, row);
    }
}

#endif
