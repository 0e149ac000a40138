/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.c: plan() is a pure function of the problem and the machine: the first kernel in table order that is available, is
 * not by name only, and does not reject. `strobe explain` prints the same walk. */
#include "core/plan.h"

#include <stdio.h>
#include <string.h>

static const struct backend *const backends[] = {
    &strobe__cpu_backend,
#if defined(STROBE_CUDA_BUILD)
    &strobe__cuda_backend,
#endif
    &strobe__reference_backend,
};

const struct backend *strobe__backend(size_t index) {
    return index < sizeof backends / sizeof backends[0] ? backends[index] : NULL;
}

const struct kernel *strobe__kernel(size_t index) {
    const struct backend *backend;
    for (size_t b = 0; (backend = strobe__backend(b)) != NULL; ++b) {
        if (index < backend->count) return &backend->kernels[index];
        index -= backend->count;
    }
    return NULL;
}

bool strobe__is_candidate(const struct kernel *kernel, const struct problem *problem) {
    return kernel->operation == problem->operation && (int32_t)kernel->device == problem->a.device;
}

const char *strobe__refusal(const struct kernel *kernel, const struct problem *problem) {
    const char *name = problem->tuning.kernel;
    if (name && strcmp(name, kernel->name) != 0) return "tuning.kernel names another";
    if (!name && kernel->by_name_only) return "only chosen by name, a yardstick";
    const char *reason = kernel->unavailable ? kernel->unavailable() : NULL;
    return reason ? reason : kernel->reject(problem);
}

/* The only candidate that was asked for has a reason of its own; otherwise the last one in the table, the most general. */
static strobe_status refuse(const struct problem *problem, const struct kernel *last, const char *reason) {
    if (!last)
        return strobe__fail(STROBE_UNSUPPORTED,
                            "device is %d (CUDA), for which this build has no kernel; 0 (the CPU) is accepted",
                            problem->a.device);
    return strobe__fail(STROBE_UNSUPPORTED, "no kernel takes this problem; %s: %s", last->name, reason);
}

static strobe_status plan_by_name(const struct problem *problem, const struct kernel **chosen) {
    for (size_t index = 0; (*chosen = strobe__kernel(index)) != NULL; ++index) {
        if (strcmp((*chosen)->name, problem->tuning.kernel) != 0 || !strobe__is_candidate(*chosen, problem)) continue;
        const char *reason = strobe__refusal(*chosen, problem);
        return reason ? refuse(problem, *chosen, reason) : STROBE_OK;
    }
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "tuning.kernel is \"%s\"; the name of a kernel of this operation and device is accepted "
                        "(strobe_kernel_at lists them)",
                        problem->tuning.kernel);
}

strobe_status strobe__plan(const struct problem *problem, const struct kernel **chosen) {
    if (problem->tuning.kernel) return plan_by_name(problem, chosen);
    const struct kernel *kernel, *last = NULL;
    const char *reason = NULL;
    for (size_t index = 0; (kernel = strobe__kernel(index)) != NULL; ++index) {
        if (!strobe__is_candidate(kernel, problem) || kernel->by_name_only) continue;
        reason = strobe__refusal(kernel, problem);
        last = kernel;
        if (!reason) {
            *chosen = kernel;
            return STROBE_OK;
        }
    }
    return refuse(problem, last, reason);
}

size_t strobe__plan_text(const struct problem *problem, char *text, size_t capacity) {
    const struct kernel *kernel;
    size_t length = 0;
    bool chosen = false;
    for (size_t index = 0; (kernel = strobe__kernel(index)) != NULL; ++index) {
        if (!strobe__is_candidate(kernel, problem)) continue;
        const char *reason = strobe__refusal(kernel, problem);
        if (!reason) reason = chosen ? "not needed, one before it was chosen" : "chosen";
        chosen = chosen || strcmp(reason, "chosen") == 0;
        const size_t room = length < capacity ? capacity - length : 0;
        length += (size_t)snprintf(room ? text + length : NULL, room, "%s: %s\n", kernel->name, reason);
    }
    if (capacity && length == 0) text[0] = 0;
    return length;
}
