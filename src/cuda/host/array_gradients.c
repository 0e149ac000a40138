/* SPDX-License-Identifier: BSD-3-Clause
 *
 * array_gradients.c: see array_gradients.h. */
#include "cuda/host/array_gradients.h"

#include "cuda/device/array_gradients.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

CUDA_KERNEL(array_gradients);

static bool is_wanted(const struct problem *p, int n) { return p->g.dscore && p->score_call.wants_gradient[n]; }

static int64_t elements_of(const struct problem *p, int n) {
    int64_t count = 1;
    for (int axis = 0; axis < SCORE_AXES; ++axis) count = strobe__product(count, p->score_call.array[n].extent[axis]);
    return count;
}

size_t strobe__array_gradient_bytes(const struct problem *p) {
    size_t elements = 0;
    for (int n = 0; p->a.score && n < p->score_call.function->array_count; ++n)
        if (is_wanted(p, n)) elements += (size_t)elements_of(p, n);
    return elements * sizeof(float);
}

strobe_status strobe__array_gradients_begin(const struct problem *p, void *memory, struct score_values *values,
                                            void *stream) {
    const size_t bytes = strobe__array_gradient_bytes(p);
    float *at = memory;
    if (bytes == 0) return STROBE_OK;
    for (int n = 0; n < p->score_call.function->array_count; ++n) {
        if (!is_wanted(p, n)) continue;
        values->gradient[n] = at, values->wants_gradients = 1;
        at += elements_of(p, n);
    }
    return strobe__cuda_check(cudaMemsetAsync(memory, 0, bytes, (cudaStream_t)stream), "cudaMemsetAsync");
}

strobe_status strobe__array_gradients_end(const struct problem *p, const struct score_values *values, void *stream) {
    strobe_status status = STROBE_OK;
    for (int n = 0; n < p->score_call.function->array_count && !status; ++n) {
        const strobe_score_elements *to = &p->score_call.gradient[n];
        if (!values->gradient[n]) continue;
        struct array_gradient g = {
            .sums = values->gradient[n], .to = to->data, .count = elements_of(p, n), .dtype = to->dtype};
        for (int axis = 0; axis < SCORE_AXES; ++axis)
            g.extent[axis] = (int32_t)to->extent[axis], g.stride[axis] = (int32_t)to->stride[axis];
        status = strobe__cuda_launch(&strobe__kernel_array_gradients, ceil_div(g.count, ARRAY_GRADIENT_THREADS),
                                     ARRAY_GRADIENT_THREADS, 0, &g, stream);
    }
    return status;
}
