/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pool.c: the workers of the Python extension. A call is a job. Its thread works on it as worker 0; idle workers join the
 * first job in the list that has tasks left and a place free, so that calls from many threads at once share the workers, and
 * no call waits for one. A worker that runs out looks for the next job a little while before it sleeps: waking one costs
 * more than many a job. */
#define _GNU_SOURCE /* pthread_setname_np */

#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

struct job {
    struct job *next;
    task_function *task;
    void *context;
    int64_t tasks;
    atomic_llong taken; /* tasks handed out so far */
    int32_t places;     /* workers it may have, the caller among them */
    int32_t joined;     /* workers it has had */
    atomic_int active;  /* workers on it now, without the caller */
};

enum { SPIN_NANOSECONDS = 30000 };

/* The lock guards the list, the counts, and the fields `joined` of the jobs. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* there may be a job to join */
    pthread_cond_t done; /* a worker left a job */
    struct job *jobs;
    int32_t workers, sleeping;
    atomic_uint posted; /* jobs so far: what a spinning worker watches */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* In a forked child no worker is left, whatever the parent's were doing. */
static void forget_workers(void) {
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.done = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.jobs = NULL;
    pool.workers = pool.sleeping = 0;
}

static void prepare_for_fork(void) { pthread_atfork(NULL, NULL, forget_workers); }

static void work_on(struct job *job, int32_t worker) {
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&job->taken, 1, memory_order_relaxed);
        if (index >= job->tasks) return;
        job->task(job->context, index, worker);
    }
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether a job came up while spinning. */
static bool spin_for_work(unsigned seen) {
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int n = 0; n < 64; ++n) {
            if (atomic_load_explicit(&pool.posted, memory_order_relaxed) != seen) return true;
            relax();
        }
    } while (nanoseconds() < end);
    return false;
}

static struct job *job_to_join(void) {
    for (struct job *job = pool.jobs; job; job = job->next)
        if (job->joined < job->places && atomic_load_explicit(&job->taken, memory_order_relaxed) < job->tasks) return job;
    return NULL;
}

static void *worker_main(void *nothing) {
    bool spun = false;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        struct job *job = job_to_join();
        if (job) {
            const int32_t worker = job->joined++;
            atomic_fetch_add_explicit(&job->active, 1, memory_order_relaxed);
            pthread_mutex_unlock(&pool.lock);
            work_on(job, worker);
            pthread_mutex_lock(&pool.lock);
            if (atomic_fetch_sub_explicit(&job->active, 1, memory_order_release) == 1) pthread_cond_broadcast(&pool.done);
            spun = false;
        } else if (!spun) {
            const unsigned seen = atomic_load_explicit(&pool.posted, memory_order_relaxed);
            pthread_mutex_unlock(&pool.lock);
            spun = !spin_for_work(seen);
            pthread_mutex_lock(&pool.lock);
        } else {
            ++pool.sleeping;
            pthread_cond_wait(&pool.work, &pool.lock);
            --pool.sleeping;
            spun = false;
        }
    }
    return nothing;
}

/* Starts workers up to the number; with fewer, where no more are to be had, everything works too. Signals are for Python's
 * threads. */
static void start_workers(int32_t wanted) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, before;
    if (pool.workers >= wanted) return;
    pthread_once(&once, prepare_for_fork);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; pool.workers < wanted && pthread_create(&thread, NULL, worker_main, NULL) == 0; ++pool.workers) {
        pthread_setname_np(thread, "strobe");
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void leave_list(struct job *job) {
    struct job **at = &pool.jobs;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
}

void pool_run(void *self, int64_t tasks, task_function *task, void *context) {
    const strobe_parallel *parallel = self;
    struct job job = {.task = task, .context = context, .tasks = tasks, .places = parallel->threads, .joined = 1};
    if (job.places > tasks) job.places = (int32_t)tasks;
    if (job.places > 1) {
        pthread_mutex_lock(&pool.lock);
        start_workers(job.places - 1);
        struct job **last = &pool.jobs;
        while (*last) last = &(*last)->next;
        *last = &job;
        atomic_fetch_add_explicit(&pool.posted, 1, memory_order_relaxed);
        for (int32_t n = 0; n < job.places - 1 && n < pool.sleeping; ++n) pthread_cond_signal(&pool.work);
        pthread_mutex_unlock(&pool.lock);
    }
    work_on(&job, 0);
    if (job.places <= 1) return;
    pthread_mutex_lock(&pool.lock);
    leave_list(&job); /* none joins from here on */
    pthread_mutex_unlock(&pool.lock);
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    while (atomic_load_explicit(&job.active, memory_order_acquire) > 0 && nanoseconds() < end) relax();
    pthread_mutex_lock(
        &pool.lock); /* a worker that has just counted itself out holds the lock, and may still touch the job */
    while (atomic_load_explicit(&job.active, memory_order_acquire) > 0) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
