/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_bench.c: `strobe bench` measures problems: first that the result is right, then how long it takes, beside what this
 * machine can do at best at that moment. A kernel whose result is wrong gets no speed. */
#include "bench/cuda_bench.h"
#include "bench/peak.h"
#include "bench/sample.h"
#include "bench/timing.h"
#include "check/trial.h"
#include "commands.h"
#include "io/json.h"
#include "io/number.h"
#include "io/options.h"
#include "io/table.h"
#include "io/terminal.h"
#include "problem/element.h"
#include "problem/visible.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strobe bench PROBLEM... [--seconds S] [-o table|json|csv|md]\n"
    "\n"
    "Checks the kernel that each problem gets against a float64 reference, on the whole problem or, where that would\n"
    "take long, on windows of rows; then measures it. A wrong result is reported and gets no speed.\n"
    "  --seconds S  time to spend on measuring a row (default 1)\n"
    "  -o FORMAT    table (default), json, csv or md\n"
    "\n"
    "ms       median of the samples; one call, with the library's own workspace\n"
    "spread   distance of the quartiles over the median\n"
    "GFLOP/s  counted as in publications: forward 2 x pairs x (D + DV), backward 2.5 times that; pairs are those\n"
    "         inside the mask, half of all for a causal square. In json and csv: tflops\n"
    "GB/s     every tensor read or written once, over the time\n"
    "of peak  share of what this machine did in loops of our own just before and after, on as many threads: fp32\n"
    "         multiply-adds in registers; for 16-bit tensors in a kernel on AMX, bf16 products of tiles; for problems\n"
    "         that must move more than they compute, bytes read from memory (bound says which: fma, tiles or memory)\n"
    "         On a GPU: matrix products (mma), for fp32 multiply-adds, or bytes read and written by a copy\n"
    "         Times on a GPU are the device's, with L2 emptied before each call; clocks and what holds them back are\n"
    "         printed below the table\n"
    "check    all: the whole result; rows: windows of rows and everything that depends on them\n"
    "\n"
    "Exit code: 0 ok, 1 a result is wrong, 2 usage or a problem that no kernel takes, 77 no such device here.\n"
    "\n"
    "examples:\n"
    "  strobe bench fwd b=1 h=16 s=512..8k*2 d=64 fp32\n"
    "  strobe bench bwd h=16 s=2k d=64,128 bf16 causal -o json\n"
    "  strobe bench fwd h=16 s=4k d=128 kernel=cpu_forward_avx512,cpu_forward_avx2\n"
    "  strobe bench fwd bwd b=4 h=16 s=1k..16k*2 d=128 bf16 causal device=cuda\n"
    "\n";

/* Pairs times dimensions up to which the reference, at some 1e8 a second, checks the whole. */
static const double whole_check_work = 2e7;

typedef struct bench {
    double seconds;
    table_format format;
    peak_meter *meter;
    int threads; /* of the meter */
    table *rows;
    peak around[2]; /* the last row: before, after */
    peak best;
    const char *level;  /* of the loop that did best.flops */
    int64_t device;     /* of all rows; -1 before the first */
    cuda_clocks clocks; /* of a GPU, while rows were measured */
    int code;
} bench;

static const table_column columns[] = {{.key = "problem"},
                                       {.key = "device"},
                                       {.key = "kernel"},
                                       {.key = "threads"},
                                       {.key = "ms", .decimals = 3},
                                       {.key = "spread", .scale = 100, .suffix = " %", .decimals = 1},
                                       {.key = "tflops", .title = "GFLOP/s", .scale = 1000, .decimals = 1},
                                       {.key = "gbps", .title = "GB/s", .decimals = 1},
                                       {.key = "of_peak", .title = "of peak", .scale = 100, .suffix = " %", .decimals = 1},
                                       {.key = "bound"},
                                       {.key = "check"},
                                       {.key = "samples"}};

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
    /* A wrong result outweighs a refusal, and both a missing device. */
    if (b->code == EXIT_OK || b->code == EXIT_SKIPPED || code == EXIT_WRONG) b->code = code;
}

