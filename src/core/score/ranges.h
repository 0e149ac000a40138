/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranges.h: a score function on ranges of rows and keys, by math/interval.h: what kernels ask of a block before they ask of
 * its pairs. */
#ifndef STROBE_CORE_SCORE_RANGES_H
#define STROBE_CORE_SCORE_RANGES_H

#include "core/score/score.h"
#include "math/score_intervals.h"

/* Where scores lie: one batch entry and K/V head, and ranges of query heads and positions, ends included. */
struct score_box {
    int64_t b, hkv, first_h, last_h, first_i, last_i, first_j, last_j, seq_q, seq_k;
};

/* Evaluates the program's steps of the classes [first, end) into value[node]. Those of classes before must be there. */
void strobe__score_ranges(const struct score_call *call, const struct score_program *program, const struct score_box *box,
                          int first, int end, struct interval *value);

#endif
