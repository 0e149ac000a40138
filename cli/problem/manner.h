/* SPDX-License-Identifier: BSD-3-Clause
 *
 * manner.h: one call of the library, in one of several manners: threads, the caller's own parallel loop, whose workspace,
 * from which thread, on which stream. The result may not depend on the manner. */
#ifndef STROBE_CLI_MANNER_H
#define STROBE_CLI_MANNER_H

#include "problem/inputs.h"

/* Whose memory a call works in. The caller's is exactly as large as strobe_workspace says, between guard bands. */
typedef enum workspace_kind {
    WORKSPACE_LIBRARY, /* NULL with 0 bytes; on a GPU, which has no such thing, as WORKSPACE_FRESH */
    WORKSPACE_FRESH,   /* full of NaN */
    WORKSPACE_USED     /* as the call before left it, whatever that was */
} workspace_kind;

typedef struct manner {
    const char *name; /* for sentences: "on 2 threads" */
    workspace_kind workspace;
    bool fresh_thread; /* called from a thread that has called nothing before */
    bool lists;        /* with lists of what its masks hide, made before, where it has masks */
    /* on the CPU */
    int32_t threads; /* 0: as the problem says */
    bool own_loop;   /* tasks run one after another, last first, in a loop of ours */
    /* on a GPU */
    bool own_stream; /* not the default stream */
    bool graph;      /* captured in a graph that is launched twice */
    bool twin;       /* beside another call of the same kind on another stream */
    bool fenced;     /* tensors and workspace lie beside pages that are mapped to nothing */
} manner;

enum { MANNER_MESSAGE = PROBLEM_MESSAGE };

/* Calls, from the thread that the manner says. message gets a sentence unless STROBE_OK. */
strobe_status manner_call(const call *c, const manner *how, void *workspace, size_t bytes, void *stream, char *message,
                          size_t capacity);

/* The same with the workspace that the manner says, in the host's memory. A workspace that was written outside of its bounds
 * is a STROBE_DEVICE_ERROR of ours. */
strobe_status manner_run(const call *c, const manner *how, char *message, size_t capacity);

/* Whether a call in this manner brings lists of its masks, and sets up c->mask_lists to be made, with the bytes they take.
 */
bool manner_wants_lists(call *c, const manner *how);

/* Makes them in c->mask_lists.data, which may hold anything, for the calls with c that follow. */
strobe_status manner_make_lists(call *c, char *message, size_t capacity);

/* The kernel to which the last call's kernel handed its work over, as the library's log says; "" if none. */
const char *manner_helper(void);

#endif
