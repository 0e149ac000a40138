/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reference_kernels.c: the table of the oracle and of standard attention, the last of the tables. */
#include "core/refusals.h"
#include "reference/reference.h"

static const char *reject_reference(const struct problem *p) {
    const char *reason = strobe__refuse_split_keys(p);
    return reason ? reason : strobe__refuse_cache(p);
}

static const char *reject_standard(const struct problem *p) {
    const char *reason = strobe__refuse_fp64(p);
    return reason ? reason : reject_reference(p);
}

static const char *reject_standard_backward(const struct problem *p) {
    const char *reason = reject_standard(p);
    return reason ? reason : strobe__refuse_what_is_to_come(p);
}

static const struct kernel kernels[] = {
    {
        .name = "reference_forward",
        .summary = "the oracle: float64 arithmetic, one row at a time",
        .operation = STROBE_FORWARD,
        .reject = reject_reference,
        .workspace = strobe__reference_forward_workspace,
        .run = strobe__reference_forward,
    },
    {
        .name = "standard_forward",
        .summary = "standard attention in the tensors' dtype, plain loops: the yardstick of tolerances",
        .operation = STROBE_FORWARD,
        .by_name_only = true,
        .reject = reject_standard,
        .workspace = strobe__standard_forward_workspace,
        .run = strobe__standard_forward,
    },
    {
        .name = "reference_backward",
        .summary = "the oracle: float64 arithmetic, recomputes everything from q, k, v and dout",
        .operation = STROBE_BACKWARD,
        .reject = strobe__refuse_what_no_kernel_has,
        .workspace = strobe__reference_backward_workspace,
        .run = strobe__reference_backward,
    },
    {
        .name = "standard_backward",
        .summary = "gradients of standard attention in the tensors' dtype, plain loops",
        .operation = STROBE_BACKWARD,
        .by_name_only = true,
        .reject = reject_standard_backward,
        .workspace = strobe__standard_backward_workspace,
        .run = strobe__standard_backward,
    },
};

const struct backend strobe__reference_backend = {
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .device = STROBE_CPU,
};
