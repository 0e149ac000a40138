/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_trial.h: a call on the GPU for tensors that lie in the host's memory: they are copied there with their guard bands,
 * the call runs on the copies, what it wrote comes back. */
#ifndef STROBE_CLI_CUDA_TRIAL_H
#define STROBE_CLI_CUDA_TRIAL_H

#include "problem/manner.h"

typedef struct device_copies {
    inputs in; /* as the caller's, with pointers of the device; to be handed to call_prepare */
    outputs out;
    inputs host_in;
    size_t from[2][TENSOR_COUNT]; /* inputs, outputs: where in the host's allocation that of the device begins */
    bool fenced;
    void *memory[2 * TENSOR_COUNT + 6];
    size_t count;
} device_copies;

/* fenced: without guard bands, beside pages that are mapped to nothing (cuda_fence.h), behind the tensors of most problems
 * and before those of the others; where the driver has no such pages, as if not. False, with a sentence, if there is no
 * device or too little memory. device_copies_free either way. */
bool device_copies_create(device_copies *d, const inputs *in, const outputs *out, bool fenced, char *message,
                          size_t capacity);
void device_copies_free(device_copies *d);

/* Runs the prepared call on the copies, with the workspace that it asks for between guard bands, or fenced as the copies
 * are, and brings the outputs back, guard bands included. */
strobe_status device_copies_run(device_copies *d, call *c, const outputs *out, const manner *how, char *message,
                                size_t capacity);

#endif
