/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 06_own_threads.c: the library on the caller's threads. Anything that can run tasks will do: a thread pool, a job system,
 * here two POSIX threads that draw tasks from a counter. The result does not depend on it, bit for bit. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <strobe/strobe.h>

enum { THREADS = 2, SEQ = 300, HEADS = 4, DIM = 32, N = SEQ * HEADS * DIM };

struct job {
    void (*task)(void *context, int64_t index, int32_t worker);
    void *context;
    int64_t tasks;
    _Atomic int64_t next;
};

struct worker {
    struct job *job;
    int32_t number;
};

static void *work(void *argument) {
    const struct worker *worker = argument;
    for (int64_t index; (index = atomic_fetch_add(&worker->job->next, 1)) < worker->job->tasks;)
        worker->job->task(worker->job->context, index, worker->number);
    return NULL;
}

static void run(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker), void *context) {
    struct job job = {.task = task, .context = context, .tasks = tasks};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int32_t t = 0; t < THREADS; ++t) {
        workers[t] = (struct worker){&job, t};
        pthread_create(&threads[t], NULL, work, &workers[t]);
    }
    for (int t = 0; t < THREADS; ++t) pthread_join(threads[t], NULL);
    *(int64_t *)self += tasks;
}

int main(void) {
    static float q[N], k[N], v[N], ours[N], theirs[N];
    for (int i = 0; i < N; ++i) q[i] = (float)(i % 13) - 6, k[i] = (float)(i % 7) - 3, v[i] = (float)(i % 5);
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = ours;

    int64_t tasks = 0;
    const strobe_parallel parallel = {.struct_size = sizeof parallel, .threads = THREADS, .run = run, .self = &tasks};
    a.parallel = &parallel;
    strobe_status status = strobe_forward(&a, NULL, 0, NULL);
    a.parallel = NULL, a.out.data = theirs;
    if (!status) status = strobe_forward(&a, NULL, 0, NULL);
    if (status) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    const int same = memcmp(ours, theirs, sizeof ours) == 0;
    printf("%lld tasks on %d threads of our own: %s\n", (long long)tasks, THREADS, same ? "the same bits" : "DIFFERENT");
    return !same;
}
