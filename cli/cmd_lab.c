/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_lab.c: `strobe lab`: finds the subcommand and hands over. */
#include "commands.h"
#include "lab/lab_command.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} subcommands[] = {
    {"traffic", lab_traffic, "every algorithm on one head: counts, cost model, error against float64"},
    {"sweep", lab_sweep, "traffic over n, d, S or a block size, and how it grows"},
    {"roofline", lab_roofline, "where each algorithm stands on a device's roofline"},
    {"schedule", lab_schedule_command, "FlashAttention-3's pipeline: timeline, utilisation, what each trick brings"},
    {"fp8", lab_fp8_command, "the error of FP8 attention, with and without scales by blocks and a Hadamard transform"},
    {"report", lab_report, "the papers' figures as one page in which sliders choose N, d and S"},
#if !defined(_WIN32) /* it starts another program by POSIX's calls */
    {"plot", lab_plot, "the figures of docs/lab.md, as SVG and PNG (needs python3 with matplotlib)"},
#endif
};
enum { SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

static int usage(FILE *stream) {
    fputs(
        "usage: strobe lab COMMAND ...\n"
        "\n"
        "The algorithms of the papers as short C functions over a slow memory that counts and a fast memory that refuses.\n"
        "\n",
        stream);
    for (int i = 0; i < SUBCOMMANDS; ++i) fprintf(stream, "  %-8s  %s\n", subcommands[i].name, subcommands[i].summary);
    fputs("\nstrobe lab COMMAND --help says more, with examples. The algorithms:\n\n", stream);
    for (int i = 0; lab_algorithm_at(i); ++i)
        fprintf(stream, "  %-18s %s\n", lab_algorithm_at(i)->name, lab_algorithm_at(i)->summary);
    return stream == stdout ? EXIT_OK : EXIT_REFUSED;
}

int cmd_lab(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 0; i < SUBCOMMANDS; ++i)
        if (!strcmp(subcommands[i].name, name)) return subcommands[i].run(argc - 1, argv + 1);
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return usage(stdout);
    if (*name) fprintf(stderr, "strobe lab: \"%s\" is not a command\n\n", name);
    return usage(stderr);
}
