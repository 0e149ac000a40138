/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpu_ranks.h: attention over processes with a GPU each, whatever moves their messages: every scheme, forward and backward
 * in bf16, of which the error against fp32 on the CPU is at most 1.1 times that of one process on the GPU; captured graphs;
 * ranks that disagree; a cache that is split over ranks. A program starts the processes, which share memory, brings a
 * transport, and judges when all have run. Rank r has GPU number r, counted around. */
#ifndef STROBE_TESTS_DIST_GPU_RANKS_H
#define STROBE_TESTS_DIST_GPU_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "problem/cuda_driver.h"
#include "strobe/strobe_dist.h"

enum { SKIPPED = 77, MOST_RANKS = 16 };

/* Of this process. */
struct gpu_rank {
    int32_t rank, ranks, device;
    const cuda_driver *driver;
    strobe_transport transport;
    bool graphs; /* the transport can be captured; where not, that is refused */
};

/* The bytes that the processes share, and whose memory it is. One of them, or all before they part, fills in the inputs. */
size_t gpu_ranks_bytes(int64_t seq);
void gpu_ranks_share(void *memory, int64_t seq);
void gpu_ranks_fill(void);

/* Opens the driver and the rank's device; false without one. */
bool gpu_rank_open(struct gpu_rank *r, int32_t rank, int32_t ranks);
/* All that the rank has to do, with its transport; rank 0 computes alone, too, last. Ends the process where it fails. */
void gpu_rank_run(const struct gpu_rank *r);
/* Calls of all ranks, after which the last one's process ends without a word: the others' next calls end, as
 * STROBE_DEVICE_ERROR with the transport's text, in which `expected` is to be found. */
void gpu_rank_outlive(const struct gpu_rank *r, const char *expected);
_Noreturn void fail_rank(const char *what, const char *why);
/* 0, or 1 with what is wrong. */
int gpu_ranks_judge(int32_t ranks);

#endif
