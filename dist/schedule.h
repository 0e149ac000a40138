/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: what a participant sends, receives and computes, step by step. It is worked out before data move, by each rank
 * for itself from the whole problem, and so both sides of a message know its size. */
#ifndef STROBE_DIST_SCHEDULE_H
#define STROBE_DIST_SCHEDULE_H

#include "dist.h"

/* Rows that go to a participant, or come from one. */
struct transfer {
    int32_t participant;
    struct runs runs;
};

/* One block of K and V: which calls are made on it, and what moves meanwhile. */
struct step {
    bool own;          /* the block is the shard's own, in the caller's tensors; also that of a late step */
    int64_t rows;      /* of the block, else */
    int64_t grad_rows; /* of its dK and dV */
    struct runs
        unwritten; /* rows of them that no call is the first to write, as a whole; of the shard's own where those are */
    struct calls calls;
    /* K and V, while the calls are made. Sends: runs of this block. Receives: runs of the next, whose rows `grad` says. A
     * run is two messages, its K and its V. */
    struct transfer *sends, *receives;
    int64_t send_count, receive_count;
    struct transfer local; /* rows of the shard's own that belong to the next block too: an all-gather's */
    /* dK and dV, after the calls. Sends: runs of this block's gradients. Receives: runs of the shard's own keys. */
    struct transfer *grad_sends, *grad_receives;
    int64_t grad_send_count, grad_receive_count;
    struct transfer grad_local; /* the first of the sums. grad: rows of this block's gradients; row: the shard's own keys */
};

struct schedule {
    struct step *steps;
    int64_t count;
    bool late;             /* the shard's own block comes last, as a step without messages */
    int64_t early_heads;   /* but for so many of its K/V heads, on which its one call computes in the first step */
    struct runs rest;      /* rows that no call has */
    struct runs keys_rest; /* of the shard's own keys, those that the last of all transfers of gradients does not bring */
};

/* marks.c: segments of calls, what is written first and last; a forward's calls may become more. */
bool strobe__schedule_mark(struct schedule *schedule, const struct shard *s);
/* gathers: all K and V come at once, not in a ring. apart: there the shard's own block has calls of its own,
 * beside which messages travel. */
bool strobe__schedule_make(struct schedule *schedule, const struct shard *s, bool gathers, bool apart);
/* What brings gradients of the shard's keys after all calls, and after which step it goes; NULL: nothing does. */
const struct transfer *strobe__schedule_last(const struct schedule *schedule, int64_t *step);
/* The call on the shard's own block of which some heads come early; NULL: there is none. */
const struct call *strobe__schedule_early(const struct schedule *schedule);
/* At least as many as go one way, or come, in one exchange. */
int64_t strobe__schedule_messages(const struct schedule *schedule);
void strobe__schedule_free(struct schedule *schedule);

/* The rows of participant `source` that the rows of participant p see; pairs (may be NULL): how many pairs they are. */
bool strobe__schedule_need(const struct shard *s, int32_t p, int32_t source, struct runs *need, double *pairs);

#endif
