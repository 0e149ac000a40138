/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_trace.c: `strobe trace` runs a forward or a backward with a library built with STROBE_TRACE, and writes down what the
 * warp roles of its first CTAs did when, in the format of Chrome's tracing, which Perfetto reads too. */
#include "commands.h"
#include "io/json.h"
#include "io/memory.h"
#include "io/options.h"
#include "problem/cuda_memory.h"
#include "problem/cuda_trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_trace.h>

static const char help[] =
    "usage: strobe trace PROBLEM [-o FILE]\n"
    "\n"
    "Runs the problem on the GPU a few times and writes what the last run did, as JSON for https://ui.perfetto.dev and\n"
    "chrome://tracing: of each of the first CTAs, what the warp that loads, those that choose tiles (forward) or add up dQ\n"
    "(backward) and the warp groups that compute were doing, in microseconds. tools/plot_trace.py makes a picture of it.\n"
    "  -o FILE   where to (default: standard output)\n"
    "\n"
    "Only a library that was built with -DSTROBE_TRACE=ON keeps such a record: its cuda_forward_sm90, and its\n"
    "cuda_backward_sm90 up to a head dim of 128.\n"
    "Exit code: 0 ok, 2 usage or a refused problem, 77 no GPU here, or no record.\n"
    "\n"
    "examples:\n"
    "  strobe trace fwd b=4 h=16 s=4k d=128 bf16 device=cuda -o trace.json\n"
    "  strobe trace bwd b=1 h=16 s=16k d=64 bf16 device=cuda -o trace.json\n"
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
    [STROBE_TRACE_WAIT_PING_PONG] = "wait for ping-pong",
    [STROBE_TRACE_QK] = "issue Q K^T",
    [STROBE_TRACE_PV] = "issue P V",
    [STROBE_TRACE_WAIT_QK] = "wait for Q K^T",
    [STROBE_TRACE_MAXIMUM] = "mask, maxima",
    [STROBE_TRACE_WAIT_PV] = "wait for P V",
    [STROBE_TRACE_EXPONENTIAL] = "exponentials",
    [STROBE_TRACE_EPILOGUE] = "epilogue",
    [STROBE_TRACE_LOAD_DOUT] = "load dO",
    [STROBE_TRACE_WAIT_DOUT] = "wait for dO",
    [STROBE_TRACE_P_AND_DV] = "P, issue dP, dV",
    [STROBE_TRACE_WAIT_DP] = "wait for dP",
    [STROBE_TRACE_DS_AND_DK] = "dS, issue dK",
    [STROBE_TRACE_WAIT_DS] = "wait for dS",
    [STROBE_TRACE_WAIT_DV] = "issue dQ, wait for dV",
    [STROBE_TRACE_WAIT_DQ] = "wait for dQ",
    [STROBE_TRACE_STORE_DQ] = "store dQ",
    [STROBE_TRACE_WAIT_S] = "wait for S",
    [STROBE_TRACE_ADD_DQ] = "add dQ",
    [STROBE_TRACE_WAIT_DQ_ORDER] = "wait for the dQ order",
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
static void add_role(cJSON *events, const strobe_trace_cta *cta, int index, int role, const char *name, double start,
                     double us_per_clock) {
    uint32_t kept = 0;
    while (kept < STROBE_TRACE_MARKS && cta->mark[role][kept].phase) ++kept;
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

static cJSON *document_of(const strobe_trace *trace, bool backward, const char *name_of_problem) {
    static const char *const roles[2][STROBE_TRACE_ROLES] = {
        {"loads K, V", "tiles", "loads Q", "warp group 0", "warp group 1", "warp group 2", "warp group 3"},
        {"loads", "dQ of group 0", "dQ of group 1", "warp group 0", "warp group 1"}};
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
            add_role(events, cta, i, role, roles[backward][role],
                     (double)(cta->begin.nanoseconds - trace->cta[0].begin.nanoseconds) * 1e-3,
                     clocks > 0 ? ns * 1e-3 / clocks : 0);
    }
    return document;
}

