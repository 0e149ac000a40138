/* SPDX-License-Identifier: BSD-3-Clause
 *
 * text.h: a score function as C, written from its graph: for a compiler that makes a kernel of it. Nothing that the user
 * wrote stands in it, neither names nor numbers of a call: scalars, strides, extents and pointers are read from struct
 * score_values, so that one text serves all calls. Three functions:
 *
 *     float score_value(a, at, score)            the score
 *     float score_slope(a, at, score)            d score / d score
 *     void score_gradients(a, at, score, ds)     adds to the gradients of arrays what one pair has, by SCORE_ADD
 *
 * Before them three numbers are defined: SCORE_SLOPE_IS_ONE, whether the slope is 1 everywhere, SCORE_NEEDS_INPUT, whether
 * the last two functions read the score, and SCORE_READS_ARRAYS. SCORE_HAS_RELATIVE says whether there are two more
 * functions, of a function of the score that meets positions in a value of i - j alone (relative.h):
 *
 *     float score_relative(a, at, further)           that value of the pair so many rows below
 *     float score_joined(a, at, score, relative)     the score, from that value; i and j are not read
 *
 * What they call, operations by their names, SCORE_LOAD, SCORE_LOAD_FURTHER and SCORE_ADD, and the two structures, the
 * includer has. */
#ifndef STROBE_CORE_SCORE_TEXT_H
#define STROBE_CORE_SCORE_TEXT_H

#include <stddef.h>

#include "core/score/score.h"

struct score_text {
    char *text; /* ends with 0; free() it */
    size_t length, room;
    bool full; /* there was no memory */
};

/* Appends. */
void strobe__score_print(struct score_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether d score / d score is 1 everywhere. */
bool strobe__score_slope_is_one(const struct strobe_score *function);

/* Appends the functions. dense: a bit for each array whose elements along the last axis are neighbours. Without a score
 * nothing is written. */
void strobe__score_write(struct score_text *t, const struct strobe_score *function, unsigned dense);

#endif
