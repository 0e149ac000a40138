/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random_check.c: `strobe check --random`: runs the pool, says what failed and what was covered, makes failures smaller. */
#include "check/random_check.h"

#include "check/random_pool.h"
#include "check/shrink.h"
#include "commands.h"
#include "io/progress.h"
#include "io/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_SHRUNK = 4, SHRINK_LIMIT_SECONDS = 30 };

static const table_column columns[] = {{.key = "kernel"},
                                       {.key = "cases"},
                                       {.key = "failed"},
                                       {.key = "refused"},
                                       {.key = "handed_over", .title = "handed over"},
                                       {.key = "features"},
                                       {.key = "features_possible", .title = "of"},
                                       {.key = "raised"},
                                       {.key = "most_raised", .title = "at most", .decimals = 2},
                                       {.key = "worst_over_allowed", .title = "worst/allowed", .decimals = 2},
                                       {.key = "accuracy", .title = "16-bit error/standard's"},
                                       {.key = "worst_case", .title = "worst case"}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* "out 0.62, dq 0.81" */
static void print_accuracy(const random_tally *t, char *text, size_t capacity) {
    size_t length = 0;
    text[0] = 0;
    for (int id = 0; id < TENSOR_COUNT && length < capacity; ++id)
        if (t->whole[id] > 0 && id != T_LSE && id != T_DSINKS)
            length += (size_t)snprintf(text + length, capacity - length, "%s%s %.2f", length ? ", " : "",
                                       tensor_name((tensor_id)id), t->whole[id]);
}

/* As it was drawn, at once: making it smaller may take minutes. */
static void print_failure(const random_failure *f) {
    char text[PROBLEM_TEXT];
    problem_print(&f->problem, text);
    fprintf(stderr, "FAILED: strobe check \"%s\"\n        %s\n        case %llu\n", text, f->sentence,
            (unsigned long long)f->index);
}

/* Alone it may pass: then it stands with what ran before it in the same process. */
static void make_smaller(isolated *runner, random_failure *f) {
    char text[PROBLEM_TEXT], before[PROBLEM_TEXT], sentence[PROBLEM_MESSAGE];
    const problem drawn = f->problem, *alone = &drawn;
    const unsigned long long index = f->index;
    if (isolated_check(runner, &alone, 1, SHRINK_LIMIT_SECONDS, sentence) != f->how) {
        problem_print(&drawn, text);
        problem_print(&f->before, before);
        fprintf(stderr, "case %llu passed when it ran alone; as it ran: strobe check %s%s%s\"%s\"\n", index,
                f->has_before ? "\"" : "", f->has_before ? before : "", f->has_before ? "\" " : "", text);
        return;
    }
    terminal_progress("case %llu failed: making it smaller", index);
    shrink_problem(runner, &f->problem, f->how, f->sentence);
    terminal_progress_end();
    problem_print(&f->problem, text);
    fprintf(stderr, "case %llu made smaller: strobe check \"%s\"\n        %s\n", index, text, f->sentence);
}

static bool is_like(const random_failure *a, const random_failure *b) {
    return a->how == b->how && strcmp(a->problem.kernel, b->problem.kernel) == 0 &&
           strncmp(a->sentence, b->sentence, 5) == 0;
}

static uint32_t failures_kept(const random_pool *pool) {
    return pool->failures < MOST_FAILURES ? pool->failures : MOST_FAILURES;
}

/* Makes the first failures smaller, one of each kind. */
static void make_failures_smaller(random_pool *pool) {
    isolated runner = {0};
    bool like_another[MOST_FAILURES] = {false};
    const uint32_t kept = failures_kept(pool);
    int shrunk = 0;
    for (uint32_t n = 0; n < kept; ++n)
        for (uint32_t m = 0; m < n; ++m) like_another[n] |= is_like(&pool->failure[m], &pool->failure[n]);
    for (uint32_t n = 0; n < kept && shrunk < MOST_SHRUNK; ++n)
        if (!like_another[n]) make_smaller(&runner, &pool->failure[n]), ++shrunk;
    isolated_end(&runner);
}

static bool print_kernels(const random_pool *pool, int64_t *cases) {
    table *t = table_create(columns, COLUMNS);
    for (int k = 0; k < pool->kernels.count; ++k) {
        const random_tally r = random_pool_tally(pool, k);
        const uint32_t refused = pool->coverage.refusals[k];
        int of = 0;
        char accuracy[128];
        const int ran = coverage_features(&pool->coverage, &pool->kernels, k, &of);
        print_accuracy(&r, accuracy, sizeof accuracy);
        *cases += r.passed + r.failed;
        if (!(r.passed + r.failed + r.helped + refused)) continue;
        table_add_row(t,
                      (table_cell[]){cell_text(pool->kernels.items[k].name), cell_integer(r.passed + r.failed),
                                     cell_integer(r.failed), cell_integer(refused), cell_integer(r.helped),
                                     cell_integer(ran), cell_integer(of), cell_integer(r.raised), cell_real(r.most_raised),
                                     cell_real(r.worst_ratio), cell_text(accuracy), cell_text(r.worst)});
    }
    const bool ok = table_print(t, pool->request.format, stdout);
    table_destroy(t);
    return ok;
}

static bool any_kernel_runs(const random_pool *pool) {
    const char *only = pool->request.draw.only_kernel;
    bool any = false;
    for (int k = 0; k < pool->kernels.count; ++k)
        any = any || (pool->kernels.items[k].runs && (!only || !strcmp(only, pool->kernels.items[k].name)));
    return any;
}

/* OpenMP's threads spin for a while when they have nothing to do, which takes the cores of the processes beside; how they
 * wait is read when its library is loaded, so the program starts again. */
static void wait_passively(char **arguments) {
    char *again[16] = {"strobe"};
    if (getenv("OMP_WAIT_POLICY")) return;
    for (int n = 0; arguments[n]; ++n) {
        if (n + 2 == (int)(sizeof again / sizeof again[0])) return;
        again[n + 1] = arguments[n];
    }
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", again); /* where it cannot, the checks are slower */
}

int random_check(const random_request *request) {
    wait_passively(request->arguments);
    random_pool *pool = random_pool_create(request);
    if (!any_kernel_runs(pool)) {
        fputs("strobe check: no kernel of this machine takes part\n", stderr);
        return EXIT_SKIPPED;
    }
    const bool text = request->format == TABLE_TEXT;
    if (text) printf("seed %llu, %d processes\n\n", (unsigned long long)request->draw.seed, pool->workers);
    progress p = progress_begin(1, 0);
    random_pool_run(pool);
    for (uint32_t n = 0; n < failures_kept(pool); ++n) print_failure(&pool->failure[n]);
    int64_t cases = 0;
    const bool printed = print_kernels(pool, &cases);
    if (text) {
        printf(
            "\n%lld cases run, %u failed; %u not run, because every kernel or the one that was drawn refused; repeat with "
            "--seed %llu\n",
            (long long)cases, pool->failures, pool->refusals, (unsigned long long)request->draw.seed);
        coverage_print(&pool->coverage, &pool->kernels);
    }
    fflush(stdout);
    if (cases == 0 && pool->failures == 0 && printed && !progress_stopped()) {
        fprintf(stderr, "strobe check: nothing was checked in %g seconds: all was refused, or they were too few\n",
                request->seconds);
        return EXIT_SKIPPED;
    }
    if (!progress_stopped()) make_failures_smaller(pool);
    p.done = !progress_stopped();
    return progress_code(&p, "runs", !printed ? EXIT_REFUSED : pool->failures ? EXIT_WRONG : EXIT_OK);
}
