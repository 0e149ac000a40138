/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.h (device): what device/merge.cu is given. */
#ifndef STROBE_CUDA_DEVICE_MERGE_H
#define STROBE_CUDA_DEVICE_MERGE_H

#include <stdbool.h>

#include "cuda/device/params.h"
#include "math/inline.h"

/* Parts of a strobe_merge, each with a pointer of its own; the parts of split keys are evenly spaced and have no limit. The
 * kernel is compiled for FEW and for MOST of them, 80 bytes each: kernels with little in their parameters start sooner. One
 * or two in fp32, nothing else, of which four columns are aligned, have a kernel of their own. */
#define TWO_MERGE_PARTS 2
enum { FEW_MERGE_PARTS = 32, MOST_MERGE_PARTS = 256 };

#if !defined(MERGE_PARTS)
#define MERGE_PARTS MOST_MERGE_PARTS
#endif

struct merge_params {
    struct view out, lse;  /* written; lse.data NULL: not wanted */
    int32_t count, evenly; /* evenly: part n lies n steps behind part 0 */
    int64_t step_out, step_lse;
    const float *sinks;        /* NULL, or one more part a row: logit sinks[head] and no value */
    const void *cu_q, *used_q; /* as in struct params */
    int32_t index64, batch, seq_q, heads_q, dim_v;
    struct {
        struct view out, lse;
    } part[MERGE_PARTS]; /* last, so that what is filled in for MOST is right for FEW */
};

/* Warps of a block. One merges a row, or all of them do where the row has many parts and rows are few; of two parts one
 * merges some rows. */
enum { MERGE_WARPS = 4, ROWS_OF_TWO = 16, BATCH_OF_TWO = 4, MANY_MERGE_ROWS = 1024 };

/* Whether parts are fp32, one step apart, of rows of whole 16 bytes. */
STROBE_INLINE bool merge_is_even(const struct merge_params *p) { return p->evenly && p->dim_v % 4 == 0; }

STROBE_INLINE int merge_warps(const struct merge_params *p) {
    const bool few = (int64_t)p->batch * p->seq_q * p->heads_q < MANY_MERGE_ROWS || p->count > 32;
    return merge_is_even(p) && p->count >= 2 * MERGE_WARPS && few ? MERGE_WARPS : 1;
}

#endif
