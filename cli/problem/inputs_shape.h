/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_shape.h: what inputs.c, inputs_fill.c and call.c share about a problem's tensors; clients read inputs.h. */
#ifndef STROBE_CLI_INPUTS_SHAPE_H
#define STROBE_CLI_INPUTS_SHAPE_H

#include "problem/inputs.h"

/* Extent, stride and dtype of a tensor, no memory. in->total_q and total_k must be known. */
void inputs_shape(const inputs *in, tensor_id id, buffer *b);

/* Whether the problem has the tensor, among what its operation writes or among what it reads. */
bool inputs_has(const problem *p, tensor_id id, bool output);

/* The tensor whose first columns this one is, with v_in_k; else itself. */
tensor_id inputs_lies_in(const problem *p, tensor_id id);

/* The tensor in whose memory this one lies under layout=packed, possibly itself; else TENSOR_COUNT. */
tensor_id inputs_is_packed_with(const problem *p, tensor_id id);
int64_t inputs_packed_width(const problem *p);

/* Allocates the tensors that the operation writes, or those that it reads. */
bool inputs_allocate(const inputs *in, buffer tensors[TENSOR_COUNT], bool outputs_wanted, char *message, size_t capacity);

#endif
