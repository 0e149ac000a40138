/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel.h: a kernel's record. Adding a kernel is one source file and one line in its backend's table; selection, tests,
 * benchmarks, `strobe info` and docs/support.md walk the same tables. See docs/adding-a-kernel.md. */
#ifndef STROBE_CORE_KERNEL_H
#define STROBE_CORE_KERNEL_H

#include "core/problem.h"

/* What a running kernel is given beside the problem. */
struct execution {
    void *workspace; /* as many bytes as kernel->workspace() said, 64-byte aligned */
    void *stream;
};

struct kernel {
    const char *name; /* one word, everywhere the same */
    const char *summary;
    strobe_operation operation;
    strobe_device device;
    bool by_name_only; /* a yardstick, never chosen by itself */

    /* NULL, or a sentence: why this machine cannot run it; why it does not take this problem. Neither touches data. */
    const char *(*unavailable)(void);
    const char *(*reject)(const struct problem *problem);

    size_t (*workspace)(const struct problem *problem);
    strobe_status (*run)(const struct problem *problem, const struct execution *execution);
};

/* A strobe_merge after it has been read and checked. */
struct merge {
    strobe_partials p; /* defaults filled in; parts are still the caller's */
    strobe_parallel parallel;
};

/* Part number index with its defaults filled in. */
strobe_partial strobe__merge_part(const struct merge *merge, int64_t index);

/* A backend: its kernels, best first, its device and merge, NULL where it has none of its own. */
struct backend {
    const struct kernel *kernels;
    size_t count;
    strobe_device device;
    /* Fills in device number index of the kind; false when there is none. */
    bool (*describe)(int32_t device, int32_t index, strobe_device_info *info);
    strobe_status (*merge)(const struct merge *merge, void *stream);
};

extern const struct backend strobe__cpu_backend;
extern const struct backend strobe__cuda_backend; /* where it is built */
extern const struct backend strobe__reference_backend;

/* Backends in the order of choice, NULL past the end; all their kernels in that order. */
const struct backend *strobe__backend(size_t index);
const struct kernel *strobe__kernel(size_t index);

#endif
