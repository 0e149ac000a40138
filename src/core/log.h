/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log.h: one line for each call that ran, and for each that its kernel gave to another, to the callback that the caller set;
 * nothing is formatted without one. */
#ifndef STROBE_CORE_LOG_H
#define STROBE_CORE_LOG_H

#include "core/kernel.h"

void strobe__log_call(const struct plan *plan);

/* A kernel that met numbers which it does not compute gave the whole call to another. */
void strobe__log_handed_over(const char *kernel, const char *to, const char *why);

#endif
