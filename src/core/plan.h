/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.h: the choice of a kernel, made once, in one place, for every caller. */
#ifndef STROBE_CORE_PLAN_H
#define STROBE_CORE_PLAN_H

#include "core/kernel.h"

/* NULL, or why the kernel does not take the problem: another operation or device is not a reason worth a sentence, so the
 * caller walks candidates with strobe__is_candidate first. */
const char *strobe__refusal(const struct kernel *kernel, const struct problem *problem);
bool strobe__is_candidate(const struct kernel *kernel, const struct problem *problem);

/* The first kernel of the tables that takes the problem, or the one that tuning names. */
strobe_status strobe__plan(const struct problem *problem, const struct kernel **kernel);

/* The choice and each refusal as text, a line a kernel; returns the length of the whole text, whatever capacity is. */
size_t strobe__plan_text(const struct problem *problem, char *text, size_t capacity);

#endif
