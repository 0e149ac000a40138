/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel_table.h: the walk over the library's kernels that tests share. */
#ifndef STROBE_TESTS_UNIT_KERNEL_TABLE_H
#define STROBE_TESTS_UNIT_KERNEL_TABLE_H

#include "problem_fixture.h"

enum { MOST_KERNELS = 32 };

/* Names of the CPU's kernels of an operation that this machine can run and that take the problem, reference and standard
 * ones included; how many. */
int kernels_for(struct fixture *f, strobe_operation operation, const char *names[MOST_KERNELS]);

/* It computes in float64, or it is standard attention: what others are measured by. */
bool is_yardstick(const char *kernel);

#endif
