/* SPDX-License-Identifier: BSD-3-Clause
 *
 * verify.h: one kernel on one problem against the oracle. A result is right when
 *   - every output is within its allowance of the float64 reference (compare.h), although keys and values that no row sees,
 *     rows that do not exist and the gaps between rows hold NaN;
 *   - on a GPU, in 16 bits, its relative error over a whole tensor is what FlashAttention-2's roundings cost (roundings.h);
 *   - every byte around and between the outputs' elements is untouched, and so is memory around the workspace;
 *   - one thread, two, three and a loop of the caller's own, a fresh thread, a stream of its own, a graph that is launched
 *     twice and any workspace give the same bits;
 *   - the kernel itself answered: one that hands its work to another has not been checked. It may where numbers are not the
 *     usual ones: rows see a NaN, values= or scale= ask for others. */
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
    double raised;                  /* how many times an allowance was raised after a miss, at most; 0: none was */
    double whole[TENSOR_COUNT];     /* each output's relative error over the whole tensor, over that of standard attention */
    char helper[PROBLEM_KERNEL];    /* the kernel that answered instead, "" if none */
} verification;

/* in has been poisoned after the oracle was made from it. The oracle is refined if the verdict hangs on it. */
verification verify_kernel(const inputs *in, oracle *o, const char *kernel);

/* The problem's own kernel on inputs made for it. An allowance is made from the largest errors of a sample, so that one
 * problem in some ten thousand misses it by little: a miss of less than a tenth is none if the same problem with three other
 * seeds is right, and counts as an allowance that was raised. */
verification verify_problem(const problem *p);

/* One output: its difference, and its error over the allowance, which is at most 1 when it is right. Keeps the worst. */
double verify_output(verification *v, const inputs *in, oracle *o, tensor_id id, const buffer *result, difference *d);

#endif
