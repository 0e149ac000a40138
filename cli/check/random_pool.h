/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random_pool.h: the processes that run random checks, and what they have found, in memory that they share. Each process has
 * its own context on a GPU; case number n is the same whichever process takes it. */
#ifndef STROBE_CLI_RANDOM_POOL_H
#define STROBE_CLI_RANDOM_POOL_H

#include "check/isolated.h"
#include "check/random_check.h"

enum { MOST_WORKERS = 256, MOST_FAILURES = 32, MOST_CASE_SECONDS = 300 };

/* What one process has seen of one kernel. */
typedef struct random_tally {
    int64_t passed, failed, helped, raised;
    double most_raised, worst_ratio;
    char worst[PROBLEM_TEXT + 32];
    double whole[TENSOR_COUNT]; /* relative error of a 16-bit output over standard attention's, at most */
} random_tally;

typedef struct random_failure {
    problem problem, before; /* before: what the same process ran before, whose workspace it found */
    bool has_before;
    uint64_t index;
    outcome how;
    char sentence[PROBLEM_MESSAGE];
} random_failure;

typedef struct random_worker {
    pid_t process;
    double started; /* when its case began; 0: between cases */
    uint64_t index;
    problem problem, before;
    bool has_before;
    random_tally tally[MOST_KERNELS];
} random_worker;

typedef struct random_pool {
    random_request request;
    kernel_list kernels;
    coverage coverage;
    double end;
    uint64_t next;     /* the number of the next case */
    uint32_t failures; /* found; the first MOST_FAILURES are kept */
    uint32_t refusals; /* cases that no problem was found for */
    random_failure failure[MOST_FAILURES];
    int workers;
    random_worker worker[MOST_WORKERS];
} random_pool;

/* A pool that has asked the library for its kernels; this process has not, and so no GPU driver in it was opened. */
random_pool *random_pool_create(const random_request *request);

/* Runs cases until the time is over, all cases are run, or too many have failed. */
void random_pool_run(random_pool *pool);

/* All processes' tallies of a kernel in one. */
random_tally random_pool_tally(const random_pool *pool, int kernel);

#endif
