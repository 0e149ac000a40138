/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_bench.c: `strobe bench` measures problems: first that the result is right, then how long it takes, beside what this
 * machine can do at best at that moment. A kernel whose result is wrong gets no speed. */
#include "bench/compare_runs.h"
#include "bench/cuda_bench.h"
#include "bench/report.h"
#include "bench/sample.h"
#include "bench/timing.h"
#include "check/trial.h"
#include "commands.h"
#include "io/json.h"
#include "io/number.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/terminal.h"
#include "problem/element.h"
#include "problem/visible.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strobe bench PROBLEM... [--seconds S] [-o table|json|csv|md|html]\n"
    "       strobe bench --compare OLD.json NEW.json [-o table|json|csv|md|html]\n"
    "\n"
    "Checks the kernel that each problem gets against a float64 reference, on the whole problem or, where that would\n"
    "take long, on windows of rows; then measures it. A wrong result is reported and gets no speed.\n"
    "  --seconds S  time to spend on measuring a row (default 1)\n"
    "  -o FORMAT    table (default), json, csv, md, or html: a page that stands alone, with a chart\n"
    "  --compare    what changed from one -o json to another. speed: old time over new. noise: half of both spreads.\n"
    "               faster, slower: time and share of the peak changed by more; machine: the time did, as the peak\n"
    "\n"
    "ms       median of the samples; one call, with the library's own workspace\n"
    "spread   distance of the quartiles over the median\n"
    "GFLOP/s  counted as in publications: forward 2 x pairs x (D + DV), backward 2.5 times that; pairs are those\n"
    "         inside the mask, half of all for a causal square. In json and csv: tflops\n"
    "GB/s     every tensor read or written once, over the time\n"
    "of peak  share of what this machine did in loops of our own just before and after, on as many threads: fp32\n"
    "         multiply-adds in registers; for 16-bit tensors in a kernel of level amx, avx512bf16 or neonbf16, bf16\n"
    "         products; for problems that must move more than they compute, bytes read from memory (bound: fma, bf16 or\n"
    "         memory)\n"
    "         On a GPU: matrix products (mma), for fp32 multiply-adds, or bytes read and written by a copy\n"
    "         Times on a GPU are the device's, with L2 emptied before each call; clocks and what holds them back are\n"
    "         printed below the table\n"
    "check    all: the whole result; rows: windows of rows and everything that depends on them\n"
    "\n"
    "Exit code: 0 ok, 1 a result is wrong, 2 usage or a problem that no kernel takes, 77 no such device here,\n"
    "130 stopped by Ctrl-C: the rows until then are printed.\n"
    "\n"
    "examples:\n"
    "  strobe bench fwd b=1 h=16 s=512..8k*2 d=64 fp32\n"
    "  strobe bench bwd h=16 s=2k d=64,128 bf16 causal -o json\n"
    "  strobe bench fwd h=16 s=4k d=128 kernel=cpu_forward_avx512,cpu_forward_avx2\n"
    "  strobe bench fwd h=16 s=512..8k*2 d=64,128 fp32 -o html > bench.html\n"
    "  strobe bench --compare before.json after.json\n"
    "  strobe bench fwd bwd b=4 h=16 s=1k..16k*2 d=128 bf16 causal device=cuda\n"
    "\n";

/* Pairs times dimensions up to which the reference, at some 1e8 a second, checks the whole. */
static const double whole_check_work = 2e7;

typedef struct bench {
    double seconds;
    report_format format;
    peak_meter *meter;
    int threads; /* of the meter */
    report report;
    peak around[2]; /* the last row: before, after */
    progress progress;
    int code;
} bench;

typedef struct subject {
    inputs in;
    outputs out;
    const char *kernel, *device;
    int threads;
} subject;

static void complain(bench *b, int code, const problem *p, const char *sentence) {
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    terminal_progress_end();
    fprintf(stderr, "strobe bench: %s: %s\n", text, sentence);
    cJSON *refused = cJSON_CreateObject();
    cJSON_AddStringToObject(refused, "problem", text);
    cJSON_AddStringToObject(refused, "reason", sentence);
    cJSON_AddItemToArray(b->report.refused, refused);
    /* A wrong result outweighs a refusal, and both a missing device. */
    if (b->code == EXIT_OK || b->code == EXIT_SKIPPED || code == EXIT_WRONG) b->code = code;
}

/* Sets kernel, device and threads. False, with a complaint, if there is no such device or no kernel. */
static bool select_kernel(bench *b, subject *s, const problem *p) {
    strobe_device_info device = {.struct_size = sizeof device};
    if (b->report.device >= 0 && b->report.device != p->device)
        return complain(b, EXIT_REFUSED, p,
                        "device is not that of the problems before it; one device at a time is accepted"),
               false;
    b->report.device = p->device;
    if (strobe_device_at((int32_t)p->device, 0, &device)) return complain(b, EXIT_SKIPPED, p, strobe_last_error()), false;
    s->device = p->device == STROBE_CPU ? "cpu" : "cuda";
    s->threads = p->threads ? (int)p->threads : device.threads;
    call c;
    call_describe(&c, p);
    if (strobe_select(&c.attention, call_gradients(&c), &s->kernel))
        return complain(b, EXIT_REFUSED, p, strobe_last_error()), false;
    return true;
}

