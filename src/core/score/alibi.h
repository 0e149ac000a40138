/* SPDX-License-Identifier: BSD-3-Clause
 *
 * alibi.h: a function of a score that is ALiBi with slopes of its own: `score - slope[h] * abs(i - j)`, `score - 0.5 * abs(i
 * - j)`, and under a causal mask `score + c * (j - i)`. A kernel that knows how scores grow along a row needs a
 * multiplication and addition for each, and one that is given any function several times as much. */
#ifndef STROBE_CORE_SCORE_ALIBI_H
#define STROBE_CORE_SCORE_ALIBI_H

#include "core/problem.h"

/* score - factor slopes[b stride_batch + h] |i - j + shift|, i and j from the bottom-right diagonal on, as ALiBi counts
 * them; slopes NULL: 1. */
struct score_alibi {
    const float *slopes;
    int64_t stride_batch, shift;
    double factor;
};

/* Whether the problem's function is that one, for this call's scalars, arrays, lengths and mask, and no array's gradient is
 * asked for. */
bool strobe__score_as_alibi(const struct problem *problem, struct score_alibi *alibi);

#endif
