/* SPDX-License-Identifier: BSD-3-Clause
 *
 * isolated.h: one problem checked in a process of its own, so that a crash or a hang is an outcome like others. The process
 * stays for the next problem, and is replaced when it died. */
#ifndef STROBE_CLI_ISOLATED_H
#define STROBE_CLI_ISOLATED_H

#include "check/verify.h"

#include <sys/types.h>

typedef enum outcome { OUTCOME_PASSED, OUTCOME_WRONG, OUTCOME_CRASHED, OUTCOME_HUNG, OUTCOME_REFUSED } outcome;

typedef struct isolated {
    verification (*verify)(const problem *p); /* NULL: verify_problem */
    struct isolated_case *shared;             /* NULL: no process yet */
    pid_t process;
    int to, from;
} isolated;

/* Checks the problems, one after the other, and says how the last one ended; sentence says what was wrong. */
outcome isolated_check(isolated *i, const problem *const *problems, int count, int limit_seconds,
                       char sentence[PROBLEM_MESSAGE]);
void isolated_end(isolated *i);

/* Memory of zeros that this process shares with those that it forks. Ends the program if there is none. */
void *shared_memory(size_t bytes);

/* Forks; the child dies with its parent and is to end by _exit. 0 in the child. */
pid_t fork_worker(void);

/* What ended a process, as a sentence: "crashed: Segmentation fault". */
void describe_end(int status, char sentence[PROBLEM_MESSAGE]);

#endif