static bool create(bench *b, subject *s, const problem *p) {
    char message[PROBLEM_MESSAGE];
    bool ok = inputs_create(&s->in, p, message, sizeof message) && outputs_create(&s->out, &s->in, message, sizeof message);
    if (ok && p->operation == STROBE_BACKWARD) ok = !trial_forward(&s->in, NULL, message, sizeof message);
    if (!ok) complain(b, EXIT_REFUSED, p, message);
    return ok;
}

/* The word for the column, NULL after a complaint. */
static const char *check(bench *b, subject *s) {
    const problem *p = &s->in.problem;
    char message[PROBLEM_MESSAGE];
    const bool whole = visible_pairs(&s->in) * (double)(p->dim + p->dim_v) <= whole_check_work;
    oracle o = {0};
    verification v = {.verdict = VERDICT_REFUSED};
    if (!whole)
        v = sample_verify(&s->in, &s->out, s->kernel);
    else if (oracle_create(&o, &s->in, message, sizeof message))
        v = verify_kernel(&s->in, &o, s->kernel);
    else
        snprintf(v.sentence, sizeof v.sentence, "%s", message);
    oracle_free(&o);
    if (v.verdict == VERDICT_PASSED) return whole ? "ok (all)" : "ok (rows)";
    snprintf(message, sizeof message, "%s: %.400s", s->kernel, v.sentence);
    complain(b, v.verdict == VERDICT_FAILED ? EXIT_WRONG : EXIT_REFUSED, p, message);
    return NULL;
}

static void work(void *context) {
    const subject *s = context;
    char message[PROBLEM_MESSAGE];
    trial_run(&s->in, &s->out, s->kernel, &trial_plain, message, sizeof message); /* it ran in the check */
}

/* Bytes of every tensor that the operation reads or writes. */
static double bytes_moved(const subject *s) {
    double bytes = 0;
    for (int id = 0; id < TENSOR_COUNT; ++id)
        for (int output = 0; output <= 1; ++output) {
            const buffer *t = output ? &s->out.tensor[id] : &s->in.tensor[id];
            if (!t->data) continue;
            const size_t row = (size_t)t->extent[3] * element_bytes(t->dtype);
            for (rows r = rows_of(&s->in, (tensor_id)id, t); rows_next(&r);) bytes += (double)row;
        }
    return bytes;
}

static double operations(const subject *s) {
    const problem *p = &s->in.problem;
    return (p->operation == STROBE_BACKWARD ? 2.5 : 1) * 2 * visible_pairs(&s->in) * (double)(p->dim + p->dim_v);
}

/* A meter for as many threads as the row has. False if there is none to be had. */
static bool ready_meter(bench *b, int threads) {
    if (b->meter && b->threads == threads) return true;
    peak_meter_destroy(b->meter);
    b->meter = peak_meter_create(threads);
    b->threads = threads;
    return b->meter != NULL;
}

/* A kernel's name ends with its level. What fp32 gains by products of bf16 is a share of what multiply-adds could do. */
static bool multiplies_bf16(const subject *s) {
    const char *level = strrchr(s->kernel, '_');
    return level && (!strcmp(level, "_amx") || !strcmp(level, "_avx512bf16") || !strcmp(level, "_neonbf16")) &&
           element_bytes(s->in.problem.dtype) == 2;
}

/* False, with a sentence, if it could not be measured. */
static bool measure_peak(bench *b, const subject *s, int when, char *message, size_t capacity) {
    peak now = {0};
    if (s->in.problem.device == STROBE_CUDA) {
        if (!cuda_bench_peak(s->in.problem.dtype, &now, &b->report.clocks, message, capacity)) return false;
        b->report.level = cuda_bench_level(s->in.problem.dtype);
    } else {
        snprintf(message, capacity, "no memory or threads to measure the peak with");
        if (!ready_meter(b, s->threads)) return false;
        now = peak_measure(b->meter);
        b->report.level = peak_fastest_loop().level;
    }
    b->around[when] = now;
    b->report.best.flops = fmax(b->report.best.flops, now.flops);
    b->report.best.bf16 = fmax(b->report.best.bf16, now.bf16);
    b->report.best.bytes = fmax(b->report.best.bytes, now.bytes);
    return true;
}

static bool measure_time(bench *b, subject *s, timing *t, char *message, size_t capacity) {
    if (s->in.problem.device == STROBE_CUDA)
        return cuda_bench_time(&s->in, &s->out, b->seconds, t, &b->report.clocks, message, capacity);
    *t = timing_measure(work, s, b->seconds);
    return true;
}

