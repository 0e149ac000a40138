/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c: the table of the GPU's kernels, and GPUs as devices. A record names all that its kernel takes; what it does not
 * name is refused (core/declare.c). */
#include "cuda/host/add.h"
#include "cuda/host/append.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/merge.h"
#include "cuda/host/quantise.h"
#include "cuda/host/visible.h"
#include "cuda/sm80/backward_host.h"
#include "cuda/sm80/decode_host.h"
#include "cuda/sm80/forward_host.h"
#include "cuda/sm90/backward/host.h"
#include "cuda/sm90/forward/host.h"
#include "cuda/sm90/latent/host.h"

#define COMMON                                                                                               \
    (SHAPE_FEATURES | BAND_FEATURES | MASK_FEATURES | FUNCTION_FEATURES | SCORE_FEATURES | VARLEN_FEATURES | \
     FEATURE(SINKS) | FEATURE(DROPOUT))
#define FORWARD  (COMMON | FEATURE(LSE))
#define BACKWARD (COMMON | FEATURE(DSCORE) | FEATURE(DBIAS) | FEATURE(DSINKS) | FEATURE(DLSE) | FEATURE(DETERMINISTIC))

/* What a cache of K and V may be, beside its lengths. */
#define CACHES (FEATURE(PAGED) | FEATURE(LEFTPAD_K) | FEATURE(SCALES))

#define DECODE                                                                                                        \
    (SHAPE_FEATURES | BAND_FEATURES | VARLEN_FEATURES | FEATURE(NEGATIVE_SCALE) | FEATURE(SOFTCAP) | FEATURE(ALIBI) | \
     FEATURE(BOOL_MASK) | FEATURE(SINKS) | FEATURE(LSE) | FEATURE(PAGED) | FEATURE(LEFTPAD_K))

#define DECODE_NUMBERS                                                                                   \
    .operation = STROBE_FORWARD, .device = STROBE_CUDA, .dim = 256, .dim_v = 256, .seq_q = POSITIONS_31, \
    .best_seq_k = KEYS_WORTH_SHARING

#define STORED (FP32 | FP16 | BF16 | FP64) /* one element at a time */

/* Bounds of kernels that count positions in int (sm80), and of those that add distances of two to them (sm90). */
#define POSITIONS_31 \
    { 0, MOST_ROWS }
#define POSITIONS_28 \
    { 0, 1 << 28 }
#define ROWS_31 \
    { 0, MOST_ROWS }

#define PACKED_TOTAL  "packed tensors: total_q is given"
#define PACKED_TOTALS "packed tensors: total_q and total_k are given"
#define DECODE_LIMITS "rows of k and v at multiples of 16 bytes; " PACKED_TOTAL "; chosen by itself from seq_k 64 on"
#define CLUSTER_LIMITS                                                                                                      \
    "batch * heads_kv up to 16, or 128 without lengths in arrays, pages, int8, e4m3 and dim above 128, from 17 to 30 with " \
    "seq_k up to 16384 (on a memory of more than 5120 bits 8192); up to 16 with seq_k in pages up to 16384, on a memory "   \
    "of 6144 "                                                                                                              \
    "bits "                                                                                                                 \
    "seq_k up to 32768; half of that, and of int8 and e4m3 up to 4096, where batch * heads_kv is above 8; " DECODE_LIMITS
#define COPIED_28 \
    PACKED_TOTALS "; dropout.key_start a multiple of 4; q_start and k_start at most 2^28 apart with ALiBi; rows of "

/* What the records of sm80's forward share, and those of its backward. */
#define FORWARD_SM80(elements)                                                                                            \
    .operation = STROBE_FORWARD, .device = STROBE_CUDA, .needs = CUDA_SM80, .seq_q = POSITIONS_31, .seq_k = POSITIONS_31, \
    .rows = ROWS_31, .reject = strobe__sm80_forward_reject, .choose = strobe__sm80_forward_choose,                        \
    .variants = strobe__sm80_forward_variants##elements, .workspace = strobe__sm80_forward_workspace,                     \
    .prepare = strobe__sm80_forward_prepare, .run = strobe__sm80_forward
#define BACKWARD_SM80(elements, mixtures)                                                                       \
    .operation = STROBE_BACKWARD, .device = STROBE_CUDA, .needs = CUDA_SM80, .features = BACKWARD | (mixtures), \
    .seq_q = POSITIONS_31, .seq_k = POSITIONS_31, .rows = ROWS_31, .reject = strobe__sm80_backward_reject,      \
    .limits = PACKED_TOTAL "; score functions: no dscore or broadcast dbias with STROBE_DETERMINISTIC",         \
    .choose = strobe__sm80_backward_choose, .variants = strobe__sm80_backward_variants##elements,               \
    .workspace = strobe__sm80_backward_workspace, .prepare = strobe__sm80_backward_prepare, .run = strobe__sm80_backward
