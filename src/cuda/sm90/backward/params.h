/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the host hands to the kernels of the Hopper backward pass, by value (__grid_constant__). Valid as C and as
 * CUDA C. */
#ifndef STROBE_CUDA_SM90_BACKWARD_PARAMS_H
#define STROBE_CUDA_SM90_BACKWARD_PARAMS_H

#include <cuda.h>
#include <stdint.h>

#include "cuda/device/philox.h"
#include "cuda/device/softcap.h"
#include "cuda/device/visible.h"
#include "math/divisor.h"
#include "strobe/strobe_trace.h"

/* All that a CTA may have. Two CTAs would not fit a multiprocessor in any case. */
#define SHARED_BYTES (227 * 1024)

/* A feature class of this kernel alone: class NONE, and with it, or with another class, the sums for dsinks (sinks.h). */
#define FEATURES_SINKS 1024

/* Sums for dsinks of a block of keys: one for each sixteen. */
enum { SINK_PARTS = 8 };

/* Rows of a tensor [batch][sequence][head][columns], by strides in that order, in elements. NULL: absent. */
struct sm90_rows {
    void *data;
    int64_t stride[3];
    int32_t columns;
    int32_t aligned; /* every row starts at a multiple of 16 bytes */
};

/* Where lengths of sequences are known to the device alone: an entry of the batch, and the first of its tiles, of one head,
 * among all sequences'. */
struct sequence_at {
    int32_t tile, batch;
};

struct sm90_backward_params {
    /* {dim, seq, heads, batch}; boxes of 64 columns and a block's rows or keys, 128-byte swizzle. */
    CUtensorMap q, k, v, dout;
    CUtensorMap bias_map; /* of a bias alone: {keys, rows, heads, batch}, boxes of sixteen keys and a block's rows */
    CUtensorMap q_ends, dout_ends; /* where sequences end within the tensor: their last rows, see tensor_map.h */

    struct sm90_rows q_rows, k_rows, v_rows, out_rows, dout_rows, dq_rows, dk_rows, dv_rows;
    const float *lse, *dlse; /* by the strides that follow; dlse NULL: none */
    int64_t lse_stride[3], dlse_stride[3];

    /* In the workspace, [batch][heads_q][row_blocks] of a block's rows: -lse in base 2, -inf for rows that see nothing;
     * delta = rowsum(dO * O) - dlse; and dQ / scale in fp32, a block's in the order of a warp group's registers. With
     * dq_semaphores sums of rows that see nothing are not written. */
    float *row_lse, *row_delta, *dq_sum;
    /* Where dsinks are summed (sinks.h), else NULL: the weights of rows' sinks, as row_lse, and the sums,
     * [batch][heads_q][key_blocks][SINK_PARTS][2]; the caller's sinks, [heads_q]. */
    float *row_sink, *sink_parts;
    const float *sinks;

    /* The next `counts` words of the workspace, all of which prepare sets to 0. tile_counter: tiles taken (schedule.h).
     * clear_counter, heads_cleared: blocks of rows taken to clear their sums of dQ, and how many of each K/V head are clear
     * (dq_sums.h). */
    uint32_t *tile_counter, *clear_counter, *heads_cleared;
    uint32_t *dq_semaphores; /* the dQ order: how many tiles have added to each tile of dQ, with first_alone
                              * whether the first has; NULL: any order will do */
    uint32_t *marks; /* recompute marks of sixteen keys each whose sums are not finite: [batch][heads_kv][seq_k / 16] */

    int64_t counts;

    /* With shares the main kernel counts a K/V head once for each share of its query heads, of which `group` is the number
     * then; dk_rows and dv_rows are those of the shares, fp32, [..][heads_kv x shares], which finish adds. */
    int32_t shares;
    struct sm90_rows dk_shares, dv_shares;

    int32_t seq_q, seq_k, batch, heads_kv, group;
    int32_t row_blocks, key_blocks;
    int32_t tiles;         /* key_blocks * heads_kv * batch, or what is not less than there are of `sequences` */
    int32_t section_heads; /* K/V heads of a section: they are worked on at a time, so that their rows stay in L2 */
    int32_t last_heads;    /* the last section's */
    /* By a section's tiles; by heads of a section, of the last early one, of the last one; by the K/V heads of an entry of
     * the batch, and by shares, each of which counts as such a head. */
    struct divisor by_section_tiles, by_section_heads, by_left_heads, by_last_heads, by_heads_kv, by_shares;
    /* In the order of their tiles, by prepare; [batch].tile: all tiles of a head; NULL: none. */
    struct sequence_at *sequences;
    int32_t first_shift, end_shift; /* the band, see struct band32, before what bottom_right adds */
    int32_t bottom_right;           /* keys - rows of the sequence is added to both shifts */
    const void *cu_seqlens_q, *cu_seqlens_k, *used_q, *used_k; /* NULL: none */
    int32_t index64;
    /* Prepare and finish have CTAs for packed rows, not for as many of each sequence as the longest has. */
    int32_t finds_rows;
    int32_t is_staggered;    /* all tiles have all rows, and start with different ones */
    int32_t last_keys_first; /* of heads that are not in the last section */
    int32_t even_keys_first; /* where the first keys come first: first blocks of keys of even number, then the others */
    int32_t first_alone;     /* with dq_semaphores: the first tile stores its dQ, all others add after it, in any order */
    int32_t may_hide;        /* keys of a block may be hidden from some rows: sums are searched for what 0 * NaN did */
    float scale, exponent;   /* P = 2^(score * exponent - lse in base 2) */
    float softcap, cap_rate, cap_inverse; /* 0: none; 2 log2(e) scale / softcap; 1 / softcap */
    struct softcap_terms cap;             /* where it is alone, and ln 2 / softcap */
    float cap_natural;
    const float *alibi; /* slopes [batch][heads_q]; NULL: none, or with ALiBi alone 1 */
    int64_t alibi_stride;
    float inverse_scale;            /* where ALiBi is alone: what all slopes are multiplied by, over the scale */
    int32_t alibi_start;            /* of its diagonal, without keys - rows */
    struct view bias, mask, blocks; /* of scores, keys contiguous, 0 = broadcast; masks: a byte each, 0 hides */
    int32_t block_q, block_k;       /* rows, in whole eights, and keys that share a byte of `blocks` */
    struct visible visible;         /* what is visible of the masks; owners are keys */
    struct view dbias_sum;          /* fp32, extents of 1 where the bias is broadcast; data NULL: not wanted */
    int32_t dropout;
    struct dropout_place place;
    struct philox_rounds rounds;
    float dv_factor; /* dV's sums are multiplied by this: dropout's 1 / (1 - p) */
#if defined(STROBE_TRACE)
    strobe_trace *trace;
#endif
#if defined(STROBE_SCORE_FUNCTION)
    struct score_values score;
#endif
};

/* What the elements of dQ, dK and dV are, by -D: fp32, or those of Q, K and V; and what makes one of the first of two
 * numbers. */
#if defined(GRADIENTS_FP32)
#define GRADIENT      float
#define PACK_GRADIENT first_of
#else
#define GRADIENT      element
#define PACK_GRADIENT pack
#endif

#endif
