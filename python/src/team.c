/* SPDX-License-Identifier: BSD-3-Clause
 *
 * team.c: calls of the main thread on the threads that PyTorch's operators run on. PyTorch's OpenMP keeps a team for each
 * thread that calls operators, whose members wait on their cores for the next one, some milliseconds, without giving the
 * cores up. The workers of pool.c would get half of such a core, and a call between two operators would take the time of one
 * thread. As the next parallel region of the same team it finds the members awake, and so does the operator after it.
 *
 * The runtime is the one that PyTorch's library is linked with, whichever of those in the process that is. Compilers call it
 * by GOMP_parallel, which those of GNU, Intel and LLVM all have. */
#define _GNU_SOURCE /* RTLD_NOLOAD, syscall() */

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "module.h"
#include "pool.h"

struct runtime {
    void (*parallel)(void (*member)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread)(void);  /* a member's number */
    int (*threads)(void); /* of PyTorch's next operator */
    int (*in_parallel)(void);
};

static struct runtime runtime; /* written once */
static atomic_bool shared;

/* A region ends when all members have come, also those that had nothing left to do. Where other programs keep the cores busy
 * that takes as long as they are let run, and the pool, whose calls wait for no worker that has not come, is better. */
enum { LONG_WAIT = 1000000, PAUSE = 1000000000 }; /* nanoseconds */
static int64_t resume_at;                         /* the main thread's own; until then its calls go to the pool */

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

struct region {
    task_function *task;
    void *context;
    int64_t tasks;
    atomic_llong taken; /* tasks handed out so far */
    int64_t done_at;    /* the caller's, when no task was left */
};

static void member(void *data) {
    struct region *region = data;
    const int32_t worker = runtime.thread();
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&region->taken, 1, memory_order_relaxed);
        if (index >= region->tasks) break;
        region->task(region->context, index, worker);
    }
    if (worker == 0) region->done_at = nanoseconds();
}

/* Other threads have teams of their own, which many callers at once would fill the cores with; they share the pool. A team
 * of another size would be made anew, and again for PyTorch's next operator. */
static bool team_is_there(int32_t threads) {
    return atomic_load_explicit(&shared, memory_order_acquire) && syscall(SYS_gettid) == getpid() &&
           !runtime.in_parallel() && runtime.threads() == threads && nanoseconds() >= resume_at;
}

void team_run(void *self, int64_t tasks, task_function *task, void *context) {
    const strobe_parallel *parallel = self;
    if (tasks < 2 || !team_is_there(parallel->threads)) {
        pool_run(self, tasks, task, context);
        return;
    }
    struct region region = {.task = task, .context = context, .tasks = tasks};
    const int64_t start = nanoseconds();
    runtime.parallel(member, &region, (unsigned)parallel->threads, 0);
    const int64_t end = nanoseconds(), wait = end - region.done_at;
    if (wait > LONG_WAIT && wait > (end - start) / 2) resume_at = end + PAUSE;
}

/* In a forked child no member is left, and the runtime would wait for them. */
static void forget_team(void) { atomic_store(&shared, false); }
static void prepare_for_fork(void) { pthread_atfork(NULL, NULL, forget_team); }

/* A function of the runtime that a library is linked with. Objects and functions are converted as POSIX has it. */
static bool find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static bool find_runtime(const char *path) {
    if (runtime.parallel) return true;
    struct runtime found;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library || !find(library, "GOMP_parallel", &found.parallel) ||
        !find(library, "omp_get_thread_num", &found.thread) || !find(library, "omp_get_max_threads", &found.threads) ||
        !find(library, "omp_in_parallel", &found.in_parallel))
        return false;
    runtime = found; /* the library stays open */
    return true;
}

FUNCTION(py_share_threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)module;
    const char *path = NULL;
    if (count != 1 || (args[0] != Py_None && !(path = PyUnicode_AsUTF8AndSize(args[0], NULL)))) return NULL;
    pthread_once(&once, prepare_for_fork);
    const bool found = path && find_runtime(path);
    atomic_store_explicit(&shared, found, memory_order_release);
    return PyBool_FromLong(found);
}
