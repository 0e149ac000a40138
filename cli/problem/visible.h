/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.h: who sees whom, worked out once more from the words of the public header and without the library's code, to
 * place poison where nobody may look and to count the work that a mask leaves. */
#ifndef STROBE_CLI_VISIBLE_H
#define STROBE_CLI_VISIBLE_H

#include "problem/inputs.h"

/* Whether query row i of head h of batch entry b sees key j; both exist. */
bool visible(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);

/* The same if no bias were -inf. */
bool visible_but_for_bias(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);

/* Pairs of a row and a key inside the mask, summed over batch and query heads, for counting FLOP as publications do: a
 * causal mask is the area left of the diagonal, so a square is exactly half; a window is counted pair by pair; a block mask
 * counts with its share of blocks; a boolean mask is not subtracted, for a kernel has to look at it, and neither is what a
 * function of the user's hides, so that a share of the peak may pass 100 % there. */
double visible_pairs(const inputs *in);

#endif