static void add_row(bench *b, const subject *s, const timing *t, const char *outcome) {
    const problem *p = &s->in.problem;
    const bool gpu = p->device == STROBE_CUDA;
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    const peak before = b->around[0], after = b->around[1];
    const bool bf16 = multiplies_bf16(s) && before.bf16 > 0;
    const double peak_flops = (bf16 ? before.bf16 + after.bf16 : before.flops + after.flops) / 2;
    const double flop = operations(s), bytes = bytes_moved(s), peak_bytes = (before.bytes + after.bytes) / 2;
    const bool computes = flop / peak_flops >= bytes / peak_bytes;
    const double share = (computes ? flop / peak_flops : bytes / peak_bytes) / t->median;
    table_add_row(b->report.rows, (table_cell[]){cell_text(text), cell_text(s->device), cell_text(s->kernel),
                                                 gpu ? cell_none() : cell_integer(s->threads), cell_real(1e3 * t->median),
                                                 cell_real(t->spread), cell_real(1e-12 * flop / t->median),
                                                 cell_real(1e-9 * bytes / t->median), cell_real(share),
                                                 cell_text(!computes                        ? "memory"
                                                           : bf16                           ? "bf16"
                                                           : gpu && p->dtype != STROBE_FP32 ? "mma"
                                                                                            : "fma"),
                                                 cell_text(outcome), cell_integer((int64_t)t->samples)});
}

static void measure(bench *b, subject *s, const char *outcome) {
    const problem *p = &s->in.problem;
    char message[PROBLEM_MESSAGE];
    timing t;
    if (p->operation == STROBE_BACKWARD)
        for (int64_t i = 0; i < p->batch; ++i) inputs_fill_gradient(&s->in, i, 0, p->heads_q, 0, s->in.sequences[i].rows);
    if (measure_peak(b, s, 0, message, sizeof message) && measure_time(b, s, &t, message, sizeof message) &&
        measure_peak(b, s, 1, message, sizeof message))
        add_row(b, s, &t, outcome);
    else
        complain(b, EXIT_REFUSED, p, message);
}

/* Seconds that a row takes, about: the check, or that of windows of rows, and the measurement between two of the peak. */
static double check_seconds(const problem *p) { return fmin(oracle_seconds(p), whole_check_work * 3e-8); }
static double measure_seconds(const bench *b) { return b->seconds + 0.2; }

static void bench_problem(bench *b, const problem *p) {
    subject s = {0};
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    progress_show(&b->progress, "check    %s", text);
    if (select_kernel(b, &s, p) && create(b, &s, p)) {
        const char *outcome = check(b, &s);
        progress_add(&b->progress, check_seconds(p), false);
        progress_show(&b->progress, "measure  %s", text);
        if (outcome && !progress_stopped()) measure(b, &s, outcome);
    }
    if (!progress_stopped()) progress_add(&b->progress, measure_seconds(b), true);
    outputs_free(&s.out);
    inputs_free(&s.in);
}

static int run(bench *b, const problem_list *list) {
    b->report = report_create();
    double guessed = 0;
    for (size_t i = 0; i < list->count; ++i) guessed += check_seconds(&list->items[i]) + measure_seconds(b);
    b->progress = progress_begin((int64_t)list->count, guessed);
    for (size_t i = 0; i < list->count && !progress_stopped(); ++i) bench_problem(b, &list->items[i]);
    terminal_progress_end();
    if (b->progress.done < b->progress.count)
        snprintf(b->report.stopped, sizeof b->report.stopped, "by Ctrl-C after %lld of %lld problems",
                 (long long)b->progress.done, (long long)b->progress.count);
    report_print(&b->report, b->format, stdout);
    peak_meter_destroy(b->meter);
    report_free(&b->report);
    return progress_code(&b->progress, "problems", b->code);
}

/* words: what stands behind --compare old.json. */
static int compare_two(const char *old_path, int count, char *const *words, report_format format) {
    char message[PROBLEM_MESSAGE];
    if (count != 1)
        snprintf(message, sizeof message, "--compare is given %d files; two, the old and the new, are accepted", count + 1);
    else if (compare_files(old_path, words[0], format, message, sizeof message))
        return EXIT_OK;
    fprintf(stderr, "strobe bench: %s\n", message);
    return EXIT_REFUSED;
}

int cmd_bench(int argc, char **argv) {
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"compare", required_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    bench b = {.seconds = 1, .format = REPORT_TEXT, .code = EXIT_OK};
    const char *old_path = NULL;
    for (int option; (option = next_option("bench", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), problem_print_help(stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        if (option == 'o' && !report_format_named(optarg, &b.format))
            return fprintf(stderr, "strobe bench: -o is %s; table, json, csv, md or html is accepted\n", optarg),
                   EXIT_REFUSED;
        if (option == 'c') old_path = optarg;
        if (option == 's' && !(number_real(optarg, &b.seconds) && b.seconds >= 0))
            return fprintf(stderr, "strobe bench: --seconds is %s; a number from 0 is accepted\n", optarg), EXIT_REFUSED;
    }
    if (old_path) return compare_two(old_path, argc - optind, argv + optind, b.format);
    char message[PROBLEM_MESSAGE] = "no problem is given; strobe bench --help shows how";
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (optind < argc && problem_list_read(&list, argc - optind, argv + optind, message, sizeof message) &&
        problem_list_is_of_one_process(&list, message, sizeof message))
        code = run(&b, &list);
    else
        fprintf(stderr, "strobe bench: %s\n", message);
    problem_list_free(&list);
    return code;
}
