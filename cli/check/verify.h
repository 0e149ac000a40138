/* SPDX-License-Identifier: BSD-3-Clause
 *
 * verify.h: one kernel on one problem against the oracle. A result is right when
 *   - every output is within its allowance of the float64 reference (compare.h), although keys and values that no row sees,
 *     rows that do not exist and the gaps between rows hold NaN;
 *   - every byte around and between the outputs' elements is untouched, and so is memory around the workspace;
 *   - one thread, two, three and a loop of the caller's own give the same bits. */
#ifndef STROBE_CLI_VERIFY_H
#define STROBE_CLI_VERIFY_H

#include "check/compare.h"
#include "check/oracle.h"

typedef enum verdict { VERDICT_PASSED, VERDICT_FAILED, VERDICT_REFUSED } verdict;

typedef struct verification {
    verdict verdict;
    char sentence[PROBLEM_MESSAGE]; /* why it failed or was refused */
    tensor_id worst;                /* the output nearest to, or furthest past, its allowance */
    double error, allowance, ratio; /* its error, and error / allowance */
    double relative;                /* the worst row's relative error among the outputs that are tensors of rows */
} verification;

/* in has been poisoned after the oracle was made from it. The oracle is refined if the verdict hangs on it. */
verification verify_kernel(const inputs *in, oracle *o, const char *kernel);

/* One output: its difference, and its error over the allowance, which is at most 1 when it is right. Keeps the worst. */
double verify_output(verification *v, const inputs *in, oracle *o, tensor_id id, const buffer *result, difference *d);

#endif
