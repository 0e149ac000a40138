/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_values.h: numbers that are not standard normal: what values=, scales=, sinks=, bias_hides and nan say. For
 * inputs_fill.c; clients read inputs.h. */
#ifndef STROBE_CLI_INPUTS_VALUES_H
#define STROBE_CLI_INPUTS_VALUES_H

#include "problem/inputs.h"
#include "problem/random.h"

/* Turns a row of standard normal numbers into what values= asks for; r draws more. */
void values_shape_row(const inputs *in, tensor_id id, int64_t batch, int64_t row, float *normal, random_stream *r);

/* Every element of the tensors of scales, where the problem's scales= says which keys share one. */
void values_fill_scales(inputs *in);

/* After all is filled: sinks and bias of -inf, large sinks, a NaN that rows see. */
void values_add_extremes(inputs *in);

#endif
