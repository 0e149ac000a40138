/* SPDX-License-Identifier: BSD-3-Clause
 *
 * error.c: the sentence of the last error, one a thread. A library of its own has a sentence of its own: the core library's
 * cannot be set from outside. */
#include <stdarg.h>
#include <stdio.h>

#include "dist.h"

static _Thread_local char last_error[768];

strobe_status strobe__dist_fail(strobe_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

strobe_status strobe__dist_core(strobe_status status) {
    return status ? strobe__dist_fail(status, "%s", strobe_last_error()) : STROBE_OK;
}

strobe_status strobe__dist_no_memory(void) {
    return strobe__dist_fail(STROBE_OUT_OF_MEMORY, "host memory for lists of who needs what could not be allocated");
}

const char *strobe_dist_last_error(void) { return last_error; }
