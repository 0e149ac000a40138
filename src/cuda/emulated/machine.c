/* SPDX-License-Identifier: BSD-3-Clause
 *
 * machine.c: a worker, a thread of the operating system, for each CTA that runs; see machine.h.
 *
 *   STROBE_EMULATED_SEED   of the order in which threads and copies go on, default 1
 *   STROBE_EMULATED_CTAS   clusters of CTAs that run at a time, default 2 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda/emulated/worker.h"

enum { MOST_WORKERS = 32, MOST_CLUSTER = 8, PATIENCE_SECONDS = 60 };

long emulated_setting(const char *name, long by_default) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : by_default;
}

static unsigned count_of(struct emulated_index size) { return size.x * size.y * size.z; }

/* ---- a CTA */

static void describe(void) {
    fprintf(stderr, "emulated GPU: %s, CTA %u: no thread can go on\n", self->kernel->name, self->cta);
    for (unsigned t = 0; t < self->count;) {
        const struct coroutine *c = &self->threads[t];
        unsigned end = t + 1;
        while (end < self->count && self->threads[end].what == c->what && self->threads[end].ended == c->ended) ++end;
        fprintf(stderr, "  threads %u to %u %s%s\n", t, end - 1, c->ended ? "have ended" : "wait for ",
                c->ended ? "" : c->what);
        t = end;
    }
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool can_go_on(const struct coroutine *c) { return !c->ended && !c->parked && (!c->ready || c->ready(c->of)); }

static void run_warp(unsigned warp) {
    const unsigned first = warp * EMULATED_LANES;
    for (bool again = true; again;) {
        again = false;
        for (unsigned t = first; t < first + EMULATED_LANES && t < self->count; ++t)
            if (can_go_on(&self->threads[t])) {
                again = again || !self->threads[t].ready;
                emulated_resume(t);
            }
    }
}

static void run_threads(void) {
    struct worker *w = self;
    const unsigned warps = (w->count + EMULATED_LANES - 1) / EMULATED_LANES;
    double waiting_since = 0;
    while (w->alive) {
        w->progress = false;
        const unsigned first = emulated_random() % warps;
        for (unsigned n = 0; n < warps; ++n) run_warp((first + n) % warps);
        if (!w->progress || emulated_random() % 4 == 0) emulated_run_engine();
        if (w->progress) {
            waiting_since = 0;
            continue;
        }
        /* Only other CTAs can help. */
        if (waiting_since == 0) waiting_since = seconds_now();
        if (seconds_now() - waiting_since > PATIENCE_SECONDS) describe(), abort();
        sched_yield();
    }
}

static void run_cta(unsigned index) {
    struct worker *w = self;
    w->cta = index;
    emulated_cta = emulated_index_of(index, emulated_ctas);
    for (unsigned t = 0; t < w->count; ++t) {
        struct coroutine *c = &w->threads[t];
        c->ended = c->parked = false, c->ready = NULL, c->what = "its start";
        c->group[EMULATED_LANE] = c->group[EMULATED_BULK] = 0;
    }
    memset(w->convergences, 0, sizeof w->convergences);
    memset(w->barriers, 0, sizeof w->barriers);
    memset(w->ended, 0, sizeof w->ended);
    memset(memory, 0xff, sizeof memory); /* NaN as any floating-point type */
    w->alive = w->count;
    if (w->cluster_size > 1) pthread_barrier_wait(&w->cluster->begin);
    run_threads();
    while (w->first) {
        if (w->first->kind != EMULATED_LANE) emulated_fault("the CTA has ended, but not its copies");
        struct operation *left = w->first;
        w->first = left->next;
        free(left);
    }
    w->last = &w->first;
    for (size_t n = w->shared_bytes; n < EMULATED_SHARED_BYTES; ++n)
        if (memory[n] != 0xff)
            emulated_fault("byte %zu of shared memory was written, of which %zu were asked for", n, w->shared_bytes);
    if (w->cluster_size > 1) pthread_barrier_wait(&w->cluster->begin);
}

/* ---- workers */

static struct {
    pthread_mutex_t launching, lock;
    pthread_cond_t work, done;
    struct worker *workers[MOST_WORKERS];
    struct cluster clusters[MOST_WORKERS];
    unsigned count, busy, used, groups;
    struct emulated_index ctas, threads;
    uint64_t number;
    pid_t process;
    const struct emulated_kernel *kernel;
    void *const *arguments;
    size_t shared_bytes;
} pool = {.launching = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static void serve(unsigned number) {
    struct worker *w = self;
    const unsigned size = pool.kernel->cluster, group = number / size;
    w->kernel = pool.kernel, w->arguments = pool.arguments;
    w->count = count_of(pool.threads), w->shared_bytes = pool.shared_bytes;
    w->cluster_size = size, w->cluster = &pool.clusters[group], w->peers = &pool.workers[group * size];
    emulated_rank = number % size;
    emulated_threads = pool.threads, emulated_ctas = pool.ctas;
    for (unsigned cluster = group; cluster * size < count_of(pool.ctas); cluster += pool.groups)
        run_cta(cluster * size + emulated_rank);
}

static void *work(void *of) {
    const unsigned number = (unsigned)(uintptr_t)of;
    uint64_t seen = 0;
    self = calloc(1, sizeof *self);
    if (!self) abort();
    self->last = &self->first;
    self->shared = memory;
    self->random = (uint64_t)emulated_setting("STROBE_EMULATED_SEED", 1) * 0x9e3779b97f4a7c15u + number;
    pthread_mutex_lock(&pool.lock);
    pool.workers[number] = self;
    ++pool.count;
    pthread_cond_broadcast(&pool.done);
    for (;;) {
        while (pool.number == seen || number >= pool.used) {
            if (number >= pool.used) seen = pool.number;
            pthread_cond_wait(&pool.work, &pool.lock);
        }
        seen = pool.number;
        pthread_mutex_unlock(&pool.lock);
        serve(number);
        pthread_mutex_lock(&pool.lock);
        if (--pool.busy == 0) pthread_cond_broadcast(&pool.done);
    }
    return NULL;
}

/* Workers of a process that has forked are not in its child. */
static void have_workers(unsigned wanted) {
    if (pool.process != getpid()) {
        pool.process = getpid(), pool.count = 0, pool.number = 0;
        pthread_mutex_init(&pool.lock, NULL);
        pthread_cond_init(&pool.work, NULL), pthread_cond_init(&pool.done, NULL);
    }
    pthread_mutex_lock(&pool.lock);
    while (pool.count < wanted) {
        pthread_t thread;
        const unsigned number = pool.count;
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)number)) emulated_fault("no thread can be started");
        pthread_detach(thread);
        while (pool.count == number) pthread_cond_wait(&pool.done, &pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
}

void emulated_run(const struct emulated_kernel *kernel, void *const *arguments, struct emulated_index ctas,
                  struct emulated_index threads, size_t shared_bytes) {
    const unsigned size = kernel->cluster, all = count_of(ctas) / size;
    if (count_of(threads) == 0 || count_of(threads) > MOST_THREADS || size > MOST_CLUSTER || count_of(ctas) % size ||
        shared_bytes > EMULATED_SHARED_BYTES)
        emulated_fault("%s cannot be launched with %u CTAs of %u threads", kernel->name, count_of(ctas), count_of(threads));
    pthread_mutex_lock(&pool.launching);
    unsigned groups = (unsigned)emulated_setting("STROBE_EMULATED_CTAS", 2);
    if (groups > MOST_WORKERS / size) groups = MOST_WORKERS / size;
    if (groups > all) groups = all;
    have_workers(groups * size);
    for (unsigned n = 0; n < groups; ++n) {
        pool.clusters[n].arrived = 0;
        pthread_barrier_init(&pool.clusters[n].begin, NULL, size);
    }
    pthread_mutex_lock(&pool.lock);
    pool.kernel = kernel, pool.arguments = arguments, pool.shared_bytes = shared_bytes;
    pool.ctas = ctas, pool.threads = threads, pool.groups = groups, pool.used = pool.busy = groups * size;
    ++pool.number;
    pthread_cond_broadcast(&pool.work);
    while (pool.busy) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    for (unsigned n = 0; n < groups; ++n) pthread_barrier_destroy(&pool.clusters[n].begin);
    pthread_mutex_unlock(&pool.launching);
}

/* ---- kernels */

static struct emulated_kernel *kernels;

void emulated_register(struct emulated_kernel *kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

const struct emulated_kernel *emulated_kernels(void) { return kernels; }

struct emulated_kernel *emulated_find(const void *function) {
    for (struct emulated_kernel *k = kernels; k; k = k->next)
        if (k->function == function) return k;
    return NULL;
}
