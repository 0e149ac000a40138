/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trial.h: one call of a kernel on inputs, on the device of the problem. */
#ifndef STROBE_CLI_TRIAL_H
#define STROBE_CLI_TRIAL_H

#include "problem/manner.h"

extern const manner trial_plain;

/* Runs the operation with a kernel, NULL: as the problem says. message gets a sentence unless STROBE_OK. */
strobe_status trial_run(const inputs *in, const outputs *out, const char *kernel, const manner *how, char *message,
                        size_t capacity);

/* Runs the forward of a backward problem into in's own out and lse. */
strobe_status trial_forward(inputs *in, const char *kernel, char *message, size_t capacity);

/* Names of the oracle and of the plain implementation in the table of kernels, by strobe_operation. */
extern const char *const trial_reference[2], *const trial_standard[2];

/* The plain forward whose lse has the error of fp32 scores and sums, those of the problem's device, and the dtype that its
 * problem has to be put in: fp32, or 16 bits as they are for a GPU's tensor cores. */
const char *trial_plain_lse(const problem *p, strobe_dtype *dtype);

/* Whether it is one of these. */
bool trial_is_yardstick(const char *kernel);

#endif
