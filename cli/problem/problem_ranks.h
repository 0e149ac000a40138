/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_ranks.h: the word ranks=N[/GROUP][:SCHEME[:LAYOUT]] of a problem, and what it asks of libstrobe_dist. */
#ifndef STROBE_CLI_PROBLEM_RANKS_H
#define STROBE_CLI_PROBLEM_RANKS_H

#include "problem/inputs.h"

#include <strobe/strobe_dist.h>

enum { MOST_RANKS = 4096 };

/* Reads what stands behind "ranks=". False, with a sentence that names it and what is accepted. */
bool problem_ranks_read(const char *value, problem *p, char *message, size_t capacity);

/* " ranks=3:ring:zigzag", or nothing where there are none. The length, as snprintf. */
int problem_ranks_print(const problem *p, char *text, size_t capacity);

/* The call of one rank. The transport moves nothing; dist points at it and at the whole problem's attention. */
void problem_ranks_describe(const problem *p, const strobe_attention *whole, int32_t rank, strobe_transport *transport,
                            strobe_dist *dist);

#endif
