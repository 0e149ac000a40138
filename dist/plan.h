/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.h: what a call works out before it runs, but for where its tensors lie. The plan of a call on a GPU is kept, and the
 * next call of the same shape takes it in place of checking, choosing a scheme and counting anew. */
#ifndef STROBE_DIST_PLAN_H
#define STROBE_DIST_PLAN_H

#include "schedule.h"

/* All of a call that a plan follows from. Of a pointer it has whether it is NULL, and what it is modulo ALIGNMENTS, by which
 * kernels may differ; nothing of dropout's seed and offset. Compared byte by byte. */
enum { ALIGNMENTS = 256, MOST_NAME = 64 };
struct plan_key {
    strobe_dist d;
    strobe_dist_rates rates;
    strobe_attention a;
    strobe_gradients g;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    int64_t split_keys;
    char kernel[MOST_NAME];
    int32_t rank, size, hides, backward;
};

struct plan {
    bool has_key; /* it may be kept */
    struct plan_key key;
    int32_t scheme, parts;
    struct shard s[MOST_PARTS];
    struct schedule schedule;
    size_t kernel_bytes[MOST_PARTS], needed; /* of workspace: a call of attention's, and all */
    bool rounds_dq[MOST_PARTS];              /* as an engine's */
};

/* The plan that was kept of such a call, which is the caller's from then on, or a new one without a scheme; NULL: no memory.
 */
struct plan *strobe__plan_take(const struct whole *w);
/* Whether it was kept: all that a call's arguments alone decide has been found right then. */
bool strobe__plan_is_made(const struct plan *p);
/* For later calls; frees it where it is of a kind that is not kept: packed sequences, whose offsets are data, and what is no
 * GPU's, where the core library's workspace depends on the number of threads. */
void strobe__plan_keep(struct plan *p);
void strobe__plan_free(struct plan *p);

#endif
