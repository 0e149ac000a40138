/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the host hands to the Hopper forward kernel, by value (__grid_constant__). Valid as C and as CUDA
 * C. */
#ifndef STROBE_CUDA_SM90_FORWARD_PARAMS_H
#define STROBE_CUDA_SM90_FORWARD_PARAMS_H

#include <cuda.h>
#include <stdint.h>

#include "cuda/device/params.h"
#include "strobe/strobe_trace.h"

/* Whatever is in a workspace before a launch will do: a memset of a few bytes takes as long as a launch. */
struct sm90_workspace {
    uint64_t launch;    /* the launch whose counter this is, once its first CTA has set it; 0 after the last draw */
    uint32_t next_tile; /* tiles drawn, beside the first of each CTA */
    uint32_t unused[13];
    /* Where a warp's sixteen rows of a tile have an O that is not finite, they are computed again when all else is done:
     * such tiles of a warp are chained, each leads to the one before, -1 at the end. [tile][warp] */
    int32_t repair_after[];
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

    int32_t batch, seq_q, seq_k, heads_q, group, dim, dim_v;
    int32_t row_tiles;     /* of the longest sequence */
    int32_t tiles;         /* row_tiles * all_heads: the most there can be */
    int32_t all_heads;     /* heads_q * batch */
    int32_t draws;         /* tiles differ in length: each is drawn from the counter when a CTA is free for it */
    uint32_t known_tiles;  /* at a time in a CTA, 2 to TILES, the one in hand among them: more where tiles are so short that
                            * all wait for their description, else few, since others could do what a CTA holds */
    uint64_t launch;       /* a number that no other launch has, not 0 */
    int32_t section_heads; /* heads that are worked on at a time: their K and V stay in the L2 cache */
    struct sm90_workspace *workspace;
    int32_t may_hide;       /* some key that a tile loads may be hidden from a row of it: O is looked at for what that did */
    int32_t out_is_aligned; /* four columns of out are 8 bytes, aligned */
    int32_t bottom_right;   /* the diagonal meets the last key */
    int32_t first_shift, end_shift; /* the band of a tile, see struct tile, before what bottom_right adds; far where open */
    int32_t start;                  /* q_start - k_start, for ALiBi */

    const void *cu_seqlens_q, *cu_seqlens_k, *used_q, *used_k; /* NULL: none */
    int32_t index_bits;

    struct view bias, mask, blocks; /* of scores, keys contiguous, 0 = broadcast; masks: a byte each, 0 hides */
    int32_t block_q, block_k;       /* rows and keys that share a byte of `blocks` */
    int32_t dropout;
    struct dropout_place place;
    float scale, exponent; /* weights are 2^(dot * exponent - ...) where nothing stands between */
    float growth_limit;    /* 8 / exponent */
    float softcap;         /* 0: none */
    const float *alibi;    /* slopes, NULL: none */
    int64_t alibi_stride;
    const float *sinks; /* [heads_q], NULL: none */
#if defined(STROBE_TRACE)
    strobe_trace *trace;
#endif
};

#endif
