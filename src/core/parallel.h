/* SPDX-License-Identifier: BSD-3-Clause
 *
 * parallel.h: the one place where host work is spread over threads: the caller's, OpenMP's, or the calling one. Kernels
 * make results independent of the thread count by giving every task its own outputs and a work that depends on shapes
 * alone. */
#ifndef STROBE_CORE_PARALLEL_H
#define STROBE_CORE_PARALLEL_H

#include "strobe/strobe.h"

/* One task; worker is in [0, strobe__workers()) and unique among the tasks that run at once: it picks scratch memory. */
typedef void strobe__task(void *context, int64_t index, int32_t worker);

/* The most workers that strobe__parallel_for uses; parallel may be NULL. */
int32_t strobe__workers(const strobe_parallel *parallel);

/* Runs every task once, in any order, and returns when all have run. */
void strobe__parallel_for(const strobe_parallel *parallel, int64_t tasks, strobe__task *task, void *context);

#endif
