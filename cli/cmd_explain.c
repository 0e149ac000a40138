/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_explain.c: `strobe explain` prints the library's own words about a problem: every kernel of the operation, best first,
 * chosen or why not. */
#include "commands.h"
#include "io/memory.h"
#include "io/options.h"
#include "problem/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strobe explain PROBLEM...\n"
    "\n"
    "Prints for each problem which kernel the library chooses, and why not each of the others. Nothing is\n"
    "computed or allocated. Exit code: 0 every problem has a kernel, 2 some have none, or usage.\n"
    "\n"
    "examples:\n"
    "  strobe explain fwd b=1 h=32/8 sq=1 sk=8192 d=96 bf16\n"
    "  strobe explain bwd s=4k d=64,600 fp16 causal\n"
    "  strobe explain fwd d=128 kernel=cpu_forward_avx2\n"
    "\n";

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
    for (char *line = lines, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        printf("  %.*s\n", (int)(end - line), line);
    fputs("\n", stdout);
    free(lines);
    return status == STROBE_OK;
}

int cmd_explain(int argc, char **argv) {
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    for (int option; (option = next_option("explain", argc, argv, "h", options)) != -1;) {
        if (option != 'h') return EXIT_REFUSED;
        return fputs(help, stdout), fputs(problem_help, stdout), EXIT_OK;
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
        if (!explain(&list.items[i])) code = EXIT_REFUSED;
    problem_list_free(&list);
    return code;
}
