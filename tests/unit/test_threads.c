/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_threads.c: threads change nothing, bit for bit: any number of the library's own, a caller's in whatever order they
 * take tasks, many calls at once, and a forked child. */
#define _POSIX_C_SOURCE 200809L /* fork, alarm */

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "core/float_mode.h"
#include "cpu/vector/backward_tasks.h"
#include "kernel_table.h"
#include "level_sizes.h"
#include "portable/posix.h"
#include "test.h"

static const struct shape shapes[] = {
    {"fp32, causal", .batch = 2, .seq_q = 110, .seq_k = 90, .heads_q = 4, .heads_kv = 2, .dim = 17,
     .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE},
    {"fp32, bias for all batch entries and heads, sinks", .batch = 2, .seq_q = 60, .seq_k = 70, .heads_q = 6, .heads_kv = 3,
     .dim = 16, .features = BIAS | PER_ROW | SINKS},
    {"bf16, bias for all heads", .batch = 2, .seq_q = 20, .seq_k = 70, .heads_q = 4, .heads_kv = 2, .dim = 16,
     .dtype = STROBE_BF16, .features = BIAS | PER_BATCH},
    {"fp16, packed, dropout", .batch = 3, .seq_q = 50, .seq_k = 60, .heads_q = 2, .heads_kv = 1, .dim = 8,
     .dtype = STROBE_FP16, .features = PACKED | DROPOUT},
    {"decoding, megabytes of keys", .batch = 1, .seq_q = 1, .seq_k = 4200, .heads_q = 2, .dim = 64},
    {"bf16, keys in ranges", .batch = 1, .seq_q = 70, .seq_k = 2100, .heads_q = 4, .heads_kv = 2, .dim = 24,
     .dtype = STROBE_BF16, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = BIAS | PER_HEAD | WITH_DLSE},
    {"fp32, keys in ranges", .batch = 1, .seq_q = 50, .seq_k = 2100, .heads_q = 2, .heads_kv = 1, .dim = 24},
    {"one task", .batch = 1, .seq_q = 1, .seq_k = 5, .heads_q = 1, .dim = 8, .features = SINKS},
};

/* ------------------------------------------------------------------------------------------------ a caller's threads -- */

enum { MOST_THREADS = 8, TASK_STACK = 128 * 1024 /* what strobe_parallel promises */ };

/* As many pthreads as `threads`, started for each call; tasks are taken in the order start, start + step, ... */
struct team {
    int32_t threads;
    int64_t step;
    int64_t calls, tasks; /* of the last call */
    atomic_int misused;   /* tasks that ran another number of times than once */
};

struct job {
    struct team *team;
    void (*task)(void *, int64_t, int32_t);
    void *context;
    int64_t tasks, step;
    _Atomic int64_t next;
    atomic_int *ran; /* [tasks] */
};

struct member {
    struct job *job;
    int32_t worker;
};

static void *work(void *argument) {
    const struct member *member = argument;
    struct job *job = member->job;
    for (int64_t n; (n = atomic_fetch_add(&job->next, 1)) < job->tasks;) {
        const int64_t index = (job->tasks - 1 - n) * job->step % job->tasks;
        job->task(job->context, index, member->worker);
        atomic_fetch_add(&job->ran[index], 1);
    }
    return NULL;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

static void run_team(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker), void *context) {
    struct team *team = self;
    static atomic_int ran[4096];
    struct job job = {team, task, context, tasks, team->step, 0, ran};
    if (tasks > (int64_t)COUNT(ran)) {
        team->misused = 1;
        return;
    }
    while (tasks > 0 && common_divisor(tasks, job.step) != 1) ++job.step; /* then every index comes once */
    for (int64_t n = 0; n < tasks; ++n) atomic_store(&ran[n], 0);
    pthread_t threads[MOST_THREADS];
    struct member members[MOST_THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* those need more, for themselves */
    if (pthread_attr_setstacksize(&attributes, TASK_STACK)) team->misused = 1;
#endif
    for (int32_t n = 0; n < team->threads; ++n) {
        members[n] = (struct member){&job, n};
        if (pthread_create(&threads[n], &attributes, work, &members[n])) team->misused = 1;
    }
    pthread_attr_destroy(&attributes);
    for (int32_t n = 0; n < team->threads; ++n) pthread_join(threads[n], NULL);
    for (int64_t n = 0; n < tasks; ++n)
        if (atomic_load(&ran[n]) != 1) team->misused = 1;
    ++team->calls, team->tasks = tasks;
}

/* ------------------------------------------------------------------------------------------------------------- tests -- */

/* The thread sanitizer, under which all takes tens of times as long, looks at what threads share. Its build has no OpenMP,
 * so that the library's own threads are one, and the yardsticks share as the kernels do. The address sanitizer sees the same
 * memory with any number of threads. */
#if defined(__SANITIZE_THREAD__)
enum { OPENMP_COUNTS = 0, TEAMS = 2, YARDSTICKS = 0, DEFAULT = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { OPENMP_COUNTS = 2, TEAMS = 1, YARDSTICKS = 0, DEFAULT = 1 };
#else
enum { OPENMP_COUNTS = 4, TEAMS = 3, YARDSTICKS = 1, DEFAULT = 1 };
#endif

static void run(struct fixture *f, strobe_operation operation, const char *kernel) {
    if (fixture_run(f, operation, kernel)) fail_msg("%s", strobe_last_error());
}

static void expect_same(const struct fixture *x, const struct fixture *y, strobe_operation operation, const char *kernel,
                        const char *how, int threads) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(x, t, operation) && !slot_equal(&x->slot[t], &y->slot[t]))
            fail_msg("%s: %s with %d %s threads is not that of one", kernel, tensor_names[t], threads, how);
}

