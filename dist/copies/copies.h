/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copies.h: what the files of this folder share. Ranks of one host that reach each other's memory are near. An ordered pair
 * of them has a channel: SLOTS pieces of memory on the receiver's GPU, and for each two values in a file of memory that all
 * processes map, full and empty, of which one is 1:
 *
 *     the sender's stream      waits for empty = 1, sets it to 0, copies into the slot, sets full = 1
 *     the receiver's stream    waits for full = 1, sets it to 0, copies out of the slot, sets empty = 1
 *
 * The values are the same on every round, so that a graph may be launched again. Between a copy and a value a GPU loses some
 * microseconds, so that slots are large. A copy out of a slot stays within a GPU, and so is a kernel's work whoever asks for
 * it: one empties the slots of all ranks in a round. Copies to different ranks go on streams of their own. Where nothing
 * goes beside an exchange and it is short, kernels copy in place of engines, on the call's own stream: one for all that is
 * sent in a round, one for all that is taken, so that the values of all ranks are waited for and set together; or one for
 * all, that waits for values itself, where the rank has its GPU to itself: kernels that wait for each other must run at
 * once. Which of these a rank does is its own affair. An exchange goes in rounds, and every rank puts a round's sends on its
 * streams before it puts the receives of the round before: if a GPU ran all streams of a rank as one, in the order of the
 * host's calls, no rank would wait for ever. */
#ifndef STROBE_DIST_COPIES_COPIES_H
#define STROBE_DIST_COPIES_COPIES_H

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "dist/cuda_memory.h"
#include "strobe/strobe_dist.h"

#if !defined(STROBE_SLOT_BYTES) /* smaller on a GPU that the host plays, so that messages take many */
#define STROBE_SLOT_BYTES (32 << 20)
#endif
enum {
    SLOTS = 3,
    TAKE = 0,
    SEND = 1,    /* the first of up to SENDERS */
    SENDERS = 3, /* a copy to one rank does not fill the links that a GPU has to all */
    STREAMS = SEND + SENDERS,
    SLOT_BYTES = STROBE_SLOT_BYTES,
    MOST_NEAR = 64,
    RECORD_BYTES = 2048,
    DEEP = 2,
    AT_A_TIME = 8,
    MOST_VALUES = 4 * MOST_NEAR, /* put on a stream at a time */
    MOST_PIECES = 128            /* copied by a kernel at a time */
};

/* Values that streams wait for, as the host sees them. */
struct channel {
    _Alignas(64) _Atomic uint32_t full[SLOTS];
    _Alignas(64) _Atomic uint32_t empty[SLOTS];
};

/* Records on their way: written and read count them. */
struct mailbox {
    _Alignas(64) _Atomic uint32_t written;
    _Alignas(64) _Atomic uint32_t read;
    uint32_t bytes[DEEP];
    unsigned char record[DEEP][RECORD_BYTES];
};

/* The file, of which pages come into being when they are written. [from][to], by the number of a rank in the host. */
struct shared {
    struct channel channel[MOST_NEAR][MOST_NEAR];
    _Atomic uint32_t has_left[MOST_NEAR]; /* by its own will, with all that it had to do done */
    struct mailbox mailbox[MOST_NEAR][MOST_NEAR];
};

/* One side of an exchange. */
struct side {
    const strobe_message *list;
    int64_t count;
    bool sends;
};

/* A rank of the host: a near one where it is reached. */
struct near {
    int32_t rank, number; /* number: in the host */
    pid_t process;
    int descriptor;           /* of the process, -1: it is this one */
    bool is_opened;           /* landing is another process's */
    unsigned char *landing;   /* its memory for messages of this rank's, [SLOTS][SLOT_BYTES] */
    unsigned char *own;       /* this rank's memory for messages of its */
    int send_slot, take_slot; /* the next ones */
    bool reached;
    int64_t send_at, take_at; /* in the lists of the exchange: the next message, and how much of it has gone */
    size_t send_done, take_done;
};

struct copies {
    strobe_transport base, base_records, records;
    int32_t rank, size, device;
    int32_t number, members; /* of the ranks of this host, near or not */
    struct near near[MOST_NEAR];
    int32_t near_count;
    bool all_are_near; /* every rank to every other */
    int16_t *near_of;  /* [size]: in near, -1 for others */
    unsigned char *landing;
    /* Behind landing, of exchanges in one launch; NULL: another rank of the host has this GPU. */
    uint64_t *may_go;
    uint32_t *counts;
    char file[64]; /* this rank's name for it, "" when it is gone */
    struct shared *shared;
    struct channel *on_device; /* the channels, as the GPU sees them */
    bool is_registered, watches;
    int32_t senders;                        /* as many as there are other ranks, SENDERS at most */
    cudaStream_t stream[STREAMS];           /* TAKE, and SEND with those that follow */
    cudaEvent_t ready, done[STREAMS], left; /* left: the exchange before, where it was on its call's stream */
    cudaStream_t last;                      /* that stream */
    bool has_left, was_beside;              /* has_left: not where it was captured */
    bool is_used[STREAMS];                  /* by the exchange under way, or the last that went beside its stream */
    CUstreamBatchMemOpParams value[MOST_VALUES];
    struct copied_rows piece[MOST_PIECES];
    unsigned value_count;
    int64_t piece_count;
    struct exchange_params exchange;  /* in one launch */
    struct side send_side, take_side; /* of it: started, when it is waited for */
    bool copies_move, base_moves, base_records_move;
    strobe_message *far; /* messages that base moves: sends, then receives */
    int64_t far_capacity;
    const strobe_message *record_sends; /* copied */
    strobe_message kept[64];
    int64_t record_send_count, record_receive_count;
    bool record_done[64];
    pthread_t watcher;
    int wake;
    _Atomic int32_t gone; /* a rank whose process has ended, + 1 */
    PFN_cuStreamBatchMemOp_v11070 stream_values;
    char text[512];
};

/* What goes wrong: into c->text, and 1. */
__attribute__((format(printf, 2, 3))) int strobe__copies_fail(struct copies *c, const char *format, ...);
int strobe__copies_cuda(struct copies *c, cudaError_t error, const char *what);
/* Whether a near rank's process has ended, with c->text. */
int strobe__copies_gone(struct copies *c);

/* meet.c: the ranks find out who is near, share memory, and are watched. own_status: what this rank has failed at already,
 * with c->text. The same status on all ranks. */
strobe_status strobe__copies_meet(struct copies *c, strobe_status own_status);
void strobe__copies_part(struct copies *c);

/* move.c: the transport's functions. */
int strobe__copies_start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                         int64_t receive_count, void *stream);
int strobe__copies_wait(void *self, void *stream);
int strobe__copies_move(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                        int64_t receive_count, void *stream);

/* records.c: those of its records. */
int strobe__copies_start_records(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                                 int64_t receive_count, void *stream);
int strobe__copies_wait_for_records(void *self, void *stream);

/* watch.c: a thread that waits for the end of processes. */
int strobe__copies_watch(struct copies *c);
void strobe__copies_watch_no_more(struct copies *c);

#endif
