/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_functions.h: the score functions of problems: score= and visible= of one problem make one. A function is made once
 * and kept, so that a descriptor can be made of a problem at any time. */
#ifndef STROBE_CLI_SCORE_FUNCTIONS_H
#define STROBE_CLI_SCORE_FUNCTIONS_H

#include "problem/problem_text.h"

#include <strobe/strobe_score.h>

/* NULL where the problem has no expression, or a wrong one: strobe_last_error() says what is. Any thread may ask. */
const strobe_score *score_function_of(const problem *p);

/* The extents of its one array. */
static inline int64_t score_table_width(const problem *p) {
    const int64_t width = p->table_width ? p->table_width : p->seq_q + p->seq_k;
    return width > 0 ? width : 1;
}
static inline int64_t score_table_heads(const problem *p) { return p->table_heads ? p->table_heads : p->heads_q; }

static inline bool problem_has_table(const problem *p) { return p->score[0] || p->visible[0]; }

#endif
