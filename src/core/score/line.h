/* SPDX-License-Identifier: BSD-3-Clause
 *
 * line.h: an integer of an expression as a sum of multiples of positions and lengths, where it is one. */
#ifndef STROBE_CORE_SCORE_LINE_H
#define STROBE_CORE_SCORE_LINE_H

#include "core/score/score.h"

/* Beyond it a bound hides nothing, whatever the positions, which have 32 bits. */
#define SCORE_FARTHEST ((int64_t)1 << 33)

/* row i + key j + seq_q' seq_q + seq_k' seq_k + one. */
struct score_line {
    int64_t row, key, seq_q, seq_k, one;
};

/* x += y * factor; false when a number leaves 64 bits. */
bool strobe__score_add(int64_t *x, int64_t y, int64_t factor);

/* sum += factor * node; false where the node is no such sum, or depends on a batch entry or head. */
bool strobe__score_add_line(struct score_line *sum, const struct score_call *call, uint16_t node, int64_t factor);

#endif
