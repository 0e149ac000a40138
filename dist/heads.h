/* SPDX-License-Identifier: BSD-3-Clause
 *
 * heads.h: Ulysses' all-to-all (DeepSpeed-Ulysses, Jacobs et al., 2023): tensors of all heads and a rank's rows become
 * tensors of some heads and the rows of its group, and results go back. A backward wants of out only its products with dout,
 * which are taken off dlse: on a GPU each rank does so before the exchange, and out is zeros behind it. */
#ifndef STROBE_DIST_HEADS_H
#define STROBE_DIST_HEADS_H

#include "exchange.h"
#include "tensor.h"

/* A tensor on both sides: all heads of the rank's rows, and the shard's. dim 1 is lse. */
struct item {
    strobe_tensor whole, shard;
    bool keys; /* of keys, with K/V heads; else of query rows */
    bool adds; /* on the way back: fp32 that several ranks have a part of */
    int64_t dim;
};
enum { MOST_ITEMS = 10 }; /* each is at most two messages to a rank, since its rows are at most two runs */

struct heads {
    struct shard *s;
    struct place *on;
    struct exchange *x;
    struct item inputs[MOST_ITEMS], results[MOST_ITEMS];
    int input_count, result_count;
    const struct heads *first; /* that of the first part, or this one */
    struct runs *q, *k; /* [group] of each member: position in the shard as `first`, with its step; row in its own tensor */
    strobe_tensor sum_k, sum_v; /* fp32, all K/V heads of the rank's keys: dK and dV from all members */
    strobe_tensor dlse;         /* on a GPU, all heads of the rank's rows: dlse less what out and dout make of it */
    unsigned char *staging, *landing;
    strobe_sinks sinks, dsinks;
    strobe_alibi alibi;
    strobe_dropout dropout;
};

/* Sets the shard's tensors and features. Without a base the room counts. False: no host memory. first: of the shard's parts;
 * NULL for itself. */
bool strobe__heads_make(struct heads *h, struct shard *s, const struct heads *first, struct place *on, struct exchange *x,
                        struct room *room);
void strobe__heads_free(struct heads *h);

/* An all-to-all of the inputs (scatters), or of the results: what is told to the exchange before it starts, what this rank
 * keeps for itself, and what has arrived. */
void strobe__heads_tell(struct heads *h, bool scatters);
void strobe__heads_keep(struct heads *h, bool scatters);
void strobe__heads_put(struct heads *h, bool scatters);
/* Sums of all parts, rounded. zeros: as many as there are heads. */
strobe_status strobe__heads_finish(const struct heads *h, float *zeros);

#endif
