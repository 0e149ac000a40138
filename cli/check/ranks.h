/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranks.h: one call over the ranks of a problem, a thread a rank, by libstrobe_dist; on a GPU a stream a rank, too. */
#ifndef STROBE_CLI_RANKS_H
#define STROBE_CLI_RANKS_H

#include "problem/manner.h"

/* Runs c, which was prepared for in and out as one process's, over in->problem.ranks ranks: each gets copies of its shards
 * between guard bands, every second one with gaps between heads, and its results go into out. The workspace is as the manner
 * says, each rank's its own; threads and the caller's loop are those of c. A call on a GPU was prepared for copies of in and
 * out there; shards are copied there too, guard bands and all. message gets a sentence unless STROBE_OK. Ranks that return
 * different statuses or sentences, or write beside their tensors, are a STROBE_DEVICE_ERROR of ours. */
strobe_status ranks_run(const inputs *in, const outputs *out, const call *c, const manner *how, char *message,
                        size_t capacity);

#endif
