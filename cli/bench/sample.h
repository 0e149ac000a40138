/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.h: a check for problems too large for the reference. The kernel runs on the whole problem; the reference runs on a
 * few windows of rows of single heads, posed as problems of their own:
 *
 *     rows [i0, i0 + n) of query head h of batch entry b against all keys of that sequence
 *     who sees whom     a boolean mask, worked out row by row (visible.h)
 *     ALiBi             q_start' = q_start + i0 + n - rows: its distance counts from the bottom-right diagonal
 *     dropout           the window's place in the larger problem's mask
 *     bias              the window's rows
 *
 * Backward: dout and dlse are zero outside the window, so that the window's problem has all of dk, dv, dbias and dsinks, and
 * every other gradient must be zero. */
#ifndef STROBE_CLI_SAMPLE_H
#define STROBE_CLI_SAMPLE_H

#include "check/verify.h"

/* Backward: in has the out and lse of a forward; its dout and dlse are overwritten. */
verification sample_verify(inputs *in, const outputs *out, const char *kernel);

#endif