/* One kernel with one thread in x, then with others in y. */
static void check_kernel(struct fixture *x, struct fixture *y, strobe_operation operation, const char *kernel) {
    static const int32_t counts[] = {1, 2, 3, 7};
    static const int64_t steps[] = {1, 3, 7};
    run(x, operation, kernel);
    for (int n = 0; n < OPENMP_COUNTS; ++n) {
        y->parallel = (strobe_parallel){.struct_size = sizeof y->parallel, .threads = counts[n]};
        run(y, operation, kernel);
        expect_same(x, y, operation, kernel, "OpenMP", counts[n]);
    }
    for (int n = 0; n < TEAMS; ++n) {
        struct team team = {.threads = counts[n + 1], .step = steps[n]};
        y->parallel = (strobe_parallel){
            .struct_size = sizeof y->parallel, .threads = team.threads, .run = run_team, .self = &team};
        run(y, operation, kernel);
        expect_same(x, y, operation, kernel, "the caller's", team.threads);
        if (team.misused) fail_msg("%s: a task did not run once", kernel);
        if (team.calls == 0 && y->a.batch * y->a.heads_q > 1) fail_msg("%s: the caller's threads were not called", kernel);
    }
    if (DEFAULT) {
        y->a.parallel = NULL;
        run(y, operation, kernel);
        expect_same(x, y, operation, kernel, "default", 0);
        y->a.parallel = &y->parallel;
    }
}

static void test_any_number_of_threads(void **state) {
    struct fixture x, y;
    fixture_make(&x, *state), fixture_make(&y, *state);
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        const char *names[MOST_KERNELS];
        const int kernels = kernels_for(&x, (strobe_operation)operation, names);
        assert_true(kernels > 0);
        for (int k = 0; k < kernels; ++k)
            if (YARDSTICKS || !is_yardstick(names[k])) check_kernel(&x, &y, (strobe_operation)operation, names[k]);
    }
    fixture_free(&x), fixture_free(&y);
}

/* A caller's threads are worth having: a problem of many heads and rows comes as many tasks. */
static void test_work_is_divided(void **state) {
    (void)state;
    static const struct shape shape = {.batch = 2, .seq_q = 200, .seq_k = 40, .heads_q = 4, .dim = 4};
    struct fixture f;
    fixture_make(&f, &shape);
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        struct team team = {.threads = 2, .step = 1};
        f.parallel = (strobe_parallel){.struct_size = sizeof f.parallel, .threads = 2, .run = run_team, .self = &team};
        run(&f, (strobe_operation)operation, NULL);
        assert_true(team.tasks >= 2 * 4);
    }
    fixture_free(&f);
}

/* ----------------------------------------------------------------------------------------------------- calls at once -- */

struct caller {
    struct fixture fixture;
    const struct shape *shape;
    int failures;
};

static void *call_often(void *argument) {
    struct caller *caller = argument;
    for (int n = 0; n < 5; ++n) {
        caller->failures += fixture_forward(&caller->fixture, NULL) != STROBE_OK;
        caller->failures += fixture_backward(&caller->fixture, NULL) != STROBE_OK;
    }
    return NULL;
}

static void test_calls_at_once(void **state) {
    (void)state;
    struct caller callers[2 * COUNT(shapes)];
    pthread_t threads[COUNT(callers)];
    for (size_t n = 0; n < COUNT(callers); ++n) {
        callers[n] = (struct caller){.shape = &shapes[n % COUNT(shapes)]};
        fixture_make(&callers[n].fixture, callers[n].shape);
        callers[n].fixture.parallel.threads = 1 + (int32_t)(n % 2);
        assert_int_equal(pthread_create(&threads[n], NULL, call_often, &callers[n]), 0);
    }
    for (size_t n = 0; n < COUNT(callers); ++n) pthread_join(threads[n], NULL);
    for (size_t n = 0; n < COUNT(callers); ++n) {
        struct fixture alone;
        fixture_make(&alone, callers[n].shape);
        run(&alone, STROBE_FORWARD, NULL);
        run(&alone, STROBE_BACKWARD, NULL);
        assert_int_equal(callers[n].failures, 0);
        expect_same(&alone, &callers[n].fixture, STROBE_FORWARD, "forward", "concurrent", (int)COUNT(callers));
        expect_same(&alone, &callers[n].fixture, STROBE_BACKWARD, "backward", "concurrent", (int)COUNT(callers));
        fixture_free(&alone), fixture_free(&callers[n].fixture);
    }
}

