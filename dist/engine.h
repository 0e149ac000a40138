/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.h: a schedule being run: its memory, and the movement of K, V, dK and dV that forward and backward share. */
#ifndef STROBE_DIST_ENGINE_H
#define STROBE_DIST_ENGINE_H

#include "exchange.h"
#include "schedule.h"
#include "tensor.h"

/* dQ, dK and dV of one call, where there is something to add them to. */
struct parts {
    void *dq, *dk, *dv;
};

struct engine {
    const struct shard *s;
    struct place *on; /* the whole's */
    const struct schedule *schedule;
    struct exchange *x;
    strobe_status status; /* of this rank's own calls; the first that failed */

    void *block[2];          /* K and V of step t in block[t % 2] */
    void *staging, *landing; /* K and V to be sent, and received where they do not belong yet */
    void *grad_block[2];     /* dK and dV, fp32, of step t */
    void *grad_staging, *grad_landing;
    void *kernel; /* workspace of a call of attention */
    size_t kernel_bytes;
    float *zeros; /* [heads_q + dim_v] */

    bool keys_are_rounded;            /* backward: dK and dV are in the shard's tensors */
    bool rounds_dq;                   /* backward: dQ of direct calls is written by them; see strobe__engine_rounds_dq */
    bool has_sums;                    /* forward: some rows come from several calls, or from none */
    strobe_tensor sum_out, sum_lse;   /* what the calls so far come to */
    strobe_tensor part_out, part_lse; /* what one call comes to, where there is something to merge it with */
    strobe_tensor sum_dq, sum_dk, sum_dv;
    struct parts part, early; /* with room for the largest call; early: for the one that is made in two parts */
};

/* Hands out memory, the calls' offsets on a GPU too; without a base it counts, and with one asks the core library nothing
 * that it has been asked by then: kernel_bytes and rounds_dq of *e are to be what counting has left. Fails where the core
 * library refuses a call.
 */
strobe_status strobe__engine_make(struct engine *e, const struct shard *s, struct place *on, struct schedule *schedule,
                                  struct exchange *x, struct room *room);

/* The shard's results into its tensors, the gradients too. Returns how the transport did; e->status says how the calls did.
 */
strobe_status strobe__dist_run_forward(struct engine *e);
strobe_status strobe__dist_run_backward(struct engine *e);

/* The calls' offsets to the GPU. */
void strobe__engine_upload(const struct engine *e);

/* What the call that computes dsinks wants. */
strobe_status strobe__dist_sinks_workspace(const struct engine *e, size_t *bytes);

/* Whether a call has all of its rows' keys: nothing merges, and it writes the caller's out and lse itself. */
bool strobe__engine_is_direct(const struct call *c);

/* Whether such a call writes dq in the caller's dtype itself, beside dK and dV in fp32, which others may add to. */
bool strobe__engine_rounds_dq(const struct engine *e, const struct call *c);

/* Whether one call is the whole shard's backward: nothing is added, and it writes the shard's gradients itself. */
bool strobe__engine_is_whole(const struct engine *e);

/* The block of a step, and its gradients. */
struct block strobe__engine_block(const struct engine *e, int64_t t);
struct block strobe__engine_gradients(const struct engine *e, int64_t t);

/* Starts what moves during step t: its K and V, and the gradients of the step before. t may be the number of steps. */
strobe_status strobe__engine_start(struct engine *e, int64_t t);
/* Waits for it, and puts what has arrived where it belongs. */
strobe_status strobe__engine_finish(struct engine *e, int64_t t);

/* gradients.c: whether what has arrived is added to sums by one kernel; what came of step t, and rounds all rows where
 * nothing more comes. */
bool strobe__engine_adds_at_once(const struct engine *e);
void strobe__engine_add_at_once(struct engine *e, int64_t t, bool ends);
/* Bytes of a message's K and V, or of their gradients, of so many rows: each ends at a multiple of 64. */
void strobe__engine_message_bytes(const struct engine *e, int32_t dtype, int64_t rows, size_t bytes[2]);

/* Keeps the first failure of a call. */
void strobe__engine_note(struct engine *e, strobe_status status);

#endif
