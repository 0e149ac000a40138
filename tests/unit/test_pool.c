/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_pool.c: the workers of the Python extension (python/src/pool.c): every task of a job runs once, a worker's index is
 * one thread's at a time, and what tasks wrote is there when the call returns, with one caller and with many at once. Tasks
 * write plain memory, so that the thread sanitizer sees a task that ran twice or a list that is changed without its lock. */
#define _POSIX_C_SOURCE 200809L /* fork, alarm */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../python/src/pool.h"
#include "test.h"

enum { CALLERS = 8, JOBS = 1000, MOST_TASKS = 60, MOST_THREADS = 5, SECONDS = 600 };

struct job {
    int runs[MOST_TASKS];
    atomic_int busy[MOST_THREADS]; /* threads that are this worker now */
    atomic_int clashes;
    int32_t threads;
    int work;    /* of a task */
    bool yields; /* now and then, so that on few cores, too, workers meet at every place */
};

static void task(void *context, int64_t index, int32_t worker) {
    struct job *job = context;
    if (worker < 0 || worker >= job->threads || atomic_fetch_add(&job->busy[worker], 1) != 0)
        atomic_fetch_add(&job->clashes, 1);
    ++job->runs[index];
    for (volatile int n = 0; n < job->work; ++n) continue;
    if (job->yields && index % 4 == 0) sched_yield();
    if (worker >= 0 && worker < job->threads) atomic_fetch_sub(&job->busy[worker], 1);
}

/* Jobs of all sizes and numbers of threads; how many went wrong. The job's memory is used again at once. */
static int run_jobs(uint64_t seed) {
    struct random random = {.state = seed};
    struct job job;
    int wrong = 0;
    for (int n = 0; n < JOBS; ++n) {
        memset(&job, 0, sizeof job);
        const int64_t tasks = random_below(&random, MOST_TASKS + 1);
        strobe_parallel parallel = {.struct_size = sizeof parallel};
        parallel.threads = job.threads = 1 + (int32_t)random_below(&random, MOST_THREADS);
        job.work = (int)random_below(&random, 2000);
        job.yields = n % 5 == 0; /* beside other programs a core comes back late */
        pool_run(&parallel, tasks, task, &job);
        for (int64_t index = 0; index < MOST_TASKS; ++index) wrong += job.runs[index] != (index < tasks);
        wrong += atomic_load(&job.clashes) != 0;
    }
    return wrong;
}

static void *call_often(void *argument) {
    int *wrong = argument;
    *wrong = run_jobs((uint64_t)*wrong);
    return NULL;
}

static void test_one_caller(void **state) {
    (void)state;
    assert_int_equal(run_jobs(1), 0);
}

static void test_many_callers(void **state) {
    (void)state;
    pthread_t threads[CALLERS];
    int wrong[CALLERS]; /* a seed, and then how many jobs went wrong */
    for (int n = 0; n < CALLERS; ++n) wrong[n] = 10 + n;
    for (int n = 0; n < CALLERS; ++n) assert_int_equal(pthread_create(&threads[n], NULL, call_often, &wrong[n]), 0);
    for (int n = 0; n < CALLERS; ++n) pthread_join(threads[n], NULL);
    for (int n = 0; n < CALLERS; ++n) assert_int_equal(wrong[n], 0);
}

#if !defined(__SANITIZE_THREAD__) /* which does not follow threads that a child of threads starts */
/* A child has none of its parent's workers, and starts its own. */
static void test_after_a_fork(void **state) {
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        alarm(SECONDS);
        _exit(run_jobs(2) == 0 ? 0 : 1);
    }
    int code = -1;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_equal(run_jobs(3), 0); /* the parent still has them */
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_caller),
        cmocka_unit_test(test_many_callers),
#if !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_after_a_fork),
#endif
    };
    alarm(SECONDS); /* a pool that waits for ever has failed */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
