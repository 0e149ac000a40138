/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rotary.h (core): a strobe_rotary after it has been read and checked, for the calls that turn rows. */
#ifndef STROBE_CORE_ROTARY_H
#define STROBE_CORE_ROTARY_H

#include "core/problem.h"
#include "math/quantise.h"
#include "strobe/strobe_quantise.h"

enum { MOST_ROTARY_PAIRS = DIM_LIMIT / 2 };

struct rotary_call {
    bool given;
    strobe_rotary r;
    uint64_t frequency[MOST_ROTARY_PAIRS]; /* where there are no tables */
};

/* Reads the caller's structure, which may be NULL; dim is the default of its own. */
strobe_status strobe__rotary_read(struct rotary_call *call, const strobe_rotary *rotary, int64_t dim);

/* dim: of the rows, at most that many columns are turned. Touches no table. */
strobe_status strobe__rotary_check(const struct rotary_call *call, int64_t dim);

/* That rows of a tensor, at positions [first, first + rows), are in the tables. */
strobe_status strobe__rotary_check_positions(const struct rotary_call *call, const char *tensor, int64_t first,
                                             int64_t rows);

/* What rows are turned by, for a call that has been checked and outlives `choices`, and the signs of a seed. */
void strobe__rotary_choices(struct quantise_choices *choices, struct rotary_call *call, uint64_t seed);

#endif
