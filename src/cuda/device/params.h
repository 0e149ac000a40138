/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what every kernel of this folder is given, one structure passed by value as __grid_constant__; read by C on the
 * host and by CUDA C on the device. Pointers are the device's. Offsets are elements and 64-bit; positions inside a sequence
 * are int, because launch.c refuses longer ones. */
#ifndef STROBE_CUDA_COMMON_PARAMS_H
#define STROBE_CUDA_COMMON_PARAMS_H

#include <stdint.h>

#include "math/mask.h"
#include "math/philox.h"

/* Rows or keys that the backward pass repeats together, and a multiple of the rows of all its blocks. */
enum { AGAIN_UNIT = 64, PACKED_PADDING = 128 };

/* Numbers of strobe_dtype that kernels see; launch.c checks that they agree. */
enum cuda_dtype { CUDA_FP32 = 1, CUDA_FP16 = 2, CUDA_BF16 = 3, CUDA_FP64 = 4 };

/* A tensor [batch, row, head, columns], or over scores [batch, row, head, keys]; NULL: absent. */
struct view {
    void *data;
    int64_t batch, row, head; /* strides, 0 = broadcast */
    int32_t dtype;
    int32_t aligned; /* every row starts at a multiple of 16 bytes */
};

struct params {
    struct view q, k, v, out, lse;
    struct view dout, dlse, dq, dk, dv;
    struct view bias, dbias, bool_mask, block_mask; /* block_mask: row counts rows of blocks */
    int32_t block_q, block_k;

    const void *cu_q, *cu_k, *used_q, *used_k; /* NULL: absent */
    int32_t index64;

    int32_t batch, heads_kv, group; /* query heads = heads_kv * group */
    int32_t seq_q, seq_k, dim, dim_v;

    /* Mask: a band around start_shift (+ keys - rows when it is bottom right); ALiBi is always bottom right. */
    int64_t left, right, start_shift;
    int32_t bottom_right;

    int32_t scaled;      /* scores are multiplied by scale before anything else; otherwise it is part of exponent */
    float scale;         /* as the caller has it */
    float exponent;      /* weight = 2^(score * exponent - ...) */
    float softcap;       /* 0: none */
    const float *slopes; /* ALiBi; NULL: none */
    int64_t slopes_batch;
    const float *sinks; /* NULL: none */
    float *dsinks;

    int32_t dropout;
    struct dropout_place place;

    int32_t tiles;      /* of a head: the grid is tiles * slices * splits * heads_kv * batch blocks */
    int32_t slices;     /* parts of dim_v (forward), of gradients (backward), that blocks of their own compute */
    int32_t splits;     /* parts of the keys that blocks of their own compute; out and lse are then parts in the workspace */
    int32_t split_keys; /* keys of a part, a multiple of every kernel's block */
    int64_t split_out, split_lse; /* elements from one part to the next */

    /* Backward. row_lse: in base 2, +inf for rows that see nothing or are not there; row_term: D = rowsum(dout * out) -
     * dlse; both [batch][heads_kv][packed_rows], padded to whole blocks of every kernel. */
    int32_t packed_rows;
    float *row_lse, *row_term;
    float *dq_sum; /* dQ's fp32 sums over blocks of threads, without scale: [batch][heads_kv][packed_rows][dq_columns] in
                      runs of ptx/red.h, each of 16 rows x 8 columns */
    int32_t dq_columns;
    /* What backward_fused.cu could not finish: entry 0 is set if any, then an entry for each AGAIN_UNIT keys (packed rows)
     * of a head. jobs: 0, or kernels work on those of so many jobs that are marked. */
    int32_t *again_keys, *again_rows; /* neighbours, again_count entries together */
    int64_t again_count;
    int32_t key_units, row_units, jobs;
    struct view dbias_sum; /* backward: fp32 sums of dbias; data NULL: not wanted */
    int32_t kv_group;      /* backward_dbias.cu, which takes heads one by one: query heads that share K and V */
};

#endif
