/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rank_streams.h: the ranks of rank_threads.h with their tensors on GPUs, rank r on number r of them, counted around, each
 * with a stream of its own. A message is a copy on a second stream of the receiver's, which waits for the sender's stream
 * and for which both streams wait: nothing is waited for on the host but the other ranks' calls. */
#ifndef STROBE_CLI_RANK_STREAMS_H
#define STROBE_CLI_RANK_STREAMS_H

#include "check/rank_threads.h"

struct streams;

/* NULL, with a sentence, where there is no GPU. */
struct streams *streams_make(struct world *world, int32_t size, char *message, size_t capacity);
int streams_device(int32_t rank); /* where the rank's tensors lie */
void streams_free(struct streams *streams);

/* The rank's transport, whose records go by `host`, that of rank_threads.h; and the stream of its calls. */
strobe_transport streams_transport(struct streams *streams, const strobe_transport *host);
void *streams_of_rank(const struct streams *streams, int32_t rank);

#endif
