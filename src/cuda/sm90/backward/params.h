/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the host hands to the kernels of the Hopper backward pass, by value (__grid_constant__). Valid as
 * C and as CUDA C. */
#ifndef STROBE_CUDA_SM90_BACKWARD_PARAMS_H
#define STROBE_CUDA_SM90_BACKWARD_PARAMS_H

#include <cuda.h>
#include <stdint.h>

#include "cuda/device/params.h"
#include "strobe/strobe_trace.h"

/* All that a CTA may have; no two fit a multiprocessor anyhow. */
#define SHARED_BYTES (227 * 1024)

/* Rows of a tensor [batch][sequence][head][columns], by strides in that order, in elements. NULL: absent. */
struct sm90_rows {
    void *data;
    int64_t stride[3];
    int32_t columns;
    int32_t aligned; /* every row starts at a multiple of 16 bytes */
};

struct sm90_backward_params {
    /* {dim, seq, heads, batch}; boxes of 64 columns and a block's rows or keys, 128-byte swizzle. */
    CUtensorMap q, k, v, dout;
    CUtensorMap q_row, dout_row; /* boxes of one row, where there are rows past a sequence's end */

    struct sm90_rows q_rows, k_rows, v_rows, out_rows, dout_rows, dq_rows, dk_rows, dv_rows;
    const float *lse, *dlse; /* by the strides that follow; dlse NULL: none */
    int64_t lse_stride[3], dlse_stride[3];

    /* In the workspace, [batch][heads_q][row_blocks] of a block's rows: -lse in base 2, -inf for rows that see nothing;
     * D = rowsum(dout out) - dlse; and dQ / scale in fp32, a block's in the order of a warp group's registers. */
    float *row_lse, *row_term, *dq_sum;

    /* `counts` words, which prepare clears: tiles drawn (backward/schedule.h); blocks of rows drawn to clear their sums, and
     * how many are clear, of each K/V head (backward/dq_sums.h); turns and marks. */
    uint32_t *next_tile, *next_cleared, *heads_cleared;
    uint32_t *turns; /* two of each block of rows, whose key block may add to dQ next; NULL: in any order */

    uint32_t *marks; /* of sixteen keys of a K/V head each, whose sums are not finite: [batch][heads_kv][seq_k / 16] */

    int64_t counts;
    int32_t clears_itself; /* the main kernel its sums; else prepare does */

    int32_t seq_q, seq_k, batch, heads_kv, group;
    int32_t row_blocks, key_blocks;
    int32_t tiles;                  /* key_blocks * heads_kv * batch */
    int32_t section_heads;          /* K/V heads that are worked on at a time: their rows stay in the L2 cache; */
    int32_t last_heads;             /* but for so many at the end */
    int32_t first_shift, end_shift; /* row i sees the keys max(0, i + first_shift) .. min(keys, i + end_shift) - 1 of its */
    int32_t bottom_right;           /* sequence; with this, both shifts are more by keys - rows */
    const void *cu_seqlens_q, *cu_seqlens_k, *used_q, *used_k; /* NULL: none */
    int32_t index64;
    int32_t may_hide;      /* some key of a block may be hidden from a row: dQ is looked at for what that did */
    float scale, exponent; /* a weight is 2^(score * exponent - lse in base 2) */
    float softcap, cap_rate, cap_inverse; /* 0: none; 2 log2(e) scale / softcap; 1 / softcap */
    const float *alibi;                   /* slopes [batch][heads_q], NULL: none */
    int64_t alibi_stride;
    int32_t alibi_start;            /* of its diagonal, without keys - rows */
    struct view bias, mask, blocks; /* of scores, keys contiguous, 0 = broadcast; masks: a byte each, 0 hides */
    int32_t block_q, block_k;       /* rows, in whole eights, and keys that share a byte of `blocks` */
    struct view dbias_sum;          /* fp32, extents of 1 where the bias is broadcast; data NULL: not wanted */
    int32_t dropout;
    struct dropout_place place;
    float dv_factor; /* of dV's sums: dropout's 1 / (1 - p) */
#if defined(STROBE_TRACE)
    strobe_trace *trace;
#endif
};

#endif
