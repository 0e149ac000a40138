/* SPDX-License-Identifier: BSD-3-Clause
 *
 * roundings.h: what 16 bits cost attention that is rounded as FlashAttention-2 rounds it, as a relative error over a tensor:
 *
 *     forward    P = exp(S - max), rounded for P V but not for its row sum; O, once
 *     backward   P = exp(S - lse), rounded for dV; dS = P (dP - D) from P as it was, rounded for dQ and dK; each gradient,
 * once
 *
 * Everything else is float64. The rule of compare.h is about the largest error, and a kernel that rounds once too often
 * passes it: this one is about the whole tensor. */
#ifndef STROBE_CLI_ROUNDINGS_H
#define STROBE_CLI_ROUNDINGS_H

#include "check/compare.h"

/* Whether it is known what the problem's roundings cost: on a GPU and in 16 bits, tensors of enough elements, keys all
 * visible or causal, nothing else over scores. */
bool roundings_apply(const problem *p);

/* What the relative error of an output may be: 1.03 of what the roundings cost, and what two samples of so many errors
 * differ by. Infinite for lse, and where memory is short. in: of a backward with the out and lse that the kernel is given.
 */
double roundings_allow(const inputs *in, tensor_id id, const buffer *reference);

#endif
