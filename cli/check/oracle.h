/* SPDX-License-Identifier: BSD-3-Clause
 *
 * oracle.h: the right answer to a problem's inputs, and how far from it each output may be.
 *
 *     inputs  --float64-->  reference_*  -->  reference            the answer
 *     inputs  ----------->  standard_*   -->  its error            what the dtype costs a plain implementation
 *                                             allowance[tensor]    from it, by compare.h
 *
 * Four things that a plain reading of the rule would get wrong:
 * - lse is fp32 whatever the dtype of q, so its allowance comes from the standard run in fp32.
 * - Backward reads out and lse, rounded; the standard recomputes both, and its errors cancel where a kernel's cannot.
 *   Gradients are linear in (dout, dlse), so what rounding does to them is known to first order from one more run of the
 *   reference (oracle.c), and is added to the standard's error.
 * - The largest error of a few hundred numbers is itself random, by a factor of two and more. Before a kernel is found
 *   wrong, the standard is measured on the same problem with other seeds, until it has seen some thousands of rows, and in
 *   fp32 on the same inputs with other roundings. The kernel's own result has no part in this: one that is wrong misses the
 *   raised allowance as well.
 * - Q may be multiplied by the softmax's scale and by log2(e), K and V by scales of theirs, before the products or after,
 *   as the standard does; the error of the one that does it before, in fp32, is taken in. */
#ifndef STROBE_CLI_ORACLE_H
#define STROBE_CLI_ORACLE_H

#include "problem/inputs.h"

typedef struct oracle {
    outputs reference;                   /* float64 */
    double standard_error[TENSOR_COUNT]; /* largest error of a plain implementation in the dtype */
    double standard_whole[TENSOR_COUNT]; /* its relative error over the whole tensor */
    double allowance[TENSOR_COUNT];
    bool refined; /* the allowances were raised after a miss, to what other seeds and other roundings show */
} oracle;

/* Seconds, about, that reference and standard attention take for the problem, which are most of a check. */
double oracle_seconds(const problem *p);

/* Backward: sets in's out and lse to the float64 forward's, rounded. False, with a sentence, when memory is short or a
 * kernel refuses; oracle_free either way. */
bool oracle_create(oracle *o, inputs *in, char *message, size_t capacity);
void oracle_free(oracle *o);

/* Measures the standard on other seeds, and in fp32 on moved inputs, too and raises the allowances to match; once. */
void oracle_refine(oracle *o, const inputs *in);

#endif
