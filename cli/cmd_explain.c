/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_explain.c: `strobe explain` prints the libraries' own words about a problem: every kernel of the operation, best
 * first, chosen or why not; over many ranks every scheme, with the times that its cost model predicts. */
#include "commands.h"
#include "io/memory.h"
#include "io/number.h"
#include "io/options.h"
#include "problem/problem_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strobe explain PROBLEM... [--flops X] [--bandwidth X] [--latency X] [--call X]\n"
    "                         [--memory X] [--launch X] [--copies]\n"
    "\n"
    "Prints for each problem which kernel the library chooses, and why not each of the others. Nothing is\n"
    "computed or allocated. Exit code: 0 every problem has a kernel, 2 some have none, or usage.\n"
    "\n"
    "With ranks=N it prints which scheme libstrobe_dist chooses, with the time that its cost model predicts for each,\n"
    "from what it believes of a rank and of the links (docs/distributed.md; strobe bench measures the first):\n"
    "  --flops X      of attention, a second, by one rank (5e10; on a GPU 6e14)\n"
    "  --bandwidth X  bytes a second that a rank sends while it receives as many (4e9; 2.4e11, with --copies 3e11)\n"
    "  --latency X    seconds of an exchange without bytes (20e-6; 30e-6)\n"
    "  --call X       seconds of a call of attention without work (10e-6; 20e-6)\n"
    "  --memory X     bytes a second of a rank's own memory (1e10; 2.3e12)\n"
    "  --launch X     seconds of the host for what it puts on a stream of a GPU (8e-6)\n"
    "  --copies       copy engines move the messages of GPUs, beside kernels (strobe_dist_copies.h)\n"
    "\n"
    "examples:\n"
    "  strobe explain fwd b=1 h=32/8 sq=1 sk=8192 d=96 bf16\n"
    "  strobe explain bwd s=4k d=64,600 fp16 causal\n"
    "  strobe explain fwd d=128 kernel=cpu_forward_avx2\n"
    "  strobe explain bwd h=32/8 s=64k d=128 bf16 causal ranks=8/4:automatic:zigzag --flops 1e12 --bandwidth 2e10\n"
    "\n";

static void print_lines(char *lines) {
    for (char *line = lines, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        printf("  %.*s\n", (int)(end - line), line);
    fputs("\n", stdout);
    free(lines);
}

/* Packed sequences of a problem, whose lengths are drawn when it is posed, are here all as long as s says. */
static int64_t *offsets_of(int64_t batch, int64_t seq) {
    int64_t *offsets = memory_zeroed((size_t)batch + 1, sizeof *offsets);
    for (int64_t b = 0; b <= batch; ++b) offsets[b] = b * seq;
    return offsets;
}

/* False if no scheme takes the problem. */
static bool explain_ranks(const problem *p, const strobe_dist_rates *rates, bool copies) {
    char text[PROBLEM_TEXT];
    call c;
    strobe_transport transport;
    strobe_dist dist;
    size_t needed = 0;
    problem_print(p, text);
    printf("%s\n", text);
    call_describe(&c, p);
    int64_t *const q = offsets_of(p->batch, p->seq_q), *const k = offsets_of(p->batch, p->seq_k);
    c.varlen.index_bits = 64;
    if (c.varlen.cu_seqlens_q) c.varlen.cu_seqlens_q = q, c.varlen.total_q = q[p->batch];
    if (c.varlen.cu_seqlens_k) c.varlen.cu_seqlens_k = k, c.varlen.total_k = k[p->batch];
    problem_ranks_describe(p, &c.attention, 0, &transport, &dist);
    dist.rates = rates;
    if (copies) transport.flags |= STROBE_TRANSPORT_BESIDE_KERNELS;
    strobe_status status = strobe_dist_explain(&dist, call_gradients(&c), NULL, 0, &needed);
    if (needed <= 1) {
        printf("  %s: %s\n\n", strobe_status_name(status), strobe_dist_last_error());
    } else {
        char *lines = memory_zeroed(needed, 1);
        status = strobe_dist_explain(&dist, call_gradients(&c), lines, needed, NULL);
        print_lines(lines);
    }
    free(q), free(k);
    return status == STROBE_OK;
}

/* False if no kernel takes the problem. */
static bool explain(const problem *p) {
    char text[PROBLEM_TEXT];
    call c;
    size_t needed = 0;
    problem_print(p, text);
    call_describe(&c, p);
    strobe_status status = strobe_explain(&c.attention, call_gradients(&c), NULL, 0, &needed);
    printf("%s\n", text);
    if (status && status != STROBE_UNSUPPORTED) {
        printf("  %s: %s\n\n", strobe_status_name(status), strobe_last_error());
        return false;
    }
    char *lines = memory_zeroed(needed + 1, 1);
    status = strobe_explain(&c.attention, call_gradients(&c), lines, needed, NULL);
    print_lines(lines);
    return status == STROBE_OK;
}

static bool read_rate(const char *name, double *rate) {
    if (number_real(optarg, rate) && *rate > 0) return true;
    fprintf(stderr, "strobe explain: --%s is %s; a positive number is accepted\n", name, optarg);
    return false;
}

int cmd_explain(int argc, char **argv) {
    enum { FLOPS, BANDWIDTH, LATENCY, CALL, MEMORY, LAUNCH, RATES, COPIES };
    static const struct option options[] = {{"flops", required_argument, NULL, FLOPS},
                                            {"bandwidth", required_argument, NULL, BANDWIDTH},
                                            {"latency", required_argument, NULL, LATENCY},
                                            {"call", required_argument, NULL, CALL},
                                            {"memory", required_argument, NULL, MEMORY},
                                            {"launch", required_argument, NULL, LAUNCH},
                                            {"copies", no_argument, NULL, COPIES},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    strobe_dist_rates rates = {.struct_size = sizeof rates};
    double *const rate[] = {&rates.flops, &rates.bandwidth, &rates.latency, &rates.call, &rates.memory, &rates.launch};
    bool copies = false;
    for (int option; (option = next_option("explain", argc, argv, "h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), problem_print_help(stdout), EXIT_OK;
        if (option == COPIES) {
            copies = true;
            continue;
        }
        if (option < 0 || option >= RATES || !read_rate(options[option].name, rate[option])) return EXIT_REFUSED;
    }
    char message[PROBLEM_MESSAGE] = "no problem is given; strobe explain --help shows how";
    problem_list list = {0};
    int code = EXIT_OK;
    if (optind == argc || !problem_list_read(&list, argc - optind, argv + optind, message, sizeof message)) {
        fprintf(stderr, "strobe explain: %s\n", message);
        list.count = 0;
        code = EXIT_REFUSED;
    }
    for (size_t i = 0; i < list.count; ++i)
        if (!(list.items[i].ranks ? explain_ranks(&list.items[i], &rates, copies) : explain(&list.items[i])))
            code = EXIT_REFUSED;
    problem_list_free(&list);
    return code;
}
