/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random_check.h: `strobe check --random`: random problems on all cores for some seconds. */
#ifndef STROBE_CLI_RANDOM_CHECK_H
#define STROBE_CLI_RANDOM_CHECK_H

#include "check/draw.h"

typedef struct random_request {
    double seconds;
    draw_request draw;
    int64_t most_cases; /* 0: as many as fit the time */
    table_format format;
    char **arguments; /* the command's, "check" first: it may have to be started anew */
} random_request;

/* The exit code of the command. */
int random_check(const random_request *request);

#endif
