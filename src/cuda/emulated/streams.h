/* SPDX-License-Identifier: BSD-3-Clause
 *
 * streams.h: what streams.c and events.c share. One lock is for all of it. */
#ifndef STROBE_CUDA_EMULATED_STREAMS_H
#define STROBE_CUDA_EMULATED_STREAMS_H

#include <pthread.h>

#include "cuda/emulated/driver.h"

enum { MOST_MEMBERS = 16 };

struct CUstream_st {
    struct CUctx_st *context;
    bool blocking, has_thread, ending;
    struct step *first, **last; /* the first is the one that is being done */
    struct CUstream_st *next;
    struct CUgraph_st *capture;
    unsigned captured, joined; /* in the capture: its last step, and the last one that another stream has waited for */
    uint64_t random;
};

struct CUevent_st {
    struct CUctx_st *context;
    uint64_t recorded, done;
    int holders;
    struct CUgraph_st *capture; /* in which it was recorded last */
    struct CUstream_st *member;
    unsigned position;
};

/* Also what can run. */
struct CUgraph_st {
    struct step *first, **last;
    int holders;
    bool capturing, invalid;
    struct CUstream_st *members[MOST_MEMBERS]; /* the first is the one where the capture began */
    unsigned count, member_count;
};

extern pthread_mutex_t emulated_streams_lock __attribute__((visibility("hidden")));

static inline bool is_default(const struct CUstream_st *stream) {
    return (uintptr_t)stream <= 2; /* 1 and 2 name them, too */
}

/* Until the event's record of the step is done. */
void emulated_await(const struct step *s);
/* With the lock held: one holder less. */
void emulated_release_graph(struct CUgraph_st *graph);
void emulated_release_event(struct CUevent_st *event);

#endif
