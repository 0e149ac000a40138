/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reference.h: the functions of this folder's kernels, each in the arithmetics of arithmetic.h. */
#ifndef STROBE_REFERENCE_REFERENCE_H
#define STROBE_REFERENCE_REFERENCE_H

#include "core/kernel.h"

size_t strobe__reference_forward_workspace(const struct plan *plan);
strobe_status strobe__reference_forward(const struct plan *plan, const struct execution *execution);
size_t strobe__reference_backward_workspace(const struct plan *plan);
strobe_status strobe__reference_backward(const struct plan *plan, const struct execution *execution);

size_t strobe__standard_forward_workspace(const struct plan *plan);
strobe_status strobe__standard_forward(const struct plan *plan, const struct execution *execution);
size_t strobe__standard_backward_workspace(const struct plan *plan);
strobe_status strobe__standard_backward(const struct plan *plan, const struct execution *execution);

/* The forward alone. */
size_t strobe__tensor_core_forward_workspace(const struct plan *plan);
strobe_status strobe__tensor_core_forward(const struct plan *plan, const struct execution *execution);

#endif
