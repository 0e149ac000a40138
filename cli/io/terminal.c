/* SPDX-License-Identifier: BSD-3-Clause
 *
 * terminal.c: emphasis and progress on a terminal; see terminal.h. */
#include "io/terminal.h"

#include "portable/posix.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ERASE_LINE "\r\033[K"
enum { PROGRESS_WIDTH = 100 }; /* a longer line would wrap, and a wrapped line cannot be overwritten */

static bool is_dumb(void) {
    const char *term = getenv("TERM");
    return !term || !*term || strcmp(term, "dumb") == 0;
}

bool terminal_emphasis(FILE *stream) {
    const char *no_color = getenv("NO_COLOR");
    return isatty(fileno(stream)) && !is_dumb() && !(no_color && *no_color);
}

static bool shows_progress(void) { return isatty(STDERR_FILENO) && !is_dumb(); }

void terminal_progress(const char *format, ...) {
    if (!shows_progress()) return;
    char line[PROGRESS_WIDTH];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, ERASE_LINE "%s", line);
    fflush(stderr);
}

void terminal_progress_end(void) {
    if (shows_progress()) fputs(ERASE_LINE, stderr);
}
