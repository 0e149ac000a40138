/* SPDX-License-Identifier: BSD-3-Clause
 *
 * status.c: status names and the sentence of the last error, one a thread. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

static const char *const status_names[] = {
    [STROBE_OK] = "ok",
    [STROBE_INVALID_ARGUMENT] = "invalid argument",
    [STROBE_UNSUPPORTED] = "unsupported",
    [STROBE_OUT_OF_MEMORY] = "out of memory",
    [STROBE_WORKSPACE_TOO_SMALL] = "workspace too small",
    [STROBE_DEVICE_ERROR] = "device error",
};

strobe_status strobe__fail(strobe_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *strobe_status_name(strobe_status status) {
    const size_t index = (size_t)status;
    return index < sizeof status_names / sizeof status_names[0] ? status_names[index] : "unknown status";
}

const char *strobe_last_error(void) { return last_error; }
