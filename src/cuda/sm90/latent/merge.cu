/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.cu: parts of items that latent.cu has left in the workspace become rows of out and lse. Every entry of the table of
 * crossings has rows of this grid. A row has a warp, or four where there are few items, which then have many parts. */
#define HAS_TERMS 1 /* whatever the variant is whose parts these are */
#include "cuda/device/element.h"
#include "cuda/device/lse.h"
#include "cuda/ptx/dependent.h"
#include "cuda/sm90/latent/exact_rows.h"

enum { MOST_OF_LANE = LATENT_MOST_SHARES / 32 };

/* The maxima and sums of a row's parts, a lane for each, become their weights; what all of it ends with. */
INLINE struct row_end weights_of_parts(const struct latent_params *d, const struct crossing *c, int tile, int row,
                                       const float *sink, float (&weight)[MOST_OF_LANE]) {
    const int lane = (int)threadIdx.x % 32;
    float most = -INFINITY, sum = 0, l[MOST_OF_LANE];
#pragma unroll
    for (int n = 0; n < MOST_OF_LANE; ++n) {
        const int part = lane + 32 * n;
        weight[n] = -INFINITY, l[n] = 0;
        if (part >= c->parts) continue;
        const float *from = part_of(d, slot_of_part(d, c, part), tile) + LATENT_ROWS * LATENT_DIM_V;
        const float2 its = __ldcg((const float2 *)from + row);
        weight[n] = its.x, l[n] = its.y, most = fmaxf(most, its.x);
    }
#pragma unroll
    for (int n = 16; n > 0; n /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, n));
    const float shift = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int n = 0; n < MOST_OF_LANE; ++n) weight[n] = ex2(weight[n] - shift), sum += weight[n] * l[n];
    return end_of_row(shift, 0, d->p.to_natural, warp_sum(sum), sink);
}

/* Computes again what marks name: a warp row after row of the tiles of its CTA. */
INLINE void recompute_marked(const struct latent_params *d) {
    const int tiles = d->p.batch * d->p.heads_kv * d->row_tiles, warp = (int)threadIdx.x / 32;
    const int warps = LATENT_MERGE_THREADS / 32;
#pragma unroll 1
    for (int n = (int)blockIdx.x; n < tiles; n += (int)gridDim.x) {
        const int item = n / d->row_tiles, tile = n % d->row_tiles;
        if (*recompute_mark(d, item, tile) == 0) continue;
        const struct job t = job_of_item(&d->p, item);
        const int rows = t.rows * d->p.group, end = (tile + 1) * LATENT_ROWS < rows ? (tile + 1) * LATENT_ROWS : rows;
#pragma unroll 1
        for (int row = tile * LATENT_ROWS + warp; row < end; row += warps)
#pragma unroll 1
            for (int first = 0; first < LATENT_DIM_V; first += EXACT_COLUMNS) exact_columns(&d->p, &t, row, first);
    }
}

/* Some columns of a row's parts, which the lane adds up: 128 lie between its fours. */
template <int chunks> INLINE void load_part(float4 (&to)[chunks], const float4 *from) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) to[c] = __ldcg(from + 32 * c);
}

template <int chunks> INLINE void add_part(float4 (&o)[chunks], float weight, const float4 (&its)[chunks]) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
        o[c].x = fmaf(weight, its[c].x, o[c].x), o[c].y = fmaf(weight, its[c].y, o[c].y);
        o[c].z = fmaf(weight, its[c].z, o[c].z), o[c].w = fmaf(weight, its[c].w, o[c].w);
    }
}

/* A row, or of it the 128 columns from `first` on. A warp. Two parts, as most have, are asked for before their weights. */
template <int chunks>
INLINE void merge_row(const struct latent_params *d, const struct crossing *c, int tile, int row, int first) {
    enum { AT_A_TIME = chunks == 1 ? 8 : 1 };
    const struct params *const p = &d->p;
    const int lane = (int)threadIdx.x % 32, packed = tile * LATENT_ROWS + row;
    const int64_t at_row = row * LATENT_DIM_V + first + 4 * lane, step = d->row_tiles * (int64_t)LATENT_PART_FLOATS / 4;
    const float4 *from = (const float4 *)(part_of(d, slot_of_part(d, c, 1), tile) + at_row);
    float4 one[chunks], two[chunks], o[chunks];
    load_part<chunks>(one, (const float4 *)(part_of(d, slot_of_part(d, c, 0), tile) + at_row));
    load_part<chunks>(two, from);
    const struct job t = job_of_item(p, c->item);
    const struct place at = place_of(p, &t, packed);
    float weight[MOST_OF_LANE];
    const struct row_end end = weights_of_parts(d, c, tile, row, p->sinks ? p->sinks + at.h : NULL, weight);
    if (p->lse.data && lane == 0 && first == 0) ((float *)p->lse.data)[row_offset(&p->lse, &t, at)] = end.lse;
#pragma unroll
    for (int n = 0; n < chunks; ++n) o[n] = make_float4(0, 0, 0, 0);
    add_part<chunks>(o, __shfl_sync(0xffffffffu, weight[0], 0), one);
    add_part<chunks>(o, __shfl_sync(0xffffffffu, weight[0], 1), two);
#pragma unroll
    for (int n = 0; n < MOST_OF_LANE; ++n) {
        const int parts = c->parts - 32 * n < 32 ? c->parts - 32 * n : 32;
#pragma unroll AT_A_TIME
        for (int part = n == 0 ? 2 : 0; part < parts; ++part) {
            from += step;
            load_part<chunks>(one, from);
            add_part<chunks>(o, __shfl_sync(0xffffffffu, weight[n], part), one);
        }
    }
    element *const to = (element *)p->out.data + row_offset(&p->out, &t, at) + first + 4 * lane;
#pragma unroll
    for (int n = 0; n < chunks; ++n) {
        const float x[4] = {o[n].x * end.factor, o[n].y * end.factor, o[n].z * end.factor, o[n].w * end.factor};
        const bool finite = x[0] - x[0] == 0 && x[1] - x[1] == 0 && x[2] - x[2] == 0 && x[3] - x[3] == 0;
        *(uint2 *)(to + EXACT_COLUMNS * n) = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
        if (d->may_hide && !__all_sync(0xffffffffu, finite)) exact_columns(p, &t, packed, first + EXACT_COLUMNS * n);
    }
}

extern "C" __global__ void __launch_bounds__(LATENT_MERGE_THREADS, 2)
    KERNEL(const __grid_constant__ struct latent_params d) {
    const int rows_of_entry = d.row_tiles * LATENT_ROWS;
    const int warp = (int)(blockIdx.x * (LATENT_MERGE_THREADS / 32) + threadIdx.x / 32), chunk = warp % d.row_warps;
    const int entry = warp / d.row_warps / rows_of_entry, packed = warp / d.row_warps % rows_of_entry;
    const int tile = packed / LATENT_ROWS, row = packed % LATENT_ROWS;
    wait_for_previous();
    if (d.may_hide) recompute_marked(&d);
    const struct crossing c = d.crossings[entry];
    if (c.parts < 2 || packed >= c.rows) return;
    if (d.row_warps == 1)
        merge_row<LATENT_DIM_V / EXACT_COLUMNS>(&d, &c, tile, row, 0);
    else
        merge_row<1>(&d, &c, tile, row, chunk * EXACT_COLUMNS);
}
