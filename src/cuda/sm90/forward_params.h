/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_params.h: what the host hands to the Hopper forward kernel, by value (__grid_constant__). Valid as C and as CUDA
 * C. */
#ifndef STROBE_CUDA_SM90_FORWARD_PARAMS_H
#define STROBE_CUDA_SM90_FORWARD_PARAMS_H

#include <cuda.h>
#include <stdint.h>

/* Sixteen rows of a warp whose O is not finite, to be computed again when all else is done; chained, -1 at the end. */
struct sm90_repair {
    int32_t tile, next;
};

struct sm90_workspace {
    uint32_t next_tile; /* tiles drawn beside the first of each CTA; zero at the start, as is repairs */
    uint32_t repairs;
    uint32_t unused[14];
    struct sm90_repair repair[]; /* as many as there are warps in all tiles */
};

struct sm90_forward_params {
    /* {dim, seq, heads, batch}; boxes of 64 columns and the rows of a tile, 128-byte swizzle. Packed tensors have batch 1.
     */
    CUtensorMap q, k, v;

    void *out;                            /* [batch][seq_q][heads_q][dim_v] by strides */
    float *lse;                           /* NULL: not wanted */
    int64_t out_stride[3], lse_stride[3]; /* batch, sequence, head, in elements */
    const void *k_data, *v_data, *q_data; /* for rows that are computed again, exactly; strides of batch, sequence, head */
    int64_t q_stride[3], k_stride[3], v_stride[3];

    int32_t seq_q, seq_k, heads_q, group, dim, dim_v;
    int32_t row_tiles;     /* of the longest sequence */
    int32_t tiles;         /* row_tiles * heads_q * batch */
    int32_t section_heads; /* heads that are worked on at a time: their K and V stay in the L2 cache */
    struct sm90_workspace *workspace;
    int32_t may_hide;       /* some key that a tile loads may be hidden from a row of it: O is looked at for what that did */
    int32_t out_is_aligned; /* rows of out start at multiples of 16 bytes */
    int32_t bottom_right;   /* the diagonal meets the last key */
    int64_t left, right;    /* the band, BAND_UNBOUNDED where open */
    int64_t start;          /* q_start - k_start */

    const void *cu_seqlens_q, *cu_seqlens_k, *used_q, *used_k; /* NULL: none */
    int32_t index_bits;

    float scale, softcap; /* softcap 0: none */
    const float *alibi;   /* slopes, NULL: none */
    int64_t alibi_stride;
    const float *sinks; /* [heads_q], NULL: none */
};

#endif