#define BACKWARD_FP32_DTYPES                                                                                             \
    {                                                                                                                    \
        .q = FP32, .kv = SAME, .out = FP32, .lse = FP32, .bias = STORED, .sinks = FP32, .dout = SAME, .gradients = FP32, \
        .dbias = STORED                                                                                                  \
    }

/* The least keys for which sharing out blocks of keys has been measured, and is faster than tiles (docs/kernels/cuda.md). */
enum { KEYS_WORTH_SHARING = 64 };

/* The most keys in bytes of a sequence for which clusters are faster than shares, where eight CTAs have them. */
enum { CLUSTER_BYTES = 8192 };

static const struct kernel kernels[] = {
    {
        .name = "cuda_forward_sm90",
        .summary = "FlashAttention-3 forward, wgmma and tensor copies, fp16 and bf16, Hopper",
        .operation = STROBE_FORWARD,
        .device = STROBE_CUDA,
        .needs = CUDA_SM90,
        .features = FORWARD | FEATURE(PAGED) | FEATURE(LEFTPAD_K),
        .dtypes = {.q = FP16 | BF16, .kv = SAME, .out = SAME | FP32, .lse = FP32, .bias = SAME | FP32, .sinks = FP32},
        .dim = 256,
        .dim_v = 256,
        .seq_q = {1, 1 << 28},
        .seq_k = {1, 1 << 28},
        .rows = ROWS_31,
        .reject = strobe__sm90_forward_reject,
        .limits = COPIED_28 "q, k and v at ascending multiples of 16 bytes; block_mask.block_k a multiple of 8; pages of "
                            "multiples of 8 slots, without masks, bias, dropout and leftpad_k, and with an out in fp32 "
                            "without softcap and ALiBi; leftpad_k without masks; seq_q below 64 where a K/V head has "
                            "more than 64 rows, over many keys, plain or in pages",
        .choose = strobe__sm90_forward_choose,
        .variants = strobe__sm90_forward_variants,
        .workspace = strobe__sm90_forward_workspace,
        .prepare = strobe__sm90_forward_prepare,
        .run = strobe__sm90_forward,
    },
    {
        .name = "cuda_forward_fp8_sm90",
        .summary =
            "FlashAttention-3 forward in FP8, e4m3 with scales, q and k also int8, sums promoted every 128 keys, Hopper",
        .operation = STROBE_FORWARD,
        .device = STROBE_CUDA,
        .needs = CUDA_SM90,
        .features = SHAPE_FEATURES | BAND_FEATURES | VARLEN_FEATURES | FEATURE(NEGATIVE_SCALE) | FEATURE(SOFTCAP) |
                    FEATURE(ALIBI) | FEATURE(SINKS) | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SCALES_Q),
        .dtypes = {.q = FP8 | INT8, .kv = FP8 | INT8, .out = FP16 | BF16, .lse = FP32, .sinks = FP32},
        .dim = 256,
        .dim_v = 256,
        .scale_block = SCALED_KEYS,
        .seq_q = {1, 1 << 28},
        .seq_k = {1, 1 << 28},
        .rows = ROWS_31,
        .reject = strobe__sm90_fp8_reject,
        .limits = PACKED_TOTALS
        "; scales.block_k 0 or a multiple of 128, with packed k and v 0; q_start and k_start at most "
        "2^28 apart with ALiBi; rows of q, k and v at ascending multiples of 16 bytes",
        .choose = strobe__sm90_forward_choose,
        .variants = strobe__sm90_fp8_variants,
        .workspace = strobe__sm90_forward_workspace,
        .prepare = strobe__sm90_forward_prepare,
        .run = strobe__sm90_forward,
    },
    {
        .name = "cuda_latent_sm90",
        .summary = "decoding of latent attention (MLA), V in K's columns, wgmma and tensor copies, fp16 and bf16, Hopper",
        .operation = STROBE_FORWARD,
        .device = STROBE_CUDA,
        .needs = CUDA_SM90,
        .features = SHAPE_FEATURES | BAND_FEATURES | VARLEN_FEATURES | FEATURE(NEGATIVE_SCALE) | FEATURE(SOFTCAP) |
                    FEATURE(ALIBI) | FEATURE(SINKS) | FEATURE(LSE) | FEATURE(PAGED) | FEATURE(LEFTPAD_K) |
                    FEATURE(SPLIT_KEYS) | FEATURE(SCALES),
        .dtypes = {.q = FP16 | BF16, .kv = SAME | FP8 | INT8, .out = SAME, .lse = FP32, .sinks = FP32},
        .dim = 576,
        .dim_v = 512,
        .least_dim = 576,
        .least_dim_v = 512,
        .v_in_k = true,
        .seq_q = {1, 1 << 28},
        .seq_k = {1, 1 << 28},
        .rows = {1, 512},
        .reject = strobe__sm90_latent_reject,
        .limits = PACKED_TOTALS
        "; dim 576, dim_v 512, v k's first columns; rows of q, k and out at ascending multiples of 16 "
        "bytes; pages of multiples of 8 slots, without leftpad_k; at most 160 splits; int8 and e4m3 beside bf16; q_start "
        "and k_start at most 2^28 apart "
        "with ALiBi",
        .choose = strobe__sm90_latent_choose,
        .variants = strobe__sm90_latent_variants,
        .workspace = strobe__sm90_latent_workspace,
        .run = strobe__sm90_latent,
    },
    {
        .name = "cuda_decode_sm90",
        .summary = "few rows to a short cache, a cluster for each K/V head of a sequence, mma.sync, Hopper",
        .needs = CUDA_SM90,
        .features = DECODE,
        .dtypes = {.q = FP16 | BF16, .kv = SAME, .out = SAME | FP32, .lse = FP32, .sinks = FP32},
        .rows = {1, 16},
        DECODE_NUMBERS,
        .seq_k = POSITIONS_31,
        .reject = strobe__sm80_decode_cluster_reject,
        .limits = CLUSTER_LIMITS,
        .choose = strobe__sm80_decode_cluster_choose,
        .variants = strobe__sm80_decode_cluster_variants,
        .workspace = strobe__sm80_decode_cluster_workspace,
        .run = strobe__sm80_decode_cluster,
    },
    {
        .name = "cuda_decode_bytes_sm90",
        .summary = "few rows to a short cache in int8 or e4m3, a cluster for each K/V head of a sequence, mma.sync, Hopper",
        .needs = CUDA_SM90,
        .features = DECODE | FEATURE(SCALES),
        .dtypes = {.q = FP16 | BF16, .kv = FP8 | INT8, .out = SAME | FP32, .lse = FP32, .sinks = FP32},
        .rows = {1, 16},
        DECODE_NUMBERS,
        .seq_k = {0, CLUSTER_BYTES},
        .reject = strobe__sm80_decode_cluster_reject,
        .limits = CLUSTER_LIMITS,
        .choose = strobe__sm80_decode_cluster_choose,
        .variants = strobe__sm80_decode_cluster_bytes_variants,
        .workspace = strobe__sm80_decode_cluster_workspace,
        .run = strobe__sm80_decode_cluster,
    },
    {
        .name = "cuda_decode_sm80",
        .summary = "few rows to a cache, blocks of keys shared out evenly on the device, mma.sync, any GPU from sm_80",
        .needs = CUDA_SM80,
        .features = DECODE | FEATURE(SPLIT_KEYS),
        .dtypes = {.q = FP16 | BF16, .kv = SAME, .out = SAME | FP32, .lse = FP32, .sinks = FP32},
        .rows = {1, 64},
        DECODE_NUMBERS,
        .seq_k = POSITIONS_31,
        .reject = strobe__sm80_decode_reject,
        .limits = "at most 1024 splits; " DECODE_LIMITS,
        .choose = strobe__sm80_decode_choose,
        .variants = strobe__sm80_decode_variants,
        .workspace = strobe__sm80_decode_workspace,
        .run = strobe__sm80_decode,
    },
    {
        .name = "cuda_decode_bytes_sm80",
        .summary = "few rows to a cache in int8 or e4m3, blocks of keys shared out evenly on the device, mma.sync, any GPU "
                   "from sm_80",
        .needs = CUDA_SM80,
        .features = DECODE | FEATURE(SCALES) | FEATURE(SPLIT_KEYS),
        .dtypes = {.q = FP16 | BF16, .kv = FP8 | INT8, .out = SAME | FP32, .lse = FP32, .sinks = FP32},
        .rows = {1, 16},
        DECODE_NUMBERS,
        .seq_k = POSITIONS_31,
        .reject = strobe__sm80_decode_reject,
        .limits = "at most 1024 splits; " DECODE_LIMITS,
        .choose = strobe__sm80_decode_choose,
        .variants = strobe__sm80_decode_bytes_variants,
        .workspace = strobe__sm80_decode_workspace,
        .run = strobe__sm80_decode,
    },
    {
        .name = "cuda_forward_sm80",
        .summary = "FlashAttention-2 forward, mma.sync, fp16 and bf16, any GPU from sm_80",
        .features = FORWARD | CACHES | FEATURE(SPLIT_KEYS),
        .dtypes =
            {.q = FP16 | BF16, .kv = SAME | FP8 | INT8, .out = SAME | FP32, .lse = FP32, .bias = STORED, .sinks = FP32},
        .dim = DIM_LIMIT,
        .dim_v = DIM_V_LIMIT,
        .limits = "at most 1024 splits; " PACKED_TOTAL,
        FORWARD_SM80(),
    },
    {
        .name = "cuda_forward_tf32x3",
        .summary =
            "FlashAttention-2 forward, fp32 by three products of tf32 parts, where flags allow it, any GPU from sm_80",
        .features = FORWARD | FEATURE(SPLIT_KEYS),
        .allowed_by = STROBE_TF32X3,
        .dtypes = {.q = FP32, .kv = SAME, .out = FP32, .lse = FP32, .bias = STORED, .sinks = FP32},
        .dim = 128,
        .dim_v = 128,
        .limits = "at most 1024 splits; flags has STROBE_TF32X3; " PACKED_TOTAL,
        FORWARD_SM80(_tf32x3),
    },
    {
        .name = "cuda_forward_fp32",
        .summary = "FlashAttention-2 forward, true fp32, any GPU from sm_80",
        .features = FORWARD | CACHES | FEATURE(SPLIT_KEYS),
        .dtypes =
            {.q = FP32, .kv = SAME | FP16 | BF16 | FP8 | INT8, .out = FP32, .lse = FP32, .bias = STORED, .sinks = FP32},
        .dim = DIM_LIMIT,
        .dim_v = DIM_V_LIMIT,
        .limits = "at most 1024 splits; " PACKED_TOTAL,
        FORWARD_SM80(_fp32),
    },
    {
        .name = "cuda_backward_sm90",
        .summary = "FlashAttention-3 backward, wgmma and tensor copies, fp16 and bf16, Hopper",
        .operation = STROBE_BACKWARD,
        .device = STROBE_CUDA,
        .needs = CUDA_SM90,
        .features = BACKWARD | FEATURE(KEY_SUMS),
        .dtypes = {.q = FP16 | BF16,
                   .kv = SAME,
                   .out = SAME,
                   .lse = FP32,
                   .bias = SAME | FP32,
                   .sinks = FP32,
                   .dout = SAME,
                   .gradients = SAME | FP32,
                   .dbias = STORED},
        .dim = 256,
        .dim_v = 256,
        .seq_q = POSITIONS_28,
        .seq_k = POSITIONS_28,
        .rows = ROWS_31,
        .reject = strobe__sm90_backward_reject,
        .limits = COPIED_28
        "q, k, v and dout at ascending multiples of 16 bytes; block_mask.block_q a multiple of 8; softcap 0 or from 8 on; "
        "packed k: total_k is given; score functions: columns up to 128, softcap 0, dq, dk and dv of one dtype, no dscore "
        "or "
        "broadcast dbias with STROBE_DETERMINISTIC",
        .choose = strobe__sm90_backward_choose,
        .variants = strobe__sm90_backward_variants,
        .workspace = strobe__sm90_backward_workspace,
        .prepare = strobe__sm90_backward_prepare,
        .run = strobe__sm90_backward,
    },
    {
        .name = "cuda_backward_sm80",
        .summary = "FlashAttention-2 backward, mma.sync, fp16 and bf16, any GPU from sm_80",
        .dtypes = {.q = FP16 | BF16,
                   .kv = SAME,
                   .out = SAME | FP32,
                   .lse = FP32,
                   .bias = STORED,
                   .sinks = FP32,
                   .dout = SAME,
                   .gradients = SAME | FP32,
                   .dbias = STORED},
        .dim = 512,
        .dim_v = 512,
        BACKWARD_SM80(, DTYPE_FEATURES),
    },
    {
        .name = "cuda_backward_tf32x3",
        .summary =
            "FlashAttention-2 backward, fp32 by three products of tf32 parts, where flags allow it, any GPU from sm_80",
        .allowed_by = STROBE_TF32X3,
        .dtypes = BACKWARD_FP32_DTYPES,
        .dim = 128,
        .dim_v = 128,
        BACKWARD_SM80(_tf32x3, 0),
    },
    {
        .name = "cuda_backward_fp32",
        .summary = "FlashAttention-2 backward, true fp32, any GPU from sm_80",
        .dtypes = BACKWARD_FP32_DTYPES,
        .dim = 512,
        .dim_v = 512,
        BACKWARD_SM80(_fp32, 0),
    },
};

const struct backend strobe__cuda_backend = {
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .device = STROBE_CUDA,
    .lacks = strobe__cuda_lacks,
    .describe = strobe__cuda_describe,
    .merge = strobe__cuda_merge,
    .add = strobe__cuda_add,
    .quantise = strobe__cuda_quantise,
    .append = strobe__cuda_append,
    .mask_lists = &strobe__cuda_mask_lists,
};