/* The calling thread rounds upwards and ends the process at an invalid operation; the workers do not. */
static void test_a_callers_float_mode(void **state) {
    (void)state;
    if (OPENMP_COUNTS == 0) skip(); /* no worker but the calling thread */
    for (size_t n = 0; n < COUNT(shapes); ++n) {
        struct fixture x, y;
        fixture_make(&x, &shapes[n]), fixture_make(&y, &shapes[n]);
        y.parallel.threads = 1 + (int32_t)(n % 2);
        for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
            const char *names[MOST_KERNELS];
            const int kernels = kernels_for(&x, (strobe_operation)operation, names);
            for (int k = 0; k < kernels; ++k) {
                run(&x, (strobe_operation)operation, names[k]);
                const float_mode mode = float_mode_get();
                assert_int_equal(fesetround(FE_UPWARD), 0);
#if defined(__x86_64__)
                float_mode_set(float_mode_get() & ~(float_mode)0x80);
#endif
                const strobe_status status = fixture_run(&y, (strobe_operation)operation, names[k]);
                const int rounding = fegetround();
                fesetround(FE_TONEAREST);
                float_mode_set(mode);
                assert_int_equal(rounding, FE_UPWARD);
                if (status) fail_msg("%s", strobe_last_error());
                expect_same(&x, &y, (strobe_operation)operation, names[k], "upwards rounding", y.parallel.threads);
            }
        }
        fixture_free(&x), fixture_free(&y);
    }
}

/* A child of a process that has used threads has none of them, and must not wait for them. */
static void test_after_a_fork(void **state) {
    (void)state;
#if defined(_WIN32) /* which has no fork() */
    skip();
#else
    struct fixture x, y;
    fixture_make(&x, &shapes[0]), fixture_make(&y, &shapes[0]);
    x.parallel.threads = y.parallel.threads = 3;
    run(&x, STROBE_FORWARD, NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30); /* ends a child that waits */
        const strobe_status status = fixture_forward(&y, NULL);
        _exit(status == STROBE_OK && slot_equal(&x.slot[OUT], &y.slot[OUT]) ? 0 : 1);
    }
    int code = -1;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    run(&y, STROBE_FORWARD, NULL); /* the parent still has them */
    expect_same(&x, &y, STROBE_FORWARD, "forward", "the parent's", 3);
    fixture_free(&x), fixture_free(&y);
#endif
}

#if !defined(_WIN32)
static void nothing(void *data) { (void)data; }
#endif

/* Nor must a child of a program that has used OpenMP itself, before any call. It runs first: no test has called then. */
static void test_after_a_fork_of_another_user_of_openmp(void **state) {
    (void)state;
#if defined(_WIN32)
    skip();
#else
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    *(void **)&parallel = dlsym(dlopen(NULL, RTLD_NOW), "GOMP_parallel");
    if (!parallel) skip(); /* another OpenMP, or none */
    struct fixture f;
    fixture_make(&f, &shapes[0]);
    f.parallel.threads = 3;
    parallel(nothing, NULL, 3, 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(fixture_forward(&f, NULL) == STROBE_OK ? 0 : 1);
    }
    int code = -1;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    fixture_free(&f);
#endif
}

int main(void) {
    /* Rows of several tasks that read row statistics, and one dsink to which all of them add. */
    struct shape many_rows = {"one sink of many rows", .batch = 1, .seq_k = 5, .heads_q = 1, .dim = 2, .features = SINKS};
    many_rows.seq_q = 2 * STATISTICS_TILES * most_tile_rows() + 1;
    struct CMUnitTest tests[COUNT(shapes) + 5], first[] = {cmocka_unit_test(test_after_a_fork_of_another_user_of_openmp)};
    tests[COUNT(shapes) + 3] = test_of_row(many_rows.name, test_any_number_of_threads, &many_rows);
    for (size_t n = 0; n < COUNT(shapes); ++n)
        tests[n] = test_of_row(shapes[n].name, test_any_number_of_threads, &shapes[n]);
    tests[COUNT(shapes)] = (struct CMUnitTest)cmocka_unit_test(test_work_is_divided);
    tests[COUNT(shapes) + 1] = (struct CMUnitTest)cmocka_unit_test(test_calls_at_once);
    tests[COUNT(shapes) + 2] = (struct CMUnitTest)cmocka_unit_test(test_after_a_fork);
    tests[COUNT(shapes) + 4] = (struct CMUnitTest)cmocka_unit_test(test_a_callers_float_mode);
    const int failed = cmocka_run_group_tests(first, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
