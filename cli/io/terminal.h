/* SPDX-License-Identifier: BSD-3-Clause
 *
 * terminal.h: what differs when a person looks on: emphasis in tables, and a line of progress that overwrites itself. Both
 * only on a terminal; emphasis not where NO_COLOR is set (https://no-color.org) or the terminal is "dumb". */
#ifndef STROBE_CLI_TERMINAL_H
#define STROBE_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* Whether escape sequences for emphasis may go to the stream. */
bool terminal_emphasis(FILE *stream);

/* Replaces the line of progress on stderr; does nothing unless stderr is a terminal. */
void terminal_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Removes it; call before printing anything else. */
void terminal_progress_end(void);

#endif
