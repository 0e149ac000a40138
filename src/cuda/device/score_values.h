/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_values.h: what a call gives to the user's function of a score: the last member of the parameters of kernels that are
 * compiled with one (STROBE_SCORE_FUNCTION), which the host appends to the parameters of those without. Valid as C and as
 * CUDA C. */
#ifndef STROBE_CUDA_DEVICE_SCORE_VALUES_H
#define STROBE_CUDA_DEVICE_SCORE_VALUES_H

#include <stdint.h>

/* Where the member begins is a multiple of this, as no other parameter asks for more: rounded up to it, the end of the
 * others is the same with what follows their last member and without. */
enum { SCORE_VALUES_ALIGNMENT = 128, SCORE_ARRAYS = 16, SCORE_SCALARS = 32, SCORE_AXES = 4 };

#if defined(__cplusplus)
#define SCORE_VALUES_ALIGNED alignas(128)
#else
#define SCORE_VALUES_ALIGNED _Alignas(128)
#endif

struct score_values {
    SCORE_VALUES_ALIGNED const void *data[SCORE_ARRAYS];
    float *gradient[SCORE_ARRAYS];                                            /* sums without gaps; NULL: not wanted */
    int32_t stride[SCORE_ARRAYS][SCORE_AXES], last[SCORE_ARRAYS][SCORE_AXES]; /* last: the extent less one */
    float number[SCORE_SCALARS];
    int32_t integer[SCORE_SCALARS];
    int32_t q_start, k_start, wants_gradients;
};

#endif
