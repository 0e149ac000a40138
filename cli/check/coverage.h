/* SPDX-License-Identifier: BSD-3-Clause
 *
 * coverage.h: what random checks have run: kernels with features, features with each other. All of it lies in memory that
 * processes share, and is counted by atomic additions. */
#ifndef STROBE_CLI_COVERAGE_H
#define STROBE_CLI_COVERAGE_H

#include "check/features.h"
#include "io/table.h"

enum { MOST_KERNELS = 64 };

typedef struct kernel_name {
    char name[PROBLEM_KERNEL];
    int32_t operation;
    bool runs, by_name_only; /* on this machine; never chosen by itself */
} kernel_name;

/* The kernels of a device, copied from the library's table. */
typedef struct kernel_list {
    kernel_name items[MOST_KERNELS];
    int count;
} kernel_list;

void kernel_list_find(kernel_list *list, int64_t device);
int kernel_list_index(const kernel_list *list, const char *name); /* -1: none */

typedef struct coverage {
    uint32_t ran[MOST_KERNELS][MOST_FEATURES];     /* cases of a kernel with a feature */
    uint32_t refused[MOST_KERNELS][MOST_FEATURES]; /* problems with it that the kernel did not take */
    uint32_t pairs[MOST_FEATURES][MOST_FEATURES];  /* cases with both */
    uint32_t refusals[MOST_KERNELS];
} coverage;

void coverage_count_case(coverage *c, int kernel, const problem *p);
void coverage_count_refusal(coverage *c, int kernel, const problem *p);

/* Features that the kernel has run with, of those that it could be asked for. */
int coverage_features(const coverage *c, const kernel_list *kernels, int kernel, int *of);

/* What was never drawn, and what each kernel refused each time. */
void coverage_print(const coverage *c, const kernel_list *kernels);

#endif
