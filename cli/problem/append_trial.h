/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_trial.h: strobe_append for tensors that lie in the host's memory, on the device of their problem. */
#ifndef STROBE_CLI_APPEND_TRIAL_H
#define STROBE_CLI_APPEND_TRIAL_H

#include <strobe/strobe_append.h>

#include "problem/inputs.h"

/* Appends to the inputs. c: prepared from them, with those scales that the call has; n: its pointers are the host's; counts:
 * rows of q, k and v that it reads. On a GPU the call runs on copies, guard bands included, which come back. Else than
 * STROBE_OK: with a sentence. */
strobe_status append_trial_run(const inputs *in, const call *c, const strobe_appender *n, const int64_t counts[3],
                               char *message, size_t capacity);

#endif
