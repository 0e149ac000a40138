/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare.h: how far a result is from the reference, and how far it may be. The rule is that of the flash-attn tests:
 *
 *     max |result - reference| <= factor * max |standard - reference| + 2 * rounding
 *
 * reference: float64 on the same, already rounded inputs. standard: plain attention in the inputs' dtype (oracle.h says what
 * its error takes in). factor: 2, with softcap 3. rounding: half a step at |r| + 0.3 for the reference's largest element r
 * in the coarser of the result's dtype and the inputs': the bound of what those tests measure as |(r + 0.3 - 0.3) - r|,
 * which is 0 where a few elements happen to keep their binade. No tolerance is typed in by hand. */
#ifndef STROBE_CLI_COMPARE_H
#define STROBE_CLI_COMPARE_H

#include "problem/inputs.h"

typedef struct difference {
    double error;    /* largest |result - reference|; infinite where one is NaN or infinite and the other is not the same */
    double finite;   /* largest that is not infinite */
    double whole;    /* |result - reference| / |reference| of the whole tensor in the Euclidean norm */
    double relative; /* largest |result - reference| / |reference| of a row not 0, both in the Euclidean norm */
    int64_t batch, row, head, column; /* where the largest error is */
} difference;

/* Over the existing rows of the tensor. The buffers may differ in layout and dtype. */
difference compare(const inputs *in, tensor_id id, const buffer *result, const buffer *reference);

/* Whether a result of more digits than dtype has shows none of them where the reference does: it was rounded on its way. */
bool compare_finds_rounded(const inputs *in, tensor_id id, const buffer *result, const buffer *reference, int64_t dtype);

/* The largest rounding of the reference's elements in a dtype. */
double compare_rounding(const inputs *in, tensor_id id, const buffer *reference, int64_t dtype);

/* What may be, from the standard's error. One that is not finite allows nothing. */
double compare_allowance(const problem *p, double standard_error, double rounding);

/* error / allowance, 0 for 0 / 0: at most 1 is right. */
double compare_ratio(double error, double allowance);

#endif
