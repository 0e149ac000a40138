/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random_pool.c: processes that take one case after the other; see random_pool.h. A process that crashes leaves its case in
 * shared memory, is reported with it and replaced; so is one that does not end. */
#include "check/random_pool.h"

#include "io/progress.h"
#include "io/terminal.h"
#include "problem/cuda_memory.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* LOST_GPU: how a process ends whose case, which it has reported, took the GPU from it. */
enum { LOST_GPU = 64 };
enum { ARENA_BYTES = 256 << 20, ENOUGH_ELEMENTS = 4096, ENOUGH_FAILURES = 16, PATIENCE_SECONDS = 10 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------------- in a worker -- */

static void add_failure(random_pool *pool, const random_worker *w, outcome how, const char *sentence) {
    const uint32_t n = __atomic_fetch_add(&pool->failures, 1, __ATOMIC_RELAXED);
    if (n >= MOST_FAILURES) return;
    random_failure *f = &pool->failure[n];
    f->problem = w->problem, f->before = w->before, f->has_before = w->has_before;
    f->index = w->index;
    f->how = how;
    snprintf(f->sentence, sizeof f->sentence, "%s", sentence);
}

/* The accuracy figure is a mean over many elements, of numbers that people have. */
static void note_accuracy(random_tally *t, const problem *p, const verification *v) {
    const bool usual = p->values <= VALUES_OUTLIERS && !p->nan && p->scale == 0 &&
                       (p->dtype == STROBE_FP16 || p->dtype == STROBE_BF16);
    const int64_t elements = p->batch * p->heads_kv * (p->seq_q < p->seq_k ? p->seq_q : p->seq_k) *
                             (p->dim < p->dim_v ? p->dim : p->dim_v);
    for (int id = 0; usual && elements >= ENOUGH_ELEMENTS && id < TENSOR_COUNT; ++id)
        t->whole[id] = fmax(t->whole[id], v->whole[id]);
}

static void note_verdict(random_pool *pool, random_worker *w, int kernel, const verification *v) {
    random_tally *t = &w->tally[kernel];
    if (v->verdict == VERDICT_REFUSED) {
        __atomic_fetch_add(&pool->refusals, 1, __ATOMIC_RELAXED);
        return;
    }
    if (v->verdict == VERDICT_FAILED) {
        ++t->failed;
        add_failure(pool, w, OUTCOME_WRONG, v->sentence);
        return;
    }
    if (v->raised > 0) ++t->raised, t->most_raised = fmax(t->most_raised, v->raised);
    if (v->helper[0]) {
        ++t->helped;
        return;
    }
    ++t->passed;
    coverage_count_case(&pool->coverage, kernel, &w->problem);
    note_accuracy(t, &w->problem, v);
    if (v->ratio <= t->worst_ratio) return;
    char text[PROBLEM_TEXT];
    problem_print(&w->problem, text);
    t->worst_ratio = v->ratio;
    snprintf(t->worst, sizeof t->worst, "%s of %s", tensor_name(v->worst), text);
}

static void run_case(random_pool *pool, random_worker *w) {
    char sentence[PROBLEM_MESSAGE] = "";
    problem p;
    const strobe_status status = draw_problem(&pool->request.draw, &pool->kernels, w->index, &p, &pool->coverage, sentence,
                                              sizeof sentence);
    w->problem = p;
    if (status == STROBE_UNSUPPORTED && sentence[0]) {
        __atomic_fetch_add(&pool->refusals, 1, __ATOMIC_RELAXED);
        return;
    }
    if (status) {
        add_failure(pool, w, OUTCOME_WRONG, sentence[0] ? sentence : "a refusal without a sentence");
        return;
    }
    w->started = now();
    const verification v = verify_problem(&p);
    w->started = 0;
    note_verdict(pool, w, kernel_list_index(&pool->kernels, p.kernel), &v);
    w->before = p;
    w->has_before = true;
}

static bool is_over(const random_pool *pool) {
    const int64_t most = pool->request.most_cases;
    return now() >= pool->end || __atomic_load_n(&pool->failures, __ATOMIC_RELAXED) >= ENOUGH_FAILURES ||
           (most && __atomic_load_n(&pool->next, __ATOMIC_RELAXED) >= (uint64_t)most);
}

static void work(random_pool *pool, random_worker *w) {
    if (pool->request.draw.device == STROBE_CUDA) cuda_memory_use_arena(ARENA_BYTES);
    while (!is_over(pool)) {
        w->index = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED);
        run_case(pool, w);
        if (cuda_memory_is_lost()) _exit(LOST_GPU);
    }
    _exit(0);
}

