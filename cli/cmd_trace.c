/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_trace.c: `strobe trace` runs a forward with a library built with STROBE_TRACE, and writes down what the warp roles of
 * its first CTAs did when, in the format of Chrome's tracing, which Perfetto reads too. */
#include "commands.h"
#include "cuda_memory.h"
#include "cuda_trial.h"
#include "json.h"
#include "memory.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_trace.h>

static const char help[] =
    "usage: strobe trace PROBLEM [-o FILE]\n"
    "\n"
    "Runs the forward on the GPU a few times and writes the last run's course, as JSON for https://ui.perfetto.dev and\n"
    "chrome://tracing: of each of the first CTAs, what the warp that loads, the one that chooses tiles and the warp groups\n"
    "that compute were doing, in microseconds. tools/plot_trace.py makes a picture of it.\n"
    "  -o FILE   where to (default: standard output)\n"
    "\n"
    "Only a library that was built with -DSTROBE_TRACE=ON keeps such a record, and its cuda_forward_sm90 alone.\n"
    "Exit code: 0 ok, 2 usage or a refused problem, 77 no GPU here, or no record.\n"
    "\n"
    "examples:\n"
    "  strobe trace fwd b=4 h=16 s=4k d=128 bf16 device=cuda -o trace.json\n"
    "\n";

enum { RUNS = 3 };

static const char *const phases[STROBE_TRACE_PHASES] = {
    [STROBE_TRACE_NOTHING] = "nothing",
    [STROBE_TRACE_WAIT_TILE] = "wait for a tile",
    [STROBE_TRACE_WAIT_ROOM] = "wait for room",
    [STROBE_TRACE_LOAD_Q] = "load Q",
    [STROBE_TRACE_LOAD_K] = "load K",
    [STROBE_TRACE_LOAD_V] = "load V",
    [STROBE_TRACE_DESCRIBE] = "describe a tile",
    [STROBE_TRACE_WAIT_Q] = "wait for Q",
    [STROBE_TRACE_WAIT_K] = "wait for K",
    [STROBE_TRACE_WAIT_V] = "wait for V",
    [STROBE_TRACE_WAIT_TURN] = "wait for the turn",
    [STROBE_TRACE_QK] = "issue Q K^T",
    [STROBE_TRACE_PV] = "issue P V",
    [STROBE_TRACE_WAIT_QK] = "wait for Q K^T",
    [STROBE_TRACE_MAXIMUM] = "mask, maxima",
    [STROBE_TRACE_WAIT_PV] = "wait for P V",
    [STROBE_TRACE_EXPONENTIAL] = "exponentials",
    [STROBE_TRACE_EPILOGUE] = "epilogue",
    [STROBE_TRACE_END] = "end",
};

static void add_name(cJSON *events, const char *kind, int cta, int role, const char *name) {
    cJSON *event = cJSON_CreateObject(), *arguments = cJSON_AddObjectToObject(event, "args");
    cJSON_AddStringToObject(event, "ph", "M");
    cJSON_AddStringToObject(event, "name", kind);
    cJSON_AddNumberToObject(event, "pid", cta);
    cJSON_AddNumberToObject(event, "tid", role);
    cJSON_AddStringToObject(arguments, "name", name);
    cJSON_AddItemToArray(events, event);
}

/* Marks to spans: each lasts until the next. The clock counts modulo 2^32, from the CTA's begin. */
static void add_role(cJSON *events, const strobe_trace_cta *cta, int index, int role, double start, double us_per_clock) {
    uint32_t kept = 0;
    while (kept < STROBE_TRACE_MARKS && cta->mark[role][kept].phase) ++kept;
    static const char *const singles[] = {"loads K, V", "tiles", "loads Q"}; /* warps, in the order of roles */
    char name[32];
    if (role < STROBE_TRACE_CONSUMER)
        snprintf(name, sizeof name, "%s", singles[role]);
    else
        snprintf(name, sizeof name, "warp group %d", role - STROBE_TRACE_CONSUMER);
    if (kept) add_name(events, "thread_name", index, role, name);
    for (uint32_t i = 0; i + 1 < kept; ++i) {
        const strobe_trace_mark *mark = &cta->mark[role][i];
        const uint32_t phase = mark->phase & 0xFF, clocks = mark[1].clock - mark->clock;
        cJSON *event = cJSON_CreateObject(), *arguments;
        cJSON_AddStringToObject(event, "ph", "X");
        cJSON_AddStringToObject(event, "name", phases[phase < STROBE_TRACE_PHASES ? phase : 0]);
        cJSON_AddNumberToObject(event, "pid", index);
        cJSON_AddNumberToObject(event, "tid", role);
        cJSON_AddNumberToObject(event, "ts", start + (uint32_t)(mark->clock - (uint32_t)cta->begin.clock) * us_per_clock);
        cJSON_AddNumberToObject(event, "dur", clocks * us_per_clock);
        arguments = cJSON_AddObjectToObject(event, "args");
        cJSON_AddNumberToObject(arguments, "number", mark->phase >> 8);
        cJSON_AddNumberToObject(arguments, "clocks", clocks);
        cJSON_AddItemToArray(events, event);
    }
}

