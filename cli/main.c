/* SPDX-License-Identifier: BSD-3-Clause
 *
 * main.c: the command `strobe`: finds the subcommand and hands over. */
#include "commands.h"
#include "portable/posix.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"info", cmd_info, "what this build and this machine have: version, devices, kernels, what each kernel supports"},
    {"run", cmd_run, "attention on the q, k, v of a file: kernel, time, error, beside standard attention"},
    {"check", cmd_check, "every kernel against a float64 reference"},
    {"bench", cmd_bench, "the speed of a problem and its share of this machine's peak"},
    {"explain", cmd_explain, "which kernel a problem gets, and why not the others"},
    {"mask", cmd_mask, "a picture of who sees whom, and the share of blocks that is computed"},
    {"quantise", cmd_quantise, "the q, k, v of a file in FP8 or int8 with scales, and what that costs"},
    {"trace", cmd_trace, "what the warps of a GPU kernel do when, for Perfetto"},
    {"lab", cmd_lab, "the algorithms of the papers on a small machine that counts memory traffic"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *stream) {
    fputs("usage: strobe COMMAND ...\n\n", stream);
    for (const command *c = commands; c < commands + COMMANDS; ++c) fprintf(stream, "  %-9s %s\n", c->name, c->summary);
    fputs("\n"
          "strobe COMMAND --help says more, with examples; strobe --version prints the version.\n"
          "Exit codes: 0 ok, 1 a result is wrong, 2 usage or refused input, 77 skipped, 130 stopped by Ctrl-C;\n"
          "what was done until then is printed.\n",
          stream);
}

/* The library takes no notice of a level that it does not know: it has nobody to tell. */
static bool level_is_known(void) {
#if defined(__x86_64__)
    static const char *const levels[] = {"baseline", "avx2", "avx512", "avx512bf16", "amx"};
#elif defined(__aarch64__)
    static const char *const levels[] = {"baseline", "neon", "neonbf16"};
#else
    static const char *const levels[] = {"baseline"};
#endif
    const size_t count = sizeof levels / sizeof levels[0];
    const char *wanted = getenv("STROBE_ISA");
    if (!wanted || !*wanted) return true;
    for (size_t i = 0; i < count; ++i)
        if (strcmp(wanted, levels[i]) == 0) return true;
    fprintf(stderr, "strobe: STROBE_ISA is %s; ", wanted);
    for (size_t i = 0; i < count; ++i)
        fprintf(stderr, "%s%s", levels[i], i + 2 < count ? ", " : i + 1 < count ? " or " : "");
    fputs(" is accepted\n", stderr);
    return false;
}

static int run(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!level_is_known()) return EXIT_REFUSED;
    for (const command *c = commands; c < commands + COMMANDS; ++c)
        if (strcmp(name, c->name) == 0) return c->run(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0) return printf("strobe %s\n", strobe_version()), EXIT_OK;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return print_usage(stdout), EXIT_OK;
    if (*name) fprintf(stderr, "strobe: \"%s\" is not a command\n\n", name);
    print_usage(stderr);
    return EXIT_REFUSED;
}

int main(int argc, char **argv) {
    prepare_streams();
    const int code = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fputs("strobe: standard output could not be written to the end\n", stderr); /* a full disk, say */
    return code ? code : EXIT_REFUSED;
}
