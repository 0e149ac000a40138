/* SPDX-License-Identifier: BSD-3-Clause
 *
 * parallel.c: parallel_for on the caller's callback or on OpenMP. A single task, or a single worker, runs on the calling
 * thread: waking threads costs tens of microseconds. */
#include "core/parallel.h"

#include "core/float_mode.h"

#if defined(_OPENMP)
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "portable/posix.h"

#if defined(_WIN32) /* which has no fork(); there this code must not be unloaded while OpenMP's threads wait in it */
static bool may_start_threads(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, stay_loaded);
    return true;
}
#else
/* A forked child has none of its parent's threads, and GNU's OpenMP would wait there for those that it remembers, of this
 * library or of the program: OpenMP does not tell which. So the children of a process that had threads run on the calling
 * one. */
static atomic_bool has_started, has_threads, left_behind;

static void before_fork(void) {
    enum { FOLDER_LINKS = 2 }; /* and one for each thread, of which one is the caller's */
    struct stat tasks;
    has_threads = stat("/proc/self/task", &tasks) == 0 ? tasks.st_nlink > FOLDER_LINKS + 1 : has_started;
}

static void leave_behind(void) {
    if (has_threads) left_behind = true;
}

__attribute__((constructor)) static void watch_forks(void) { (void)pthread_atfork(before_fork, NULL, leave_behind); }

static bool may_start_threads(void) {
    has_started = true;
    return !left_behind;
}
#endif
#endif

/* Threads of a call whose caller did not say how many: OMP_NUM_THREADS may be any number, and each has a workspace. */
enum { MOST_THREADS = 1024 };

int32_t strobe__workers(const strobe_parallel *parallel) {
    if (parallel && parallel->threads > 0) return parallel->threads;
#if defined(_OPENMP)
    const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    return threads < MOST_THREADS ? threads : MOST_THREADS;
#else
    return 1;
#endif
}

struct work {
    strobe__task *task;
    void *context;
};

/* A task in the float mode of programs: the calling thread and the workers may have others, and results would depend on who
 * takes which task. */
static void run_task(void *work, int64_t index, int32_t worker) {
    const struct work *const w = work;
    const float_mode mode = float_mode_enter();
    w->task(w->context, index, worker);
    float_mode_set(mode);
}

void strobe__parallel_for(const strobe_parallel *parallel, int64_t tasks, strobe__task *task, void *context) {
    struct work work = {task, context};
    if (parallel && parallel->run) {
        parallel->run(parallel->self, tasks, run_task, &work);
        return;
    }
    int32_t workers = strobe__workers(parallel);
    if (workers > tasks) workers = (int32_t)tasks;
#if defined(_OPENMP)
    if (workers > 1 && may_start_threads()) {
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
        for (int64_t index = 0; index < tasks; ++index) run_task(&work, index, omp_get_thread_num());
        return;
    }
#endif
    for (int64_t index = 0; index < tasks; ++index) run_task(&work, index, 0);
}
