/* SPDX-License-Identifier: BSD-3-Clause
 *
 * status.h: how a call refuses: a status, and one sentence that names the argument, its value and what is accepted. */
#ifndef STROBE_CORE_STATUS_H
#define STROBE_CORE_STATUS_H

#include "strobe/strobe.h"

/* Stores the sentence for strobe_last_error() of this thread and returns the status, so that a check reads
 * `return strobe__fail(STROBE_INVALID_ARGUMENT, "dim is %lld; 1 to 576 is accepted", ...)`. */
strobe_status strobe__fail(strobe_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
