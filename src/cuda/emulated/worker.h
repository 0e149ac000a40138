/* SPDX-License-Identifier: BSD-3-Clause
 *
 * worker.h: what machine.c, coroutines.c and barriers.c share: a worker, which runs one CTA at a time. */
#ifndef STROBE_CUDA_EMULATED_WORKER_H
#define STROBE_CUDA_EMULATED_WORKER_H

#include <pthread.h>
#include <setjmp.h>

#include "cuda/emulated/machine.h"

enum {
    MOST_THREADS = 1024,
    MOST_WARPS = MOST_THREADS / EMULATED_LANES,
    CONVERGENCES = 4,
    BARRIERS = 16,
};

struct operation {
    enum emulated_kind kind;
    unsigned thread;
    int group;
    void (*run)(void *operands);
    struct operation *next;
    uint64_t operands[EMULATED_OPERANDS_BYTES / 8];
};

struct coroutine {
    jmp_buf where;
    unsigned char *stack;
    bool started, ended, parked; /* parked: until its lanes have converged */
    bool (*ready)(void *of);
    void *of;
    const char *what;
    int group[2]; /* LANE, BULK: the number of the open group */
};

struct convergence {
    uint32_t lanes, here;
    void (*operate)(void *arguments[EMULATED_LANES]);
    void *arguments[EMULATED_LANES];
};

struct barrier {
    int here, threads;
    unsigned generation;
    int or_of[2]; /* of even and of odd generations */
};

/* Of the clusters that one launch runs side by side. */
struct cluster {
    pthread_barrier_t begin; /* all workers of the cluster have reset their CTA */
    _Atomic unsigned arrived;
};

struct worker {
    jmp_buf home;
    struct coroutine threads[MOST_THREADS];
    struct convergence convergences[MOST_WARPS][CONVERGENCES];
    struct barrier barriers[BARRIERS];
    struct operation *first, **last;
    unsigned count, alive, current, cta, cluster_size;
    uint32_t ended[MOST_WARPS]; /* lanes */
    unsigned char *shared;
    size_t shared_bytes;
    struct cluster *cluster;
    struct worker *const *peers; /* of the cluster, by rank */
    const struct emulated_kernel *kernel;
    void *const *arguments;
    uint64_t random;
    bool progress;
};

extern __thread struct worker *emulated_worker __attribute__((visibility("hidden")));
#define self emulated_worker

/* Dynamic shared memory, which kernels declare as `extern __shared__ unsigned char memory[]`. */
extern __attribute__((visibility("default"))) __thread unsigned char memory[EMULATED_SHARED_BYTES];

/* The thread `number` of the CTA goes on until it waits. */
void emulated_resume(unsigned number);
/* Where number n stands in a grid or a CTA: x is the fastest. */
struct emulated_index emulated_index_of(unsigned n, struct emulated_index size);

/* Barrier 0, when a thread has ended. */
void emulated_thread_ended(void);
/* One copy of the engine, if there is any. */
bool emulated_run_engine(void);

/* The environment's number of that name. */
long emulated_setting(const char *name, long by_default);

#endif
