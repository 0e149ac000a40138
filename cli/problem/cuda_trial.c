/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_trial.c: copies of tensors on the GPU; see cuda_trial.h. */
#include "problem/cuda_trial.h"

#include "problem/cuda_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096, POISON = 0xFF };

static void *keep(device_copies *d, const void *from, size_t bytes) {
    void *memory = cuda_memory_copied(from, bytes);
    d->memory[d->count++] = memory;
    return memory;
}

/* Replaces data of each tensor by its place in a copy of the allocation that it lies in, its own or a lender's. */
static bool copy_tensors(device_copies *d, buffer *to, const buffer *from) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *owner = &from[id];
        if (!owner->bytes) continue;
        unsigned char *copy = keep(d, owner->bytes, owner->size);
        if (!copy) return false;
        for (int other = 0; other < TENSOR_COUNT; ++other)
            if (from[other].data >= owner->bytes && from[other].data < owner->bytes + owner->size &&
                (other == id || !from[other].bytes))
                to[other].data = copy + (from[other].data - owner->bytes);
        to[id].bytes = copy;
    }
    return true;
}

bool device_copies_create(device_copies *d, const inputs *in, const outputs *out, char *message, size_t capacity) {
    *d = (device_copies){.in = *in, .out = *out};
    if (!cuda_memory_open(message, capacity)) return false;
    bool ok = copy_tensors(d, d->in.tensor, in->tensor) && copy_tensors(d, d->out.tensor, out->tensor);
    for (int i = 0; i < 4; ++i)
        if (in->varlen_arrays[i]) {
            d->in.varlen_arrays[i] = keep(d, in->varlen_arrays[i], ((size_t)in->problem.batch + 1) * 8);
            ok = ok && d->in.varlen_arrays[i];
        }
    if (!ok) snprintf(message, capacity, "the tensors do not fit the memory of the GPU");
    return ok;
}

void device_copies_free(device_copies *d) {
    for (size_t i = 0; i < d->count; ++i) cuda_memory_free(d->memory[i]);
    d->count = 0;
}

static bool is_poison(const unsigned char *device, size_t bytes) {
    unsigned char guard[GUARD];
    if (!cuda_memory_copy_back(guard, device, bytes)) return false;
    for (size_t i = 0; i < bytes; ++i)
        if (guard[i] != POISON) return false;
    return true;
}

static strobe_status run_between_guards(const call *c, unsigned char *workspace, size_t bytes, char *message,
                                        size_t capacity) {
    const strobe_status status = c->backward ? strobe_backward(&c->attention, &c->gradients, workspace + GUARD, bytes, NULL)
                                             : strobe_forward(&c->attention, workspace + GUARD, bytes, NULL);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    if (!cuda_memory_wait(message, capacity)) return STROBE_DEVICE_ERROR;
    if (is_poison(workspace, GUARD) && is_poison(workspace + GUARD + bytes, GUARD)) return STROBE_OK;
    snprintf(message, capacity, "memory outside the workspace of %zu bytes was written", bytes);
    return STROBE_DEVICE_ERROR;
}

strobe_status device_copies_run(device_copies *d, const call *c, const outputs *out, char *message, size_t capacity) {
    size_t bytes = 0;
    strobe_status status = strobe_workspace(&c->attention, call_gradients(c), &bytes);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    unsigned char *workspace = cuda_memory_copied(NULL, bytes + 2 * GUARD);
    if (!workspace) {
        snprintf(message, capacity, "a workspace of %zu bytes could not be had on the GPU", bytes);
        return STROBE_OUT_OF_MEMORY;
    }
    status = run_between_guards(c, workspace, bytes, message, capacity);
    cuda_memory_free(workspace);
    for (int id = 0; id < TENSOR_COUNT && !status; ++id) {
        const buffer *b = &out->tensor[id];
        if (b->bytes && !cuda_memory_copy_back(b->bytes, d->out.tensor[id].bytes, b->size)) {
            snprintf(message, capacity, "results could not be copied from the GPU");
            status = STROBE_DEVICE_ERROR;
        }
    }
    return status;
}
