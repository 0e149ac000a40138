/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plot.c: `strobe lab plot`: runs lab/plot.py, which calls this command for its numbers and draws the figures. */
#include "commands.h"
#include "io/options.h"
#include "lab/lab_command.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char help[] =
    "usage: strobe lab plot [FOLDER] [--python PROGRAM] [--script FILE]\n"
    "\n"
    "Draws the figures of docs/lab.md into FOLDER (default docs/lab) as SVG and PNG: traffic against block size, traffic\n"
    "against length, FlashAttention-3's schedule, the errors in FP8, the roofline. Every number comes from this command, "
    "and\n"
    "each call is printed. Needs python3 with matplotlib 3.11.2:\n"
    "\n"
    "  python3 -m venv venv && venv/bin/pip install matplotlib==3.11.2\n"
    "  strobe lab plot --python venv/bin/python\n"
    "\n"
    "Exit code 77 if there is no such python or it has no matplotlib.\n";

enum { CANNOT_RUN = 127 };

/* The script of this source tree, seen from here or from where it was built. */
static const char *find_script(void) {
    static const char *const places[] = {"lab/plot.py", STROBE_LAB_PLOT};
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

/* The program's exit code; CANNOT_RUN if it cannot be started. */
static int run(char *const *arguments) {
    pid_t child = 0;
    int status = 0;
    if (posix_spawnp(&child, arguments[0], NULL, NULL, arguments, environ)) return CANNOT_RUN;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return CANNOT_RUN;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_WRONG;
}

int lab_plot(int argc, char **argv) {
    enum { PYTHON = 1, SCRIPT };
    static const struct option options[] = {{"python", required_argument, NULL, PYTHON},
                                            {"script", required_argument, NULL, SCRIPT},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *python = "python3", *script = find_script();
    for (int option; (option = next_option("lab plot", argc, argv, "h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        *(option == PYTHON ? &python : &script) = optarg;
    }
    if (!script) return lab_complain("plot", "lab/plot.py is not here; run this in a checkout, or name it with --script");
    if (argc - optind > 1) return lab_complain("plot", "one folder is accepted");

    char self[4096], *words[5];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return lab_complain("plot", "/proc/self/exe cannot be read");
    self[length] = 0;
    const char *parts[] = {python, script, self, optind < argc ? argv[optind] : "docs/lab"};
    for (int i = 0; i < 4; ++i)
        memcpy(&words[i], &parts[i], sizeof words[i]); /* posix_spawn takes char *, and leaves them */
    words[4] = NULL;
    const int code = run(words);
    if (code != CANNOT_RUN) return code;
    fprintf(stderr, "strobe lab plot: %s cannot be started\n", python);
    return EXIT_SKIPPED;
}
