/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.h: what a person sees of a command that takes a while: which of its things is at work and about how long the rest
 * takes, on a line that overwrites itself; and what Ctrl-C does: the thing at work is finished, results so far are printed,
 * and the exit code is EXIT_STOPPED. A second Ctrl-C ends the process at once. */
#ifndef STROBE_CLI_PROGRESS_H
#define STROBE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds are guessed beforehand; what was done shows by how much the guesses are off. */
typedef struct progress {
    int64_t count, done;          /* of the things */
    double guessed, guessed_done; /* seconds of all, of what is done */
    double begun;                 /* on a clock that never goes back */
} progress;

/* From now on the first Ctrl-C is noted and does no more. guessed: seconds that all `count` things take. */
progress progress_begin(int64_t count, double guessed);

/* Shows "3 of 40, about 12 s left  " and the text, if stderr is a terminal. */
void progress_show(const progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A thing is done, or a part of one (finished false), which was guessed to take so long. */
void progress_add(progress *p, double guessed, bool finished);

/* The seconds left, `elapsed` after the beginning. */
double progress_left(const progress *p, double elapsed);

/* Whether Ctrl-C came since progress_begin(). */
bool progress_stopped(void);

/* If Ctrl-C came: says so on stderr, and of how many things the results are, such as "stopped: results are of 3 of 40
 * problems", and returns EXIT_STOPPED in place of EXIT_OK. Any other code stays. */
int progress_code(const progress *p, const char *things, int code);

#endif
