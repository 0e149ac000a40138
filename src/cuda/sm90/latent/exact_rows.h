/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exact_rows.h: exact rows. A row whose O is not finite is computed again, by warps, from the keys that it sees alone: the
 * product P V brings 0 * NaN to a row from a key that is hidden from it and seen by another. Finite data never come here. */
#ifndef STROBE_CUDA_SM90_LATENT_EXACT_ROWS_H
#define STROBE_CUDA_SM90_LATENT_EXACT_ROWS_H

#include "cuda/device/lanes.h"
#include "cuda/sm90/latent/schedule.h"

enum { EXACT_COLUMNS = 128 };

/* Key j of the sequence; NULL: its page is none. */
INLINE const element *exact_key(const struct params *p, const struct job *t, int64_t j) {
    const element *k = (const element *)p->k.data;
    if (!p->cache.page_table) return k + key_offset(&p->k, t, j);
    const int page = p->cache.page_table[t->b * p->cache.table_stride + j / p->cache.page_size];
    if ((uint32_t)page >= (uint32_t)p->cache.pages) return NULL;
    return k + page * p->k.batch + j % p->cache.page_size * p->k.row + t->kv * p->k.head;
}

/* Columns [first, first + EXACT_COLUMNS) of a packed row, one key after the other. A warp. */
INLINE void exact_columns(const struct params *p, const struct job *t, int packed, int first) {
    const struct place at = place_of(p, t, packed);
    const int lane = (int)threadIdx.x % 32;
    const element *const q = (const element *)p->q.data + row_offset(&p->q, t, at);
    float o[EXACT_COLUMNS / 32] = {0}, most = p->sinks ? p->sinks[at.h] : -INFINITY, sum = p->sinks ? 1 : 0;
#pragma unroll 1
    for (int64_t j = band_first(&t->band, at.i); j < band_end(&t->band, at.i); ++j) {
        const element *const k = exact_key(p, t, j);
        if (!k) continue;
        float dot = 0;
#pragma unroll 1
        for (int x = lane; x < LATENT_DIM; x += 32) dot += element_to_float(q[x]) * element_to_float(k[x]);
        const float score = warp_sum(dot) * p->scale, higher = fmaxf(most, score);
        const float before = most == -INFINITY ? 0 : expf(most - higher), weight = expf(score - higher);
        sum = sum * before + weight, most = higher;
#pragma unroll
        for (int n = 0; n < EXACT_COLUMNS / 32; ++n)
            o[n] = o[n] * before + weight * element_to_float(k[first + lane + 32 * n]);
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
