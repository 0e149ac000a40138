/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shrink.h: from a problem that fails to the smallest that still fails, by leaving out one thing after the other. */
#ifndef STROBE_CLI_SHRINK_H
#define STROBE_CLI_SHRINK_H

#include "check/isolated.h"

/* p fails with `how`; afterwards it is a smaller problem that does. The sentence is then the smaller one's. */
void shrink_problem(isolated *runner, problem *p, outcome how, char sentence[PROBLEM_MESSAGE]);

#endif
