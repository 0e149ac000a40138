/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launch.h: from a problem to what kernels are given, and the launch itself. */
#ifndef STROBE_CUDA_LAUNCH_H
#define STROBE_CUDA_LAUNCH_H

#include "core/kernel.h"
#include "cuda/device/cache.h"
#include "cuda/device/params.h"
#include "cuda/host/image.h"

/* Positions inside a sequence, and packed rows, are int on the device, with room for a tile. */
enum { MOST_ROWS = INT32_MAX - 1024 };

/* What kernel.reject() of every kernel of this backend asks: NULL, or a sentence. */
const char *strobe__cuda_reject(const struct problem *problem);

/* Whether something beside the band changes scores or weights, or a tensor's rows do not start at multiples of 16 bytes, or
 * dK and dV are of another type than K and V or not of whole chunks of 16 bytes.
 * Asked without data, NULL is aligned; strobe_workspace() also asks for data that are not. */
bool strobe__cuda_needs_features(const struct problem *problem);

/* Everything but tiles, slices, splits and workspace. */
struct params strobe__cuda_params(const struct problem *problem);

/* Its pages, left padding, and the scales of K and V. scale_block is meaningful where it is 0 or 1. */
struct cache strobe__cuda_cache(const struct problem *problem);

/* A tensor over scores, strides of batch, head and row. */
struct view strobe__cuda_scores_view(const void *data, const int64_t stride[3], int32_t dtype);

/* Every pointer of the problem is of the device. */
strobe_status strobe__cuda_check_pointers(const struct problem *problem, const struct execution *execution);

/* A grid of `blocks` blocks; params is what the kernel takes. */
strobe_status strobe__cuda_launch(struct cuda_kernel *kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                  const void *params, void *stream);

/* The same, for a kernel that itself waits for the one before it in the stream, see cuda/ptx/dependent.h, and may start
 * while that ends; from compute capability 9.0 on. */
strobe_status strobe__cuda_launch_early(struct cuda_kernel *kernel, int64_t blocks, int32_t threads, int32_t shared_bytes,
                                        const void *params, void *stream);

/* Of an element type as variants.cmake names it: the dtype of tensors and its bytes, whether products of fp32 are made of
 * tf32 parts, and the compiler's options. */
#define ELEMENT_OPTIONS_BF16   "ELEMENT_BF16"
#define ELEMENT_OPTIONS_FP16   "ELEMENT_FP16"
#define ELEMENT_OPTIONS_FP32   "ELEMENT_FP32"
#define ELEMENT_OPTIONS_TF32X3 "ELEMENT_FP32", "TF32X3"
enum { DTYPE_FP32 = STROBE_FP32, DTYPE_FP16 = STROBE_FP16, DTYPE_BF16 = STROBE_BF16, DTYPE_TF32X3 = STROBE_FP32 };
enum { BYTES_FP32 = 4, BYTES_FP16 = 2, BYTES_BF16 = 2, BYTES_TF32X3 = 4 };
enum { IS_TF32X3_FP32 = 0, IS_TF32X3_FP16 = 0, IS_TF32X3_BF16 = 0, IS_TF32X3_TF32X3 = 1 };

/* Whether it is a kernel of such products. */
static inline bool strobe__is_tf32x3(const struct kernel *kernel) { return (kernel->allowed_by & STROBE_TF32X3) != 0; }

static inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

#endif