/* ------------------------------------------------------------------------------------------------------ in the parent -- */

static int cores(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return count < MOST_WORKERS ? count : MOST_WORKERS;
}

random_pool *random_pool_create(const random_request *request) {
    random_pool *pool = shared_memory(sizeof *pool);
    pool->request = *request;
    pool->workers = cores();
    const pid_t child = fork_worker();
    if (child == 0) {
        kernel_list_find(&pool->kernels, request->draw.device);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return pool;
}

static void start(random_pool *pool, random_worker *w) {
    w->started = 0;
    w->has_before = false;
    const pid_t process = fork_worker();
    if (process == 0) work(pool, w);
    w->process = process; /* shared: the child must not write it */
}

/* Looks after one process: it may have ended, crashed or hung. */
static void look_after(random_pool *pool, random_worker *w) {
    int status = 0;
    char sentence[PROBLEM_MESSAGE];
    outcome how = OUTCOME_CRASHED;
    double started; /* read once: the process may be between two cases a moment later */
    __atomic_load(&w->started, &started, __ATOMIC_RELAXED);
    const bool late = started > 0 && now() - started > MOST_CASE_SECONDS;
    if (late) kill(w->process, SIGKILL);
    if (waitpid(w->process, &status, late ? 0 : WNOHANG) != w->process) return;
    w->process = 0;
    if (!late && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (!late && WIFEXITED(status) && WEXITSTATUS(status) == LOST_GPU) {
        if (!is_over(pool)) start(pool, w);
        return;
    }
    describe_end(status, sentence);
    if (late) how = OUTCOME_HUNG, snprintf(sentence, sizeof sentence, "has not ended after %d seconds", MOST_CASE_SECONDS);
    const int kernel = kernel_list_index(&pool->kernels, w->problem.kernel);
    if (kernel >= 0) ++w->tally[kernel].failed;
    add_failure(pool, w, how, sentence);
    if (!is_over(pool)) start(pool, w);
}

/* Says which cases are still running some time after the end: a kernel that hangs is then known before it is stopped. */
static void name_cases_that_run(const random_pool *pool) {
    char text[PROBLEM_TEXT];
    for (int i = 0; i < pool->workers; ++i) {
        const random_worker *w = &pool->worker[i];
        if (!w->process || w->started == 0) continue;
        problem_print(&w->problem, text);
        fprintf(stderr, "waiting for case %llu, which has run for %.0f seconds: %s\n", (unsigned long long)w->index,
                now() - w->started, text);
    }
}

void random_pool_run(random_pool *pool) {
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    bool has_named = false;
    pool->end = now() + pool->request.seconds;
    for (int i = 0; i < pool->workers; ++i) start(pool, &pool->worker[i]);
    for (int busy = 1; busy;) {
        busy = 0;
        if (progress_stopped() && pool->end > now()) pool->end = now();
        for (int i = 0; i < pool->workers; ++i)
            if (pool->worker[i].process) look_after(pool, &pool->worker[i]), busy += pool->worker[i].process != 0;
        terminal_progress("%llu cases, %u failed, %.0f seconds left", (unsigned long long)pool->next, pool->failures,
                          fmax(pool->end - now(), 0));
        if (busy && !has_named && now() > pool->end + PATIENCE_SECONDS) {
            terminal_progress_end();
            name_cases_that_run(pool);
            has_named = true;
        }
        nanosleep(&pause, NULL);
    }
    terminal_progress_end();
}

random_tally random_pool_tally(const random_pool *pool, int kernel) {
    random_tally sum = {.passed = 0};
    for (int i = 0; i < pool->workers; ++i) {
        const random_tally *t = &pool->worker[i].tally[kernel];
        sum.passed += t->passed, sum.failed += t->failed, sum.helped += t->helped, sum.raised += t->raised;
        sum.most_raised = fmax(sum.most_raised, t->most_raised);
        for (int id = 0; id < TENSOR_COUNT; ++id) sum.whole[id] = fmax(sum.whole[id], t->whole[id]);
        if (t->worst_ratio <= sum.worst_ratio) continue;
        sum.worst_ratio = t->worst_ratio;
        memcpy(sum.worst, t->worst, sizeof sum.worst);
    }
    return sum;
}
