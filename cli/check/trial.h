/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trial.h: one call of the library on inputs, in one of several manners: threads, the caller's own parallel loop, the
 * caller's own workspace. The result may not depend on the manner. */
#ifndef STROBE_CLI_TRIAL_H
#define STROBE_CLI_TRIAL_H

#include "problem/inputs.h"

typedef struct manner {
    const char *name;       /* for sentences: "on 2 threads" */
    int32_t threads;        /* 0: as the problem says */
    bool own_loop;          /* tasks run one after another, last first, in a loop of ours */
    bool guarded_workspace; /* exactly the bytes that strobe_workspace asks for, full of NaN, between guard bands */
} manner;

extern const manner trial_plain;

/* Runs the operation with a kernel, NULL: as the problem says. message gets a sentence unless STROBE_OK; a workspace that
 * was written outside its bounds is a STROBE_DEVICE_ERROR of ours. */
strobe_status trial_run(const inputs *in, const outputs *out, const char *kernel, const manner *how, char *message,
                        size_t capacity);

/* Runs the forward of a backward problem into in's own out and lse. */
strobe_status trial_forward(inputs *in, const char *kernel, char *message, size_t capacity);

/* Names of the oracle and of the plain implementation in the table of kernels, by strobe_operation. */
extern const char *const trial_reference[2], *const trial_standard[2];

#endif
