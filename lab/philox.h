/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.h: dropout's decision: Philox4x32-10 at the position that strobe.h gives to an element of P (strobe_dropout), so
 * that the lab and the library drop the same elements. */
#ifndef STROBE_LAB_PHILOX_H
#define STROBE_LAB_PHILOX_H

#include "problem.h"

/* Whether the element of P of query i and key j is kept, in a problem of one head: batch 0, head 0, offset 0. */
bool lab_dropout_keeps(const lab_problem *problem, int64_t i, int64_t j);

#endif
