/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launch.h: from a problem to what kernels are given, and the launch itself. */
#ifndef STROBE_CUDA_LAUNCH_H
#define STROBE_CUDA_LAUNCH_H

#include "core/kernel.h"
#include "cuda/device/params.h"

/* A kernel as compiled for an element type and head dim; from the cuda_*_variants.h that the build writes. */
struct variant {
    int32_t dtype, dim, dim_v;
    int32_t features;   /* 0: takes problems with nothing but a band */
    int32_t few_rows;   /* for 16 packed rows at most */
    int32_t small;      /* beside it there is one of larger tiles, better for long sequences */
    int32_t rows, keys; /* of a block of threads */
    int32_t threads, shared_bytes;
    void (*symbol)(struct params p);
};

/* NULL, or why no kernel of this folder takes the problem. */
const char *strobe__cuda_refuses(const struct problem *problem);

/* Whether something beside the band changes scores or weights, or a tensor's rows do not start at multiples of 16 bytes, or
 * dK and dV are of another type than K and V or not of whole chunks of 16 bytes.
 * Asked without data, NULL is aligned: such a query may name another variant of the same kernel, with the same workspace. */
bool strobe__cuda_needs_features(const struct problem *problem);

/* Everything but tiles, slices, splits and workspace. */
struct params strobe__cuda_params(const struct problem *problem);

/* A tensor over scores, strides of batch, head and row. */
struct view strobe__cuda_scores_view(const void *data, const int64_t stride[3], int32_t dtype);

/* Every pointer of the problem is of the device. */
strobe_status strobe__cuda_check_pointers(const struct problem *problem, const struct execution *execution);

/* A grid of `blocks` blocks; params is what the symbol's kernel takes. */
strobe_status strobe__cuda_launch(void (*symbol)(void), int64_t blocks, int32_t threads, int32_t shared_bytes,
                                  const void *params, void *stream);

/* The same, for a kernel that itself waits for the one before it in the stream, see cuda/ptx/dependent.h, and may start
 * while that ends; from compute capability 9.0 on. */
strobe_status strobe__cuda_launch_early(void (*symbol)(void), int64_t blocks, int32_t threads, int32_t shared_bytes,
                                        const void *params, void *stream);

static inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

#endif
