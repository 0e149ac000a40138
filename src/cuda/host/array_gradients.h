/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array_gradients.h (host): gradients of the arrays of the user's function: kernels add to fp32 sums in the workspace, which
 * are rounded at the end. */
#ifndef STROBE_CUDA_HOST_ARRAY_GRADIENTS_H
#define STROBE_CUDA_HOST_ARRAY_GRADIENTS_H

#include "core/kernel.h"
#include "cuda/device/score_values.h"

/* Bytes of workspace for the sums; 0 when no gradient is wanted. */
size_t strobe__array_gradient_bytes(const struct problem *problem);

/* Sets the sums, which lie at `memory`, to 0, and tells the kernels where they are. */
strobe_status strobe__array_gradients_begin(const struct problem *problem, void *memory, struct score_values *values,
                                            void *stream);

/* Stores the gradients. */
strobe_status strobe__array_gradients_end(const struct problem *problem, const struct score_values *values, void *stream);

#endif