/* A few times the call that c has, with the workspace of `bytes` bytes. Returns an exit code. */
static int repeat(const call *c, bool backward, void *workspace, size_t bytes, char *message, size_t capacity) {
    for (int i = 0; i < RUNS; ++i) {
        if (backward ? strobe_backward(&c->attention, &c->gradients, workspace, bytes, NULL)
                     : strobe_forward(&c->attention, workspace, bytes, NULL))
            return snprintf(message, capacity, "%s", strobe_last_error()), EXIT_REFUSED;
        if (!cuda_memory_wait(message, capacity)) return EXIT_WRONG;
    }
    return EXIT_OK;
}

/* The problem on the copies, a backward after its forward, which makes its out and lse; *trace is the record, in memory of
 * the host. Returns an exit code. */
static int run(device_copies *copies, strobe_trace *trace, char *message, size_t capacity) {
    call c;
    size_t bytes = 0, forward_bytes = 0;
    call_prepare(&c, &copies->in, &copies->out);
    if (strobe_workspace(&c.attention, NULL, &forward_bytes) || strobe_workspace(&c.attention, call_gradients(&c), &bytes))
        return snprintf(message, capacity, "%s", strobe_last_error()), EXIT_REFUSED;
    const size_t most = bytes > forward_bytes ? bytes : forward_bytes;
    unsigned char *workspace = cuda_memory_copied(NULL, most);
    int code = workspace ? EXIT_OK : EXIT_REFUSED;
    if (!workspace) snprintf(message, capacity, "a workspace of %zu bytes could not be had on the GPU", most);
    if (code == EXIT_OK && c.backward) code = repeat(&c, false, workspace, most, message, capacity);
    if (code == EXIT_OK) code = repeat(&c, c.backward, workspace, most, message, capacity);
    if (code == EXIT_OK && (bytes < sizeof *trace || !cuda_memory_copy_back(trace, workspace, sizeof *trace) ||
                            trace->magic != STROBE_TRACE_MAGIC))
        code = EXIT_SKIPPED, snprintf(message, capacity,
                                      "the kernel kept no record; STROBE_TRACE builds of "
                                      "cuda_forward_sm90 and cuda_backward_sm90 do");
    cuda_memory_free(workspace);
    return code;
}

static int trace_problem(const problem *p, const char *file, char *message, size_t capacity) {
    inputs in = {0};
    outputs out = {0};
    device_copies copies = {0};
    strobe_trace *trace = memory_zeroed(1, sizeof *trace);
    int code = EXIT_REFUSED;
    if (p->device != STROBE_CUDA)
        snprintf(message, capacity, "the problem is without device=cuda; one with it is taken");
    else if (inputs_create(&in, p, message, capacity) && outputs_create(&out, &in, message, capacity))
        code = device_copies_create(&copies, &in, &out, false, message, capacity) ? run(&copies, trace, message, capacity)
                                                                                  : EXIT_SKIPPED;
    if (code == EXIT_OK) {
        char text[PROBLEM_TEXT];
        problem_print(p, text);
        FILE *stream = file ? fopen(file, "w") : stdout;
        cJSON *document = document_of(trace, p->operation == STROBE_BACKWARD, text);
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
    for (int option; (option = next_option("trace", argc, argv, "ho:", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), problem_print_help(stdout), EXIT_OK;
        if (option != 'o') return EXIT_REFUSED;
        file = optarg;
    }
    char message[PROBLEM_MESSAGE] = "one problem is accepted; strobe trace --help shows how";
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (optind < argc && problem_list_read(&list, argc - optind, argv + optind, message, sizeof message) &&
        problem_list_is_of_one_process(&list, message, sizeof message)) {
        if (list.count == 1)
            code = trace_problem(&list.items[0], file, message, sizeof message);
        else
            snprintf(message, sizeof message, "%zu problems are given; one is accepted", list.count);
    }
    if (code != EXIT_OK) fprintf(stderr, "strobe trace: %s\n", message);
    problem_list_free(&list);
    return code;
}
