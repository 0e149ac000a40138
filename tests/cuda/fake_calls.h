/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_calls.h: calls of any features with tensors on a GPU that is not there (fake_runtime.h). */
#ifndef STROBE_TESTS_CUDA_FAKE_CALLS_H
#define STROBE_TESTS_CUDA_FAKE_CALLS_H

#include "strobe/strobe.h"
#include "strobe/strobe_score.h"

enum {
    BIAS = 1,
    BOOL = 2,
    BLOCK = 4,
    ALIBI = 8,
    DROPOUT = 16,
    SINKS = 32,
    SOFTCAP = 64,
    PACKED = 128,
    USED = 256,
    NEGATIVE = 512,
    ODD = 1024,
    FIXED_ORDER = 2048,
    SPLIT = 4096,
    WIDE = 8192,
    CAUSAL = 16384,
    BROADCAST = 32768,
    VISIBLE = 65536,
    PAGED = 1 << 17, /* of the forward alone, as the others that follow */
    INT8_CACHE = 1 << 18,
    FP8_CACHE = 1 << 19,
    V_IN_K = 1 << 20,
    TF32_PARTS = 1 << 21,
    CACHES = PAGED | INT8_CACHE | FP8_CACHE | V_IN_K
};

struct call {
    strobe_attention a;
    strobe_gradients g;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_scales scales;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_block_mask block_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_tuning tuning;
    strobe_score_arguments score;
    strobe_score_elements array;
};

/* An address on the device, another one for each tensor of a call. */
void *fake_place(int device);

/* size: batch, rows, keys, query heads that share a K/V head, of eight. with: features. */
void fake_call(struct call *call, int device, int32_t dtype, const int64_t dim[2], const int64_t size[4], unsigned with);

#endif
