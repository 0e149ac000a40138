/* SPDX-License-Identifier: BSD-3-Clause
 *
 * params.h: what the kernels of sm80/ and of this folder are given, one structure passed by value as __grid_constant__; read
 * by C on the host and by CUDA C on the device. Pointers are the device's. Offsets are elements and 64-bit; positions inside
 * a sequence are int, because launch.c refuses longer ones. Also the words and constants that kernels of all architectures
 * share. */
#ifndef STROBE_CUDA_DEVICE_PARAMS_H
#define STROBE_CUDA_DEVICE_PARAMS_H

#include <stdint.h>

#include "cuda/device/cache.h"
#include "math/mask.h"
#include "math/philox.h"

/* Whether the kernel is compiled with the user's function of a score. */
#if defined(STROBE_SCORE_FUNCTION)
#include "cuda/device/score_values.h"
#define HAS_SCORE_FUNCTION 1
#else
#define HAS_SCORE_FUNCTION 0
#endif

/* Keys or rows that share a recompute mark; and what the packed rows of a head are padded to: a multiple of the rows of
 * every backward kernel's blocks. */
enum { RECOMPUTE_UNIT = 64, PACKED_PADDING = 128 };

/* Threads that sum up a sink's gradient; and whether they look at this row to know that all its keys were there: eight of 64
 * are enough. */
enum { SINK_THREADS = 1024 };
#define IS_SINK_SAMPLE(row) ((row) % 64 < 8)

/* The feature class of a kernel's variant, FEATURE_CLASS by -D: code for a feature costs time even where it is not run (15 %
 * of the Hopper forward), so variants without it are compiled as well. A class is a set of bits. NONE: the band alone
 * (causal, windows, varlen, sinks). ALIBI, SOFTCAP, BIAS, DROPOUT: the band and this one; a bias has the elements' type and
 * can be copied by the tensor copy engine. MASK: the band, boolean masks, and block masks of whole units (visible.h). SCORE:
 * softcap, ALiBi and a negative scale. ALL: everything. */
enum feature_class {
    FEATURES_NONE = 0,
    FEATURES_ALIBI = 1,
    FEATURES_SOFTCAP = 2,
    FEATURES_BIAS = 4,
    FEATURES_DROPOUT = 8,
    FEATURES_MASK = 16,
    FEATURES_SCORE = 32 | FEATURES_ALIBI | FEATURES_SOFTCAP,
    FEATURES_ALL = 64 | FEATURES_SCORE | FEATURES_BIAS | FEATURES_DROPOUT | FEATURES_MASK
};

/* Of a class, and of the variant that is compiled: whether scores are multiplied by the scale before softmax, and so are in
 * natural units. */
#define CLASS_HAS_SCORE_TERMS(features) (((features)&32) || (features) == FEATURES_BIAS)
#define HAS_SCORE_TERMS                 (CLASS_HAS_SCORE_TERMS(FEATURE_CLASS) || HAS_SCORE_FUNCTION)
#define HAS_ALL                         (FEATURE_CLASS == FEATURES_ALL)
#define HAS_ALIBI                       ((FEATURE_CLASS & FEATURES_ALIBI) != 0)
#define HAS_SOFTCAP                     ((FEATURE_CLASS & FEATURES_SOFTCAP) != 0)
#define HAS_BIAS                        ((FEATURE_CLASS & FEATURES_BIAS) != 0)
#define HAS_DROPOUT                     ((FEATURE_CLASS & FEATURES_DROPOUT) != 0)
/* It has masks beside the band, and skips what they hide. */
#define HAS_MASKS ((FEATURE_CLASS & FEATURES_MASK) != 0)

/* The lagging maximum: O and l are rescaled only when a row's maximum has grown by more than a factor of 2^8 of weight since
 * the last rescale. Until then weights are up to 2^8, which fp16, bf16 and fp32 hold as well as 1, and the division by l
 * takes it out (the conditional rescaling of FlashAttention-4). Part of the numerics (docs/numerics.md), not tuned. */
enum { LAGGING_MAXIMUM_LOG2 = 8 };

/* Numbers of strobe_dtype that kernels see; launch.c checks that they agree. */
enum cuda_dtype { CUDA_FP32 = 1, CUDA_FP16 = 2, CUDA_BF16 = 3, CUDA_FP64 = 4, CUDA_FP8 = 5, CUDA_INT8 = 6 };

/* A factor in twice the digits of a float: high + low. */
struct two_floats {
    float high, low;
};

