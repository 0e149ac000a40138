/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dbias.h: the launches for dbias that every backward pass of this folder has around its main one. Where an element of dbias
 * is the gradient of one score, or its sum may be in any order, the main kernels add dS to fp32 sums by atomics, which are
 * cleared before and rounded after; where it must be in a fixed order, a kernel of its own works out dS once more. */
#ifndef STROBE_CUDA_DBIAS_H
#define STROBE_CUDA_DBIAS_H

#include "cuda/host/launch.h"

/* Whether dbias is summed in a fixed order by a kernel of its own, which reads lse and D of packed rows: it is wanted, and
 * an element is a sum over batch entries, heads or rows. */
bool strobe__cuda_dbias_is_ordered(const struct problem *problem);

/* Of a plan's passes beside the main one, the last is the kernel that sums dbias in order. */
enum { DBIAS_PASS = sizeof(((struct plan *)0)->more) / sizeof(((struct plan *)0)->more[0]) - 1 };

/* Puts it into the plan where dbias is to be ordered; false if none was built for the dtype. */
bool strobe__cuda_dbias_choose(struct plan *plan);

/* The strides of its fp32 sums, contiguous, with extents of 1 where the bias is broadcast. Returns elements, 0 where there
 * are no such sums. */
int64_t strobe__cuda_dbias_sums(const struct problem *problem, struct view *sums);

/* Before and after the main kernels; params->dbias_sum is what strobe__cuda_dbias_sums has laid out, with data. */
strobe_status strobe__cuda_dbias_begin(const struct problem *problem, const struct params *params, void *stream);
strobe_status strobe__cuda_dbias_end(const struct plan *plan, const struct params *params, void *stream);

#endif
