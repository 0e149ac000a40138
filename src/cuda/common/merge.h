/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.h (common): what common/merge.cu is given. */
#ifndef STROBE_CUDA_COMMON_MERGE_H
#define STROBE_CUDA_COMMON_MERGE_H

#include "cuda/common/params.h"

/* Parts of a strobe_merge with places of their own; the parts of split keys are evenly spaced and have no limit. */
enum { MOST_MERGE_PARTS = 32 };

struct merge_params {
    struct view out, lse; /* written; lse.data NULL: not wanted */
    struct view part_out[MOST_MERGE_PARTS], part_lse[MOST_MERGE_PARTS];
    int32_t count, evenly; /* evenly: part n is part 0, n steps on */
    int64_t step_out, step_lse;
    const float *sinks;        /* NULL, or a part more of logit sinks[head] and no value */
    const void *cu_q, *used_q; /* as in struct params */
    int32_t index64, batch, seq_q, heads_q, dim_v;
};

#endif