static inline struct two_floats two_floats_of(double factor) {
    const float high = (float)factor;
    const struct two_floats both = {high, (float)(factor - (double)high)};
    return both;
}

/* A tensor [batch, row, head, columns], or over scores [batch, row, head, keys]; NULL: absent. */
struct view {
    void *data;
    int64_t batch, row, head; /* strides, 0 = broadcast */
    int32_t dtype;
    int32_t aligned; /* every row starts at a multiple of 16 bytes */
};

/* What device/visible.h has of masks. Steps count units; 0 = broadcast. */
struct visible {
    const uint8_t *mask_states, *block_states; /* of the boolean mask and of the block mask; NULL: there is none */
    const uint32_t *bits;                      /* [unit][UNIT_THREADS][2], units numbered as mask_states are */
    int64_t mask_batch, mask_head, mask_owner, block_batch, block_head, block_owner;
    int32_t of_function; /* mask_states and bits are the user's function's alone: what the masks hide is asked beside them */
};

struct params {
    struct view q, k, v, out, lse;
    struct view dout, dlse, dq, dk, dv;
    struct view bias, dbias, bool_mask, block_mask; /* block_mask: row counts rows of blocks */
    int32_t block_q, block_k;
    struct visible visible; /* of the masks or the user's function, or nothing: then kernels look at each mask element */

    const void *cu_q, *cu_k, *used_q, *used_k; /* NULL: absent */
    int32_t index64;
    struct cache cache;

    int32_t batch, heads_kv, group; /* query heads = heads_kv * group */
    int32_t seq_q, seq_k, dim, dim_v;

    /* Mask: a band around start_shift (+ keys - rows when it is bottom right); ALiBi is always bottom right. */
    int64_t left, right, start_shift;
    int32_t bottom_right;

    int32_t scaled;               /* scores are multiplied by scale before anything else; otherwise it is part of exponent */
    float scale;                  /* as the caller has it */
    float exponent;               /* P = 2^(score * exponent - ...) */
    struct two_floats to_natural; /* from a number times exponent to the natural logarithm; see lse_of_row() */
    float softcap;                /* 0: none */
    const float *slopes;          /* ALiBi; NULL: none */
    int64_t slopes_batch;
    const float *sinks; /* NULL: none */
    float *dsinks;

    int32_t dropout;
    struct dropout_place place;

    int32_t tiles;  /* of a head: the grid is tiles * slices * splits * heads_kv * batch blocks */
    int32_t slices; /* parts of dim_v (forward), of gradients (backward), that blocks of their own compute */
    int32_t splits; /* split-KV: parts of the keys that blocks of their own compute; out and lse then lie in the workspace */
    int32_t split_keys;           /* keys of a part, a multiple of every kernel's block */
    int64_t split_out, split_lse; /* elements from one part to the next */

    /* Backward. row_lse: of fp32 tensors as it is, else in base 2; +inf for rows that see nothing or are not there.
     * row_delta: delta = rowsum(dO * O) - dlse. Both [batch][heads_kv][packed_rows], padded to whole blocks of every kernel.
     */
    int32_t packed_rows;
    float *row_lse, *row_delta;
    float *row_ds, *row_p; /* sums over a row's keys of dS, before softcap's and a function's derivative, and of P, without
                              dropout, for dsinks; they lie as delta does; NULL: not wanted */
    /* Parts of sums over a head's rows i and keys j, of p_i dS_ij and, of rows of the sample, of p_i P_ij, p_i the weight of
     * the row's sink: [batch][heads][sink_parts_of_head][2]; NULL: none. See sm90/backward/sinks.h. */
    const float *sink_parts;
    int32_t sink_parts_of_head;
    float *dq_sum; /* dQ's fp32 sums over blocks of threads, without scale: [batch][heads_kv][packed_rows][dq_columns] in
                      runs of ptx/red.h, each of 16 rows x 8 columns */
    int32_t dq_columns;
    /* Recompute marks: what backward_fused.cu found not finite. Entry 0 is set if any is, then an entry for each
     * RECOMPUTE_UNIT keys (packed rows) of a head. jobs: 0, or kernels work on those of so many jobs that are marked. */
    int32_t *recompute_keys, *recompute_rows; /* neighbours, recompute_count entries together */
    int64_t recompute_count;
    int32_t key_units, row_units, jobs;
    struct view dbias_sum; /* backward: fp32 sums of dbias; data NULL: not wanted */
    int32_t kv_group;      /* backward_dbias.cu, which takes heads one by one: query heads that share K and V */
#if defined(STROBE_SCORE_FUNCTION)
    struct score_values score;
#endif
};

#endif
