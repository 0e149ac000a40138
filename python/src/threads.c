/* SPDX-License-Identifier: BSD-3-Clause
 *
 * threads.c: the workers behind strobe_parallel. The wheel carries the library without OpenMP: it then needs nothing but
 * libc, does not meet a second OpenMP runtime (PyTorch brings its own) whose waiting threads spin, and works after a fork,
 * where OpenMP's threads are gone and its runtime waits for them.
 *
 * A call is a job. Its thread works on it as worker 0; idle workers join the first job in the list that has tasks left and a
 * place free, so that calls from many threads at once share the workers, and no call waits for one. A worker that runs out
 * looks for the next job a little while before it sleeps: waking one costs more than many a job. */
#define _GNU_SOURCE /* pthread_setname_np */

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "arguments.h"

typedef void task_function(void *context, int64_t index, int32_t worker);

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

enum { MOST_THREADS = 1024, SPIN_NANOSECONDS = 30000 };

/* The lock guards the list, the counts, and the fields `joined` of the jobs. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* there may be a job to join */
    pthread_cond_t done; /* a worker left a job */
    struct job *jobs;
    int32_t workers, sleeping;
    atomic_uint posted; /* jobs so far: what a spinning worker watches */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static atomic_int threads = 1; /* set_num_threads */

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

/* strobe_parallel.run */
static void run_job(void *self, int64_t tasks, task_function *task, void *context) {
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

/* Below so many products (about 10 microseconds on one core) waking a second thread costs more than it saves. Results do not
 * depend on the number of threads. */
static bool is_small(const strobe_attention *a) {
    const double products = (double)a->batch * (double)a->heads_q * (double)a->seq_q * (double)a->seq_k;
    return products * (double)(a->dim + a->dim_v) < 262144;
}

void use_threads(strobe_parallel *p, int64_t wanted) {
    *p = (strobe_parallel){.struct_size = sizeof *p, .self = p, .run = run_job};
    p->threads = wanted > MOST_THREADS ? MOST_THREADS
                 : wanted < 0          ? -1
                                       : (int32_t)wanted; /* 0 and -1: the library refuses */
    if (p->threads == 1) p->run = NULL;
}

bool choose_threads(struct call *c) {
    int64_t wanted = default_threads();
    if (c->args[ARG_THREADS] == Py_None && is_small(&c->a)) wanted = 1;
    if (!read_int(c->args[ARG_THREADS], "threads", &wanted)) return false;
    use_threads(&c->parallel, wanted);
    c->a.parallel = &c->parallel;
    return true;
}

int32_t default_threads(void) { return atomic_load_explicit(&threads, memory_order_relaxed); }

FUNCTION(py_set_num_threads) {
    (void)module;
    int64_t wanted = 0;
    if (count != 1 || !read_int(args[0], "threads", &wanted)) return NULL;
    if (wanted < 1 || wanted > MOST_THREADS) {
        PyErr_Format(PyExc_ValueError, "threads is %lld; 1 to %d is accepted", (long long)wanted, MOST_THREADS);
        return NULL;
    }
    atomic_store(&threads, (int)wanted);
    Py_RETURN_NONE;
}

FUNCTION(py_get_num_threads) {
    (void)module, (void)args, (void)count;
    return PyLong_FromLong(default_threads());
}
