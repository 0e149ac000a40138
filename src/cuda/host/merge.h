/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.h: partial results over disjoint keys become one, on the GPU: strobe_merge, and the parts of split keys. */
#ifndef STROBE_CUDA_MERGE_H
#define STROBE_CUDA_MERGE_H

#include "core/kernel.h"
#include "cuda/device/params.h"

strobe_status strobe__cuda_merge(const struct merge *merge, void *stream);

/* parts: the params that wrote them; whole: with out and lse as the caller has them. */
strobe_status strobe__cuda_merge_splits(const struct params *whole, const struct params *parts, void *stream);

#endif
