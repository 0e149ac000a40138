/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.h: which weights dropout keeps: Philox4x32-10 at the place that strobe.h gives to a weight (strobe_dropout), so
 * that the lab and the library drop the same ones. */
#ifndef STROBE_LAB_PHILOX_H
#define STROBE_LAB_PHILOX_H

#include "problem.h"

/* Whether the weight of query i and key j is kept, for one head of its own: batch 0, head 0, offset 0. */
bool lab_dropout_keeps(const lab_problem *problem, int64_t i, int64_t j);

#endif