static cJSON *document_of(const strobe_trace *trace, const char *name_of_problem) {
    cJSON *document = cJSON_CreateObject(), *events = cJSON_AddArrayToObject(document, "traceEvents");
    const int ctas = trace->ctas < STROBE_TRACE_CTAS ? (int)trace->ctas : STROBE_TRACE_CTAS;
    cJSON_AddStringToObject(document, "displayTimeUnit", "ns");
    cJSON_AddStringToObject(document, "problem", name_of_problem);
    for (int i = 0; i < ctas; ++i) {
        const strobe_trace_cta *cta = &trace->cta[i];
        const double ns = (double)(cta->end.nanoseconds - cta->begin.nanoseconds);
        const double clocks = (double)(cta->end.clock - cta->begin.clock);
        char name[64];
        snprintf(name, sizeof name, "CTA %d on multiprocessor %u, %.2f GHz", i, (unsigned)cta->multiprocessor,
                 ns > 0 ? clocks / ns : 0);
        add_name(events, "process_name", i, 0, name);
        for (int role = 0; role < STROBE_TRACE_ROLES; ++role)
            add_role(events, cta, i, role, (double)(cta->begin.nanoseconds - trace->cta[0].begin.nanoseconds) * 1e-3,
                     clocks > 0 ? ns * 1e-3 / clocks : 0);
    }
    return document;
}

/* The forward on the copies; *trace is its record, in memory of the host. Returns an exit code. */
static int run(device_copies *copies, strobe_trace *trace, char *message, size_t capacity) {
    call c;
    size_t bytes = 0;
    call_prepare(&c, &copies->in, &copies->out);
    if (strobe_workspace(&c.attention, NULL, &bytes))
        return snprintf(message, capacity, "%s", strobe_last_error()), EXIT_REFUSED;
    unsigned char *workspace = cuda_memory_copied(NULL, bytes);
    int code = workspace ? EXIT_OK : EXIT_REFUSED;
    if (!workspace) snprintf(message, capacity, "a workspace of %zu bytes could not be had on the GPU", bytes);
    for (int i = 0; i < RUNS && code == EXIT_OK; ++i)
        if (strobe_forward(&c.attention, workspace, bytes, NULL))
            code = EXIT_REFUSED, snprintf(message, capacity, "%s", strobe_last_error());
        else if (!cuda_memory_wait(message, capacity))
            code = EXIT_WRONG;
    if (code == EXIT_OK && (bytes < sizeof *trace || !cuda_memory_copy_back(trace, workspace, sizeof *trace) ||
                            trace->magic != STROBE_TRACE_MAGIC))
        code = EXIT_SKIPPED, snprintf(message, capacity,
                                      "the kernel kept no record; STROBE_TRACE builds of "
                                      "cuda_forward_sm90 do");
    cuda_memory_free(workspace);
    return code;
}

static int trace_problem(const problem *p, const char *file, char *message, size_t capacity) {
    inputs in = {0};
    outputs out = {0};
    device_copies copies = {0};
    strobe_trace *trace = memory_zeroed(1, sizeof *trace);
    int code = EXIT_REFUSED;
    if (p->device != STROBE_CUDA || p->operation != STROBE_FORWARD)
        snprintf(message, capacity, "the problem is not a forward with device=cuda; that is taken");
    else if (inputs_create(&in, p, message, capacity) && outputs_create(&out, &in, message, capacity))
        code = device_copies_create(&copies, &in, &out, message, capacity) ? run(&copies, trace, message, capacity)
                                                                           : EXIT_SKIPPED;
    if (code == EXIT_OK) {
        char text[PROBLEM_TEXT];
        problem_print(p, text);
        FILE *stream = file ? fopen(file, "w") : stdout;
        cJSON *document = document_of(trace, text);
        if (!stream || !json_print(document, stream) || (file && fclose(stream)))
            code = EXIT_REFUSED, snprintf(message, capacity, "%s cannot be written", file ? file : "standard output");
        cJSON_Delete(document);
    }
    device_copies_free(&copies);
    outputs_free(&out);
    inputs_free(&in);
    free(trace);
    return code;
}

int cmd_trace(int argc, char **argv) {
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {"output", required_argument, NULL, 'o'}, {0}};
    const char *file = NULL;
    for (int option; (option = getopt_long(argc, argv, "ho:", options, NULL)) != -1;) {
        if (option == 'h') return fputs(help, stdout), fputs(problem_help, stdout), EXIT_OK;
        if (option != 'o') return EXIT_REFUSED;
        file = optarg;
    }
    char message[PROBLEM_MESSAGE] = "one problem is accepted; strobe trace --help shows how";
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (optind < argc && problem_list_read(&list, argc - optind, argv + optind, message, sizeof message)) {
        if (list.count == 1)
            code = trace_problem(&list.items[0], file, message, sizeof message);
        else
            snprintf(message, sizeof message, "%zu problems are given; one is accepted", list.count);
    }
    if (code != EXIT_OK) fprintf(stderr, "strobe trace: %s\n", message);
    problem_list_free(&list);
    return code;
}
