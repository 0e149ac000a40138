/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bind.h: a score function in a call: its arguments are read into struct score_call when the problem is read (bind.c), and
 * what may be asked of its arrays is checked when the problem is validated (bounds.c). */
#ifndef STROBE_CORE_SCORE_BIND_H
#define STROBE_CORE_SCORE_BIND_H

#include "core/problem.h"

/* Fills in problem->score_call from problem->score and problem->dscore. */
strobe_status strobe__score_bind(struct problem *problem);

/* Whether every index that is not clamped lies inside its array, and every integer in 32 bits, for all positions. */
strobe_status strobe__score_check(const struct problem *problem);

/* The second half of it: bounds.c. */
strobe_status strobe__score_check_bounds(const struct problem *problem);

/* Where the score of row i and key j of a sequence stands. */
struct score_place strobe__score_place(const struct problem *problem, const struct sequence *s, int64_t h, int64_t i,
                                       int64_t j);

#endif
