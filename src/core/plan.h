/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.h: the choice of a kernel and of its variant, made once, in one place, for every caller. */
#ifndef STROBE_CORE_PLAN_H
#define STROBE_CORE_PLAN_H

#include "core/kernel.h"

/* How far a kernel came with a problem that it does not take, in the order in which it is asked, and why. */
struct reason {
    enum reason_stage { OF_MACHINE, OF_DTYPES, OF_FEATURES, OF_DIMS, OF_NUMBERS, OF_VARIANTS } stage;
    char sentence[192];
};

/* Whether a record's declarations and reject() take a problem of its operation and device, whatever the machine has. why,
 * unless NULL, gets the reason when they do not. */
bool strobe__declares(const struct kernel *kernel, const struct problem *problem, struct reason *why);

/* Whether tuning names a kernel of the reference, which computes a problem as it was stated. */
bool strobe__names_reference(const struct problem *problem);

/* The first kernel of the tables that takes the problem, or the one that tuning names, and its variants. */
strobe_status strobe__plan(const struct problem *problem, struct plan *plan);

/* The same without a word: false if there is none. */
bool strobe__plan_found(const struct problem *problem, struct plan *plan);

/* The choice and each refusal as text, a line a kernel; returns the length of the whole text, whatever capacity is. */
size_t strobe__plan_text(const struct problem *problem, char *text, size_t capacity);

#endif
