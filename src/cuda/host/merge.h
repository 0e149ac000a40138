/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.h: partial results over disjoint keys become one, on the GPU: strobe_merge, and the parts of split keys. */
#ifndef STROBE_CUDA_MERGE_H
#define STROBE_CUDA_MERGE_H

#include "core/kernel.h"
#include "cuda/device/params.h"

strobe_status strobe__cuda_merge(const struct merge *merge, void *stream);

/* out and lse become `splits` parts in the workspace: out [splits][rows][heads][dim_v], then lse [splits][rows][heads], then
 * what the rounding of lse has left. */
void strobe__cuda_into_parts(struct params *to, const struct problem *problem, int64_t splits, float *workspace);
size_t strobe__cuda_parts_bytes(const struct problem *problem, int64_t splits);

/* parts: the params that wrote them; whole: with out and lse as the caller has them. early: the kernel before lets this one
 * start, see cuda/ptx/dependent.h. */
strobe_status strobe__cuda_merge_splits(const struct params *whole, const struct params *parts, bool early, void *stream);

#endif
