/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array_gradients.h: what array_gradients.cu is given: the fp32 sums of the gradient of one array of the user's function,
 * and where they are stored. Valid as C and as CUDA C. */
#ifndef STROBE_CUDA_DEVICE_ARRAY_GRADIENTS_H
#define STROBE_CUDA_DEVICE_ARRAY_GRADIENTS_H

#include <stdint.h>

enum { ARRAY_GRADIENT_THREADS = 256 };

struct array_gradient {
    const float *sums; /* without gaps */
    void *to;
    int64_t count;
    int32_t dtype;
    int32_t extent[4], stride[4];
};

#endif
