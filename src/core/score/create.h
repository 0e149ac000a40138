/* SPDX-License-Identifier: BSD-3-Clause
 *
 * create.h: what making a score function and calling it share. */
#ifndef STROBE_CORE_SCORE_CREATE_H
#define STROBE_CORE_SCORE_CREATE_H

#include "core/score/score.h"

/* Whether scalar n may have this value; kind is for the sentence. */
bool strobe__score_check_scalar(const struct strobe_score *function, int n, double value, const char *kind,
                                struct score_error *error);

#endif
