/* SPDX-License-Identifier: BSD-3-Clause
 *
 * draw_ranks.h: random problems over many ranks. */
#ifndef STROBE_CLI_DRAW_RANKS_H
#define STROBE_CLI_DRAW_RANKS_H

#include "problem/inputs.h"
#include "problem/random.h"

/* Makes a problem that was drawn one over ranks: how many, by which scheme, in which layout; what libstrobe_dist never takes
 * is left out. */
void draw_ranks(random_stream *r, problem *p);

/* Whether libstrobe_dist takes it, c being the problem described; else its status and sentence. */
strobe_status ranks_take(const problem *p, const call *c, char *message, size_t capacity);

#endif
