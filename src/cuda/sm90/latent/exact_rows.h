/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_rows.h: exact rows. A row whose O is not finite is computed again, by warps, from the keys that it sees alone: the
 * product P V brings 0 * NaN to a row from a key that is hidden from it and seen by another. Finite data never come here. */
#ifndef STROBE_CUDA_SM90_LATENT_EXACT_ROWS_H
#define STROBE_CUDA_SM90_LATENT_EXACT_ROWS_H

#include "cuda/device/key_scales.h"
#include "cuda/device/lanes.h"
#include "cuda/device/score_terms.h"
#include "cuda/device/widen.h"
#include "cuda/sm90/latent/schedule.h"

enum { EXACT_COLUMNS = 128 };

/* Where key j of the sequence begins, and its scale, 1 where there is none; false: its page is none. */
INLINE bool find_exact_key(const struct params *p, const struct job *t, int64_t j, int64_t *at, float *scale) {
    int64_t batch = t->batch_k, slot = t->first_key + j;
    if (p->cache.page_table) {
        batch = p->cache.page_table[t->b * p->cache.table_stride + j / p->cache.page_size], slot = j % p->cache.page_size;
        if ((uint64_t)batch >= (uint64_t)p->cache.pages) return false;
    }
    *at = batch * p->k.batch + slot * p->k.row + t->kv * p->k.head;
    *scale = p->cache.k_scale ? *scale_of_key(p->cache.k_scale, p->cache.k_scale_stride, p, t, batch, slot) : 1;
    return true;
}

/* Element x of K as it is stored. */
INLINE float exact_element(const struct params *p, int64_t at) {
    const bool is_byte = p->k.dtype == CUDA_INT8 || p->k.dtype == CUDA_FP8;
    return is_byte ? widen_byte(((const uint8_t *)p->k.data)[at], 0, p->k.dtype)
                   : element_to_float(((const element *)p->k.data)[at]);
}

/* Columns [first, first + EXACT_COLUMNS) of a packed row, one key after the other. A warp. */
INLINE void exact_columns(const struct params *p, const struct job *t, int packed, int first) {
    const struct place at = place_of(p, t, packed);
    const int lane = (int)threadIdx.x % 32;
    const element *const q = (const element *)p->q.data + row_offset(&p->q, t, at);
    const float slope = p->slopes ? p->slopes[t->b * p->slopes_batch + at.h] : 0;
    float o[EXACT_COLUMNS / 32] = {0}, most = p->sinks ? p->sinks[at.h] : -INFINITY, sum = p->sinks ? 1 : 0;
#pragma unroll 1
    for (int64_t j = band_first(&t->band, at.i); j < band_end(&t->band, at.i); ++j) {
        int64_t k;
        float scale, dot = 0;
        if (!find_exact_key(p, t, j, &k, &scale)) continue;
#pragma unroll 1
        for (int x = lane; x < LATENT_DIM; x += 32) dot += element_to_float(q[x]) * exact_element(p, k + x);
        float score = warp_sum(dot) * scale * p->scale;
        if (p->softcap > 0) score = p->softcap * tanhf(score / p->softcap);
        if (slope != 0) score -= slope * fabsf((float)(t->alibi_diagonal + at.i - j));
        const float higher = fmaxf(most, score);
        const float before = most == -INFINITY ? 0 : expf(most - higher), weight = expf(score - higher);
        sum = sum * before + weight, most = higher;
#pragma unroll
        for (int n = 0; n < EXACT_COLUMNS / 32; ++n)
            o[n] = o[n] * before + weight * (scale * exact_element(p, k + first + lane + 32 * n));
    }
    const int64_t out = row_offset(&p->out, t, at) + first + lane;
#pragma unroll
    for (int n = 0; n < EXACT_COLUMNS / 32; ++n)
        store_any(p->out.data, p->out.dtype, out + 32 * n, sum > 0 || sum != sum ? o[n] / sum : 0);
}

/* The recompute mark of a tile of an item: not 0 where a row of it is to be computed again. */
INLINE int32_t *recompute_mark(const struct latent_params *d, int item, int tile) {
    return &d->marks[item * (int64_t)d->row_tiles + tile];
}

#endif
