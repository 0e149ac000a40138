/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rank_threads.h: a transport among the threads of one process. A message is copied straight from the sender's memory into
 * the receiver's when both have asked for it, so that the thread sanitizer sees who touches it meanwhile. Who waits longer
 * than a minute fails. */
#ifndef STROBE_CLI_RANK_THREADS_H
#define STROBE_CLI_RANK_THREADS_H

#include "strobe/strobe_dist.h"

struct world;

struct world *world_make(int32_t size);
void world_free(struct world *world);
strobe_transport world_transport(struct world *world, int32_t rank);

/* From the rank's exchange of this number on, counted from 0, starts fail; -1: none does. */
void world_break(struct world *world, int32_t rank, int64_t exchange);

/* Bytes that the rank has sent. */
int64_t world_sent(const struct world *world, int32_t rank);

/* Runs body once a rank, each on a thread of its own, and waits for all. */
void world_run(struct world *world, void (*body)(void *context, const strobe_transport *transport), void *context);

#endif
