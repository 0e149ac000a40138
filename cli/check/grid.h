/* SPDX-License-Identifier: BSD-3-Clause
 *
 * grid.h: the problems that `strobe check` walks when it is given none, in three tiers, each containing the ones before. */
#ifndef STROBE_CLI_GRID_H
#define STROBE_CLI_GRID_H

#include "problem/problem_text.h"

typedef enum grid_tier {
    GRID_QUICK, /* every feature, dtype, layout and edge on small shapes: seconds */
    GRID_FULL,  /* the peers' shapes and head dims as well: minutes */
    GRID_LONG   /* the largest shapes, and features crossed with shapes: as long as it takes */
} grid_tier;

/* Appends the problems of the tiers up to this one, on a GPU those too that judge what only its kernels are judged by. The
 * grid is part of the program, so nothing can be wrong with its text; a mistake in it ends the program with the sentence. */
void grid_add(problem_list *list, grid_tier tier, bool on_gpu);

#endif
