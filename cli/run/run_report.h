/* SPDX-License-Identifier: BSD-3-Clause
 *
 * run_report.h: the page that `strobe run` prints about one set of q, k and v. */
#ifndef STROBE_CLI_RUN_REPORT_H
#define STROBE_CLI_RUN_REPORT_H

#include "run/attention_set.h"

/* Computes out, measures, prints. An exit code; a sentence in message when it is EXIT_REFUSED. */
int run_report(const attention_set *set, inputs *in, outputs *out, char *message, size_t capacity);

#endif
