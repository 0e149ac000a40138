/* SPDX-License-Identifier: BSD-3-Clause
 *
 * run_report.c: attention on one set, and a page about it; see run_report.h. The right answer is the float64 reference's on
 * the same inputs; where that would take minutes, windows of rows are compared instead. */
#include "run/run_report.h"

#include "bench/sample.h"
#include "bench/timing.h"
#include "check/compare.h"
#include "check/trial.h"
#include "commands.h"
#include "io/memory.h"
#include "io/table.h"
#include "io/terminal.h"
#include "problem/element.h"
#include "problem/visible.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pairs times dimensions, which the plain loops of reference and standard do at some 1e8 a second. */
static const double whole_work = 1e9;
static const double seconds_to_measure = 0.5;

typedef struct measured {
    const char *kernel;
    double seconds, error, relative; /* NaN where not measured */
} measured;

typedef struct run_call {
    const inputs *in;
    const outputs *out;
    const char *kernel;
} run_call;

static void work(void *context) {
    const run_call *r = context;
    char message[PROBLEM_MESSAGE];
    trial_run(r->in, r->out, r->kernel, &trial_plain, message, sizeof message); /* it ran before it is measured */
}

static double time_of(const inputs *in, const outputs *out, const char *kernel) {
    run_call r = {in, out, kernel};
    return timing_measure(work, &r, seconds_to_measure).median;
}

/* The library's explanation down to the kernel that it chose. */
static void print_choice(const call *c) {
    size_t needed = 0;
    strobe_explain(&c->attention, NULL, NULL, 0, &needed);
    char *text = memory_zeroed(needed + 1, 1);
    strobe_explain(&c->attention, NULL, text, needed, NULL);
    bool chosen = false;
    for (char *line = text, *end; !chosen && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = 0;
        chosen = strstr(line, ": chosen") != NULL;
        printf("  %s%s\n", line, chosen ? ", the first in the library's table that takes this problem" : "");
    }
    free(text);
}

static void print_shape(const char *name, const buffer *b) {
    printf("%s [%lld, %lld, %lld, %lld]", name, (long long)b->extent[0], (long long)b->extent[1], (long long)b->extent[2],
           (long long)b->extent[3]);
}

static void print_subject(const attention_set *set, const inputs *in) {
    char text[PROBLEM_TEXT];
    problem_print(&in->problem, text);
    const size_t length = strlen(set->prefix);
    printf("%.*s%s", (int)length, set->prefix, length ? "  " : "");
    print_shape("q", &in->tensor[T_Q]);
    print_shape("  k", &in->tensor[T_K]);
    print_shape("  v", &in->tensor[T_V]);
    printf("  %s\n  problem: %s\n", problem_dtype_name(set->q->dtype), text);
}

static void print_table(const measured *ours, const measured *standard) {
    static const table_column columns[] = {{.key = "kernel", .title = "  kernel"},
                                           {.key = "ms", .title = "time", .decimals = 3, .suffix = " ms"},
                                           {.key = "error", .title = "largest error", .significant = 2},
                                           {.key = "relative", .title = "relative, worst row", .significant = 2}};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < 2; ++i) {
        const measured *m = i ? standard : ours;
        char name[PROBLEM_KERNEL + 2];
        snprintf(name, sizeof name, "  %s", m->kernel);
        table_add_row(t, (table_cell[]){cell_text(name), isnan(m->seconds) ? cell_none() : cell_real(1e3 * m->seconds),
                                        isnan(m->error) ? cell_none() : cell_real(m->error),
                                        isnan(m->relative) ? cell_none() : cell_real(m->relative)});
    }
    table_print(t, TABLE_TEXT, stdout);
    table_destroy(t);
}

static void print_expected(const attention_set *set, const inputs *in, const outputs *out) {
    const array *a = attention_set_expected(set, &in->problem);
    if (!a) return;
    const buffer expected = attention_set_view(a);
    const difference d = compare(in, T_OUT, &out->tensor[T_OUT], &expected);
    printf("  largest difference from %sout in the file: %.2g; worst row, relative: %.2g\n", set->prefix, d.error,
           d.relative);
}

static void print_memory(const problem *p, size_t workspace) {
    const double scores = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k;
    printf(
        "  memory beside q, k, v and out: %.0f KiB; the matrix of scores, which standard attention stores, takes %.0f KiB\n",
        (double)workspace / 1024, scores * (double)element_bytes(p->dtype) / 1024);
}

/* Errors of both against the reference on everything. */
static bool measure_whole(inputs *in, const outputs *out, measured *ours, measured *standard, verification *v, char *message,
                          size_t capacity) {
    oracle o;
    outputs plain = {0};
    bool ok = oracle_create(&o, in, message, capacity) && outputs_create(&plain, in, message, capacity);
    if (ok) {
        *v = verify_kernel(in, &o, ours->kernel);
        const difference d = compare(in, T_OUT, &out->tensor[T_OUT], &o.reference.tensor[T_OUT]);
        ours->error = d.error;
        ours->relative = d.relative;
        standard->seconds = time_of(in, &plain, standard->kernel);
        const difference s = compare(in, T_OUT, &plain.tensor[T_OUT], &o.reference.tensor[T_OUT]);
        standard->error = s.error;
        standard->relative = s.relative;
    }
    outputs_free(&plain);
    oracle_free(&o);
    return ok;
}

static bool measure(inputs *in, outputs *out, measured *ours, measured *standard, verification *v, char *message,
                    size_t capacity) {
    const problem *p = &in->problem;
    if (visible_pairs(in) * (double)(p->dim + p->dim_v) <= whole_work && p->dtype != STROBE_FP64)
        return measure_whole(in, out, ours, standard, v, message, capacity);
    if (p->dtype == STROBE_FP64) return true; /* the reference itself */
    *v = sample_verify(in, out, ours->kernel);
    ours->error = v->error;
    ours->relative = v->relative;
    return true;
}

int run_report(const attention_set *set, inputs *in, outputs *out, char *message, size_t capacity) {
    call c;
    size_t workspace = 0;
    measured ours = {NULL, NAN, NAN, NAN}, standard = {trial_standard[STROBE_FORWARD], NAN, NAN, NAN};
    verification v = {.verdict = VERDICT_PASSED};
    call_prepare(&c, in, out);
    if (strobe_select(&c.attention, NULL, &ours.kernel) || strobe_workspace(&c.attention, NULL, &workspace)) {
        snprintf(message, capacity, "%s", strobe_last_error());
        return EXIT_REFUSED;
    }
    if (trial_run(in, out, ours.kernel, &trial_plain, message, capacity)) return EXIT_REFUSED;
    ours.seconds = time_of(in, out, ours.kernel);
    const bool ok = measure(in, out, &ours, &standard, &v, message, capacity);
    terminal_progress_end();
    if (!ok || v.verdict == VERDICT_REFUSED) return EXIT_REFUSED;
    print_subject(set, in);
    print_choice(&c);
    fputs("\n", stdout);
    print_table(&ours, &standard);
    fputs("  errors: largest differences from the same attention in float64\n", stdout);
    print_memory(&in->problem, workspace);
    print_expected(set, in, out);
    if (v.verdict == VERDICT_FAILED) printf("  WRONG: %s\n", v.sentence);
    fputs("\n", stdout);
    return v.verdict == VERDICT_FAILED ? EXIT_WRONG : EXIT_OK;
}
