/* SPDX-License-Identifier: BSD-3-Clause
 *
 * validate.h: the pieces of strobe__problem_validate and what strobe_merge shares with it. */
#ifndef STROBE_CORE_VALIDATE_H
#define STROBE_CORE_VALIDATE_H

#include "core/problem.h"

/* Returns from the calling check when `check` refuses. */
#define TRY(check)                                      \
    do {                                                \
        const strobe_status try_status = (check);       \
        if (try_status != STROBE_OK) return try_status; \
    } while (0)

/* A set of dtypes, as bits. */
#define DTYPE_BIT(dtype) (1u << (dtype))
#define FLOAT_DTYPES     (DTYPE_BIT(STROBE_FP32) | DTYPE_BIT(STROBE_FP16) | DTYPE_BIT(STROBE_BF16) | DTYPE_BIT(STROBE_FP64))
#define INPUT_DTYPES     (FLOAT_DTYPES | DTYPE_BIT(STROBE_FP8_E4M3) | DTYPE_BIT(STROBE_INT8))
#define LSE_DTYPES       (DTYPE_BIT(STROBE_FP32) | DTYPE_BIT(STROBE_FP64))

#define LARGEST_START ((int64_t)1 << 59)

/* A tensor argument, as it is to be checked. */
struct tensor_check {
    const char *name;
    const strobe_tensor *tensor;
    int64_t extent[3]; /* batch, sequence, head */
    int64_t inner;     /* elements of the innermost, contiguous axis */
    uint32_t dtypes;
    bool written;
    bool optional; /* data may be NULL although there are elements */
};

strobe_status strobe__check_tensor(const struct tensor_check *check, bool runs);
strobe_status strobe__check_dtype(const char *name, int32_t dtype, uint32_t accepted);
strobe_status strobe__check_range(const char *name, int64_t value, int64_t least, int64_t most);
/* NULL, or not a multiple of the element's size: refused. */
strobe_status strobe__check_pointer(const char *name, const void *data, size_t element_bytes);

/* The optional structures: validate_features.c. */
strobe_status strobe__check_features(const struct problem *problem);
/* Lists made of masks: mask_lists.c. */
strobe_status strobe__check_mask_lists(const struct problem *problem);
/* caller's threads; shared with merge. */
strobe_status strobe__check_parallel(const strobe_parallel *parallel);

#endif
