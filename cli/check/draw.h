/* SPDX-License-Identifier: BSD-3-Clause
 *
 * draw.h: random problems, whole calls and not shapes. Problem number n of a seed is always the same, whatever was drawn
 * before it and however fast it is run. */
#ifndef STROBE_CLI_DRAW_H
#define STROBE_CLI_DRAW_H

#include "check/coverage.h"

typedef struct draw_request {
    uint64_t seed;
    int64_t device;
    const char *only_kernel; /* NULL: any */
} draw_request;

/* Draws problem number `index` and the kernel that is to answer it, which stands in p->kernel. Kernels that take little are
 * given several problems to choose from; each refusal is counted. STROBE_UNSUPPORTED, with the sentence, if the last one
 * is refused as well. Any other status is a fault of the library's: every problem that is drawn is a legal one. */
strobe_status draw_problem(const draw_request *request, const kernel_list *kernels, uint64_t index, problem *p,
                           coverage *count, char *message, size_t capacity);

#endif
