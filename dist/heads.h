/* SPDX-License-Identifier: BSD-3-Clause
 *
 * heads.h: Ulysses' all-to-all (DeepSpeed-Ulysses, Jacobs et al., 2023): tensors of all heads and a rank's rows become
 * tensors of some heads and the rows of its group, and results go back. */
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
enum { MOST_ITEMS = 8 }; /* each is at most two messages to a rank, since its rows are at most two runs */

struct heads {
    struct shard *s;
    struct place *on;
    struct exchange *x;
    struct item inputs[MOST_ITEMS], results[MOST_ITEMS];
    int input_count, result_count;
    struct runs *q, *k; /* [group] of each member: position in the shard as `first`, with its step; row in its own tensor */
    strobe_tensor sum_k, sum_v; /* fp32, all K/V heads of the rank's keys: dK and dV from all members */
    unsigned char *staging, *landing;
    strobe_sinks sinks, dsinks;
    strobe_alibi alibi;
    strobe_dropout dropout;
};

/* Sets the shard's tensors and features. Without a base the room counts. False: no host memory. */
bool strobe__heads_make(struct heads *h, struct shard *s, struct place *on, struct exchange *x, struct room *room);
void strobe__heads_free(struct heads *h);

strobe_status strobe__heads_scatter(struct heads *h);              /* inputs, before */
strobe_status strobe__heads_gather(struct heads *h, float *zeros); /* results, after; zeros: as many as there are heads */

#endif
