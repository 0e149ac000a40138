/* SPDX-License-Identifier: BSD-3-Clause
 *
 * relative.h: a function that meets positions in one value alone, which depends on i - j: the bias of relative positions of
 * `score + table[h][i - j + 512]`. All pairs of a diagonal share it, and a kernel works it out before it has their scores.
 */
#ifndef STROBE_CORE_SCORE_RELATIVE_H
#define STROBE_CORE_SCORE_RELATIVE_H

#include "core/score/score.h"

/* The node of that value, a float that is not made of the score; NO_NODE where the function has none. With it, score and
 * head the score is known: nothing else that depends on i or j stands beside the score. */
uint16_t strobe__score_relative(const struct strobe_score *function);

#endif
