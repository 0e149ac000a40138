/* SPDX-License-Identifier: BSD-3-Clause
 *
 * commands.h: the commands of `strobe` and their exit codes. main.c dispatches to these; each gets argv with its own name in
 * argv[0], prints its --help, and returns one of the codes. */
#ifndef STROBE_CLI_COMMANDS_H
#define STROBE_CLI_COMMANDS_H

enum {
    EXIT_OK = 0,
    EXIT_WRONG = 1,    /* a result is wrong, or measured wrong */
    EXIT_REFUSED = 2,  /* usage, a bad file, or a problem that is refused */
    EXIT_SKIPPED = 77, /* this machine lacks what the command needs: automake's and ctest's code for "skipped" */
    EXIT_STOPPED = 130 /* by Ctrl-C, with what was done until then: the shell's code for it, 128 + SIGINT */
};

int cmd_info(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_mask(int argc, char **argv);
int cmd_quantise(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_lab(int argc, char **argv);

#endif