/* Sets kernel, device and threads. False, with a complaint, if there is no such device or no kernel. */
static bool select_kernel(bench *b, subject *s, const problem *p) {
    strobe_device_info device = {.struct_size = sizeof device};
    if (b->device >= 0 && b->device != p->device)
        return complain(b, EXIT_REFUSED, p,
                        "device is not that of the problems before it; one device at a time is accepted"),
               false;
    b->device = p->device;
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

/* A kernel's name ends with its level. What fp32 gains by products of tiles is a share of what multiply-adds could do. */
static bool is_bound_by_tiles(const subject *s) {
    const char *level = strrchr(s->kernel, '_');
    return level && !strcmp(level, "_amx") && element_bytes(s->in.problem.dtype) == 2;
}

/* False, with a sentence, if it could not be measured. */
static bool measure_peak(bench *b, const subject *s, int when, char *message, size_t capacity) {
    peak now = {0};
    if (s->in.problem.device == STROBE_CUDA) {
        if (!cuda_bench_peak(s->in.problem.dtype, &now, &b->clocks, message, capacity)) return false;
        b->level = cuda_bench_level(s->in.problem.dtype);
    } else {
        snprintf(message, capacity, "no memory or threads to measure the peak with");
        if (!ready_meter(b, s->threads)) return false;
        now = peak_measure(b->meter);
        b->level = peak_fastest_loop().level;
    }
    b->around[when] = now;
    b->best.flops = fmax(b->best.flops, now.flops);
    b->best.tiles = fmax(b->best.tiles, now.tiles);
    b->best.bytes = fmax(b->best.bytes, now.bytes);
    return true;
}

static bool measure_time(bench *b, subject *s, timing *t, char *message, size_t capacity) {
    if (s->in.problem.device == STROBE_CUDA)
        return cuda_bench_time(&s->in, &s->out, b->seconds, t, &b->clocks, message, capacity);
    *t = timing_measure(work, s, b->seconds);
    return true;
}

static void add_row(bench *b, const subject *s, const timing *t, const char *outcome) {
    const problem *p = &s->in.problem;
    const bool gpu = p->device == STROBE_CUDA;
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    const peak before = b->around[0], after = b->around[1];
    const bool tiles = is_bound_by_tiles(s) && before.tiles > 0;
    const double peak_flops = (tiles ? before.tiles + after.tiles : before.flops + after.flops) / 2;
    const double flop = operations(s), bytes = bytes_moved(s), peak_bytes = (before.bytes + after.bytes) / 2;
    const bool computes = flop / peak_flops >= bytes / peak_bytes;
    const double share = (computes ? flop / peak_flops : bytes / peak_bytes) / t->median;
    table_add_row(b->rows, (table_cell[]){cell_text(text), cell_text(s->device), cell_text(s->kernel),
                                          gpu ? cell_none() : cell_integer(s->threads), cell_real(1e3 * t->median),
                                          cell_real(t->spread), cell_real(1e-12 * flop / t->median),
                                          cell_real(1e-9 * bytes / t->median), cell_real(share),
                                          cell_text(!computes                        ? "memory"
                                                    : tiles                          ? "tiles"
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

static void bench_problem(bench *b, const problem *p) {
    subject s = {0};
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    terminal_progress("check    %s", text);
    if (select_kernel(b, &s, p) && create(b, &s, p)) {
        const char *outcome = check(b, &s);
        terminal_progress("measure  %s", text);
        if (outcome) measure(b, &s, outcome);
    }
    outputs_free(&s.out);
    inputs_free(&s.in);
}

static void print_document(const bench *b) {
    cJSON *document = cJSON_CreateObject(), *peak_object = cJSON_CreateObject();
    strobe_device_info device = {.struct_size = sizeof device};
    char reasons[128];
    strobe_device_at(b->device == STROBE_CUDA ? STROBE_CUDA : STROBE_CPU, 0, &device);
    cJSON_AddStringToObject(document, "device", device.name ? device.name : "");
    cJSON_AddStringToObject(document, "build", strobe_build_info());
    cJSON_AddNumberToObject(peak_object, "tflops", 1e-12 * b->best.flops);
    cJSON_AddNumberToObject(peak_object, "tile_tflops", 1e-12 * b->best.tiles);
    cJSON_AddNumberToObject(peak_object, "gbps", 1e-9 * b->best.bytes);
    cJSON_AddStringToObject(peak_object, "level", b->level ? b->level : "");
    cJSON_AddItemToObject(document, "peak", peak_object);
    if (b->device == STROBE_CUDA) {
        cJSON *clocks = cJSON_AddObjectToObject(document, "clocks");
        cJSON_AddNumberToObject(clocks, "low_mhz", b->clocks.low_mhz);
        cJSON_AddNumberToObject(clocks, "high_mhz", b->clocks.high_mhz);
        cJSON_AddNumberToObject(clocks, "most_mhz", b->clocks.most_mhz);
        cJSON_AddStringToObject(clocks, "held_back_by", cuda_clock_reasons(&b->clocks, reasons, sizeof reasons));
    }
    cJSON_AddItemToObject(document, "rows", table_to_json(b->rows));
    json_print(document, stdout);
    cJSON_Delete(document);
}

static void print_clocks(const cuda_clocks *c) {
    char reasons[128];
    if (c->low_mhz)
        printf("clocks while measured: %u to %u MHz, the card's most is %u MHz; held back by %s\n", c->low_mhz, c->high_mhz,
               c->most_mhz, cuda_clock_reasons(c, reasons, sizeof reasons));
    else
        printf("clocks are not known without NVML; the card's most is %u MHz\n", c->most_mhz);
}

static void print_peak(const bench *b) {
    const bool gpu = b->device == STROBE_CUDA;
    printf("\npeak measured beside the rows, at best: %.0f GFLOP/s %s(%s), ", 1e-9 * b->best.flops, gpu ? "" : "fp32 ",
           b->level);
    if (b->best.tiles > 0) printf("%.0f GFLOP/s bf16 (amx), ", 1e-9 * b->best.tiles);
    printf("%.1f GB/s %s memory\n", 1e-9 * b->best.bytes, gpu ? "copied in" : "read from");
    if (gpu) print_clocks(&b->clocks);
}

static int run(bench *b, const problem_list *list) {
    b->rows = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < list->count; ++i) bench_problem(b, &list->items[i]);
    terminal_progress_end();
    if (b->format == TABLE_JSON)
        print_document(b);
    else if (table_row_count(b->rows))
        table_print(b->rows, b->format, stdout);
    if (b->format == TABLE_TEXT && table_row_count(b->rows)) print_peak(b);
    peak_meter_destroy(b->meter);
    table_destroy(b->rows);
    return b->code;
}

int cmd_bench(int argc, char **argv) {
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    bench b = {.seconds = 1, .format = TABLE_TEXT, .device = -1, .code = EXIT_OK};
    for (int option; (option = next_option("bench", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), fputs(problem_help, stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        if (option == 'o' && !table_format_named(optarg, &b.format))
            return fprintf(stderr, "strobe bench: -o is %s; table, json, csv or md is accepted\n", optarg), EXIT_REFUSED;
        if (option == 's' && !(number_real(optarg, &b.seconds) && b.seconds >= 0))
            return fprintf(stderr, "strobe bench: --seconds is %s; a number from 0 is accepted\n", optarg), EXIT_REFUSED;
    }
    char message[PROBLEM_MESSAGE] = "no problem is given; strobe bench --help shows how";
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (optind < argc && problem_list_read(&list, argc - optind, argv + optind, message, sizeof message))
        code = run(&b, &list);
    else
        fprintf(stderr, "strobe bench: %s\n", message);
    problem_list_free(&list);
    return code;
}
