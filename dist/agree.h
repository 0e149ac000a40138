/* SPDX-License-Identifier: BSD-3-Clause
 *
 * agree.h: the ranks compare what they were called with. */
#ifndef STROBE_DIST_AGREE_H
#define STROBE_DIST_AGREE_H

#include "exchange.h"

/* What has to be the same on every rank. The first two are the same two for every call: the number of ranks and which call
 * it is, so that ranks that make different calls hear of that. */
struct named {
    const char *name;
    int64_t value;
};
enum { MOST_NAMED = 48 };
#define OPERATION "the operation (0 forward, 1 backward, 2 decode)"
enum { OPERATION_FORWARD, OPERATION_BACKWARD, OPERATION_DECODE };

/* Those of attention over shards; the number of them. */
int strobe__dist_fields(const struct whole *w, int32_t scheme, struct named *named);
int64_t strobe__dist_bits(double number);
int64_t strobe__dist_hash(const void *data, size_t bytes); /* of nothing where data is NULL */

/* status: what this rank has found out about its own call, with its sentence set; it then needs no fields. Returns the same
 * status and sentence on every rank: the first rank's that refuses, or a field in which one differs from rank 0. t: for
 * memory of the host. Allocates nothing. */
strobe_status strobe__dist_agree(const strobe_transport *t, void *stream, const struct named *named, int count,
                                 strobe_status status);

#endif
