/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reference_kernels.c: the table of the oracle and of standard attention, the last of the tables. They take whatever the
 * library can describe and compute, one element at a time. */
#include "reference/reference.h"

#define COMMON                                                                                               \
    (SHAPE_FEATURES | BAND_FEATURES | MASK_FEATURES | SCORE_FEATURES | VARLEN_FEATURES | FUNCTION_FEATURES | \
     FEATURE(SINKS) | FEATURE(DROPOUT))
#define FORWARD (COMMON | FEATURE(PAGED) | FEATURE(LEFTPAD_K) | FEATURE(LSE) | FEATURE(SCALES) | FEATURE(SCALES_Q))
#define BACKWARD \
    (COMMON | DTYPE_FEATURES | FEATURE(DSCORE) | FEATURE(DBIAS) | FEATURE(DSINKS) | FEATURE(DLSE) | FEATURE(DETERMINISTIC))

#define FLOATS (FP32 | FP16 | BF16)
#define ALL    (FLOATS | FP64)
#define LSES   (FP32 | FP64)
#define OF_GRADIENTS(of_q)                                                                                         \
    {                                                                                                              \
        .q = of_q, .kv = SAME, .out = ALL, .lse = LSES, .bias = ALL, .sinks = LSES, .dout = ALL, .gradients = ALL, \
        .dbias = ALL                                                                                               \
    }
#define ANY_SIZE .dim = DIM_LIMIT, .dim_v = DIM_V_LIMIT, .seq_q = ANY_NUMBER, .seq_k = ANY_NUMBER, .rows = ANY_NUMBER

static const struct kernel kernels[] = {
    {
        .name = "reference_forward",
        .summary = "the oracle: float64 arithmetic, one row at a time",
        .operation = STROBE_FORWARD,
        .features = FORWARD,
        .dtypes = {.q = ALL | FP8 | INT8, .kv = ALL | FP8 | INT8, .out = ALL, .lse = LSES, .bias = ALL, .sinks = LSES},
        ANY_SIZE,
        .workspace = strobe__reference_forward_workspace,
        .run = strobe__reference_forward,
    },
    {
        .name = "standard_forward",
        .summary = "standard attention in the tensors' dtype, plain loops: the yardstick of tolerances",
        .operation = STROBE_FORWARD,
        .by_name_only = true,
        .features = FORWARD,
        .dtypes = {.q = FLOATS | FP8 | INT8, .kv = ALL | FP8 | INT8, .out = ALL, .lse = LSES, .bias = ALL, .sinks = LSES},
        ANY_SIZE,
        .workspace = strobe__standard_forward_workspace,
        .run = strobe__standard_forward,
    },
    {
        .name = "tensor_core_forward",
        .summary = "attention of 16 bits with fp32 scores, summed as a GPU's tensor cores sum: the yardstick of their lse",
        .operation = STROBE_FORWARD,
        .by_name_only = true,
        .features = FORWARD,
        .dtypes = {.q = FP16 | BF16, .kv = ALL | FP8 | INT8, .out = ALL, .lse = LSES, .bias = ALL, .sinks = LSES},
        ANY_SIZE,
        .workspace = strobe__tensor_core_forward_workspace,
        .run = strobe__tensor_core_forward,
    },
    {
        .name = "reference_backward",
        .summary = "the oracle: float64 arithmetic, recomputes everything from q, k, v and dout",
        .operation = STROBE_BACKWARD,
        .features = BACKWARD,
        .dtypes = OF_GRADIENTS(ALL),
        ANY_SIZE,
        .workspace = strobe__reference_backward_workspace,
        .run = strobe__reference_backward,
    },
    {
        .name = "standard_backward",
        .summary = "gradients of standard attention in the tensors' dtype, plain loops",
        .operation = STROBE_BACKWARD,
        .by_name_only = true,
        .features = BACKWARD,
        .dtypes = OF_GRADIENTS(FLOATS),
        ANY_SIZE,
        .workspace = strobe__standard_backward_workspace,
        .run = strobe__standard_backward,
    },
};

const struct backend strobe__reference_backend = {
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .device = STROBE_CPU,
};
