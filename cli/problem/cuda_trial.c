/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_trial.c: copies of tensors on the GPU; see cuda_trial.h. */
#include "problem/cuda_trial.h"

#include "problem/cuda_driver.h"
#include "problem/cuda_fence.h"
#include "problem/cuda_memory.h"
#include "problem/element.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strobe/strobe_score.h"

/* UNIT: kernels take tensors by their address modulo 16 bytes; WORKSPACE_UNIT: that of every workspace. */
enum { GUARD = 4096, POISON = 0xFF, UNIT = 16, WORKSPACE_UNIT = 64 };

static void *keep(device_copies *d, const void *from, size_t bytes) {
    void *memory = cuda_memory_copied(from, bytes);
    d->memory[d->count++] = memory;
    return memory;
}

/* Whether a tensor lies in an allocation: its own or a lender's. */
static bool lies_in(const buffer *owner, const buffer *b) {
    return b->data >= owner->bytes && b->data < owner->bytes + owner->size && (b == owner || !b->bytes);
}

/* Widens [*first, *end) by the bytes from the first to the last element of a tensor. */
static void add_elements(const buffer *b, const unsigned char **first, const unsigned char **end) {
    const int64_t width = (int64_t)element_bytes(b->dtype);
    int64_t low = 0, high = b->extent[3] * width;
    for (int axis = 0; axis < 3; ++axis) {
        const int64_t reach = (b->extent[axis] - 1) * b->stride[axis] * width;
        if (b->extent[axis] == 0) return;
        *(reach < 0 ? &low : &high) += reach;
    }
    if (high == low) return;
    if (!*end || b->data + low < *first) *first = b->data + low;
    if (!*end || b->data + high > *end) *end = b->data + high;
}

/* Most accesses outside are behind a tensor. The side is the problem's, so that a problem that failed fails again. */
static fence_side side_of(const problem *p) {
    const int64_t mixed = p->batch + 3 * p->seq_q + 5 * p->seq_k + 7 * p->heads_q + p->dim / 8 + p->mask + p->operation;
    return mixed % 4 ? FENCE_BEHIND : FENCE_BEFORE;
}

/* A fenced copy; NULL where it cannot be had. */
static void *fence(const device_copies *d, const void *from, size_t bytes, uintptr_t address, size_t unit) {
    return d->fenced ? cuda_fence_copied(from, bytes, side_of(&d->host_in.problem), address, unit) : NULL;
}

/* A copy of an array of numbers, of which the call reads so many bytes. */
static void *keep_array(device_copies *d, const void *from, size_t bytes) {
    void *fenced = fence(d, from, bytes, 0, UNIT);
    return fenced ? fenced : keep(d, from, bytes);
}

/* Replaces data of each tensor by its place in a copy of the allocation that it lies in, or, where copies are fenced, of
 * what elements take of it. from: where in the allocation the copy begins. */
static bool copy_tensors(device_copies *d, size_t *from_byte, buffer *to, const buffer *from) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *owner = &from[id];
        if (!owner->bytes) continue;
        const unsigned char *first = owner->data, *end = NULL;
        for (int other = 0; other < TENSOR_COUNT; ++other)
            if (lies_in(owner, &from[other])) add_elements(&from[other], &first, &end);
        size_t bytes = end ? (size_t)(end - first) : 0;
        unsigned char *copy = fence(d, first, bytes, (uintptr_t)first, UNIT);
        if (!copy) copy = keep(d, first = owner->bytes, bytes = owner->size);
        if (!copy) return false;
        for (int other = 0; other < TENSOR_COUNT; ++other)
            if (lies_in(owner, &from[other])) to[other].data = copy + (from[other].data - first);
        to[id].bytes = copy, to[id].size = bytes;
        from_byte[id] = (size_t)(first - owner->bytes);
    }
    return true;
}

/* Offsets have one number more than there are sequences. */
static size_t varlen_bytes(const problem *p, int array) {
    return ((size_t)p->batch + (array < 2)) * (p->varlen & VARLEN_INDEX_64 ? 8 : 4);
}

bool device_copies_create(device_copies *d, const inputs *in, const outputs *out, bool fenced, char *message,
                          size_t capacity) {
    *d = (device_copies){.in = *in, .out = *out, .host_in = *in, .fenced = fenced};
    if (!cuda_memory_open(message, capacity)) return false;
    if (fenced) cuda_fence_reuse();
    bool ok = copy_tensors(d, d->from[0], d->in.tensor, in->tensor) &&
              copy_tensors(d, d->from[1], d->out.tensor, out->tensor);
    for (int i = 0; i < VARLEN_ARRAYS; ++i)
        if (in->varlen_arrays[i]) {
            d->in.varlen_arrays[i] = keep_array(d, in->varlen_arrays[i], varlen_bytes(&in->problem, i));
            ok = ok && d->in.varlen_arrays[i];
        }
    if (in->page_table) {
        const int64_t pages = in->problem.batch * inputs_pages_of_sequence(&in->problem);
        d->in.page_table = keep_array(d, in->page_table, (size_t)pages * sizeof *in->page_table);
        ok = ok && d->in.page_table;
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

/* The one block that calls work in: guard, workspace, guard. NULL if the device has no room. */
static unsigned char *block_of(size_t bytes, bool fresh) {
    static unsigned char *block;
    static size_t capacity;
    if (bytes + 2 * GUARD > capacity) {
        cuda_memory_free(block);
        capacity = bytes + 2 * GUARD;
        block = cuda_memory_allocated(capacity);
        if (!block) capacity = 0;
        fresh = true;
    }
    const bool ok = block && (!fresh || cuda_memory_poison(block + GUARD, bytes)) && cuda_memory_poison(block, GUARD) &&
                    cuda_memory_poison(block + GUARD + bytes, GUARD);
    return ok ? block : NULL;
}

static strobe_status refuse_driver(const char *what, char *message, size_t capacity) {
    snprintf(message, capacity, "the driver refused %s", what);
    return STROBE_DEVICE_ERROR;
}

static bool poison_outputs(const device_copies *d, const outputs *out) {
    for (int id = 0; id < TENSOR_COUNT; ++id)
        if (out->tensor[id].bytes && !cuda_memory_poison(d->out.tensor[id].bytes, d->out.tensor[id].size)) return false;
    return true;
}

/* What the host has in its outputs, before a call: of gradients that are added the numbers that they are added to. */
static bool begin_outputs(const device_copies *d, const outputs *out) {
    if (!d->host_in.problem.added) return poison_outputs(d, out);
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *from = &out->tensor[id], *to = &d->out.tensor[id];
        if (from->bytes && !cuda_memory_copy_over(to->bytes, from->bytes + d->from[1][id], to->size)) return false;
    }
    return true;
}

/* Captured, launched, and launched again over poisoned outputs. */
static strobe_status run_graph(const device_copies *d, const call *c, const outputs *out, const manner *how, void *workspace,
                               size_t bytes, void *stream, char *message, size_t capacity) {
    enum { THREAD_LOCAL = 1 };
    const cuda_driver *driver = cuda_driver_open(message, capacity);
    void *graph = NULL, *runnable = NULL;
    const strobe_status prepared = strobe_prepare(&c->attention, call_gradients(c));
    if (prepared) snprintf(message, capacity, "%s", strobe_last_error());
    if (prepared) return prepared;
    if (driver->begin_capture(stream, THREAD_LOCAL)) return refuse_driver("to capture", message, capacity);
    strobe_status status = manner_call(c, how, workspace, bytes, stream, message, capacity);
    if (driver->end_capture(stream, &graph) && !status) status = refuse_driver("to end a capture", message, capacity);
    if (!status && driver->instantiate(&runnable, graph, 0)) status = refuse_driver("a captured graph", message, capacity);
    for (int launch = 0; launch < 2 && !status; ++launch)
        if ((launch && !begin_outputs(d, out)) || driver->wait() || driver->launch_graph(runnable, stream) ||
            driver->wait_stream(stream))
            status = refuse_driver("to launch a graph", message, capacity);
    if (runnable) driver->destroy_runnable(runnable);
    if (graph) driver->destroy_graph(graph);
    return status;
}

/* The same call on copies of its own, on another stream, not waited for. */
static strobe_status start_twin(const device_copies *d, const call *c, const outputs *out, const manner *how, size_t bytes,
                                device_copies *twin, void **stream, char *message, size_t capacity) {
    const cuda_driver *driver = cuda_driver_open(message, capacity);
    call other;
    if (driver->create_stream(stream, 0)) return refuse_driver("a stream", message, capacity);
    if (!device_copies_create(twin, &d->host_in, out, false, message, capacity)) return STROBE_OUT_OF_MEMORY;
    unsigned char *workspace = keep(twin, NULL, bytes);
    if (!workspace) return STROBE_OUT_OF_MEMORY;
    call_prepare(&other, &twin->in, &twin->out);
    other.tuning = c->tuning;
    other.attention.tuning = c->attention.tuning ? &other.tuning : NULL;
    other.attention.mask_lists = c->attention.mask_lists; /* of the same masks */
    return manner_call(&other, how, workspace, bytes, *stream, message, capacity);
}

static strobe_status run_beside_twin(const device_copies *d, const call *c, const outputs *out, const manner *how,
                                     void *workspace, size_t bytes, void *stream, char *message, size_t capacity) {
    const cuda_driver *driver = cuda_driver_open(message, capacity);
    device_copies twin = {.count = 0};
    void *other = NULL;
    strobe_status status = start_twin(d, c, out, how, bytes, &twin, &other, message, capacity);
    if (!status) status = manner_call(c, how, workspace, bytes, stream, message, capacity);
    if (!cuda_memory_wait(message, status ? 0 : capacity) && !status) status = STROBE_DEVICE_ERROR;
    device_copies_free(&twin);
    if (other) driver->destroy_stream(other);
    return status;
}

/* Runs and waits. */
static strobe_status run_in(const device_copies *d, const call *c, const outputs *out, const manner *how, void *workspace,
                            size_t bytes, char *message, size_t capacity) {
    const cuda_driver *driver = cuda_driver_open(message, capacity);
    void *stream = NULL;
    strobe_status status;
    if (how->own_stream && driver->create_stream(&stream, 0)) return refuse_driver("a stream", message, capacity);
    if (how->graph)
        status = run_graph(d, c, out, how, workspace, bytes, stream, message, capacity);
    else if (how->twin)
        status = run_beside_twin(d, c, out, how, workspace, bytes, stream, message, capacity);
    else
        status = manner_call(c, how, workspace, bytes, stream, message, capacity);
    if (!cuda_memory_wait(message, capacity)) status = STROBE_DEVICE_ERROR;
    if (stream) driver->destroy_stream(stream);
    return status;
}

static strobe_status run_between_guards(const device_copies *d, const call *c, const outputs *out, const manner *how,
                                        size_t bytes, char *message, size_t capacity) {
    unsigned char *block = block_of(bytes, how->workspace != WORKSPACE_USED);
    if (!block) {
        snprintf(message, capacity, "a workspace of %zu bytes could not be had on the GPU", bytes);
        return STROBE_OUT_OF_MEMORY;
    }
    const strobe_status status = run_in(d, c, out, how, block + GUARD, bytes, message, capacity);
    if (status || (is_poison(block, GUARD) && is_poison(block + GUARD + bytes, GUARD))) return status;
    snprintf(message, capacity, "memory outside the workspace of %zu bytes was written", bytes);
    return STROBE_DEVICE_ERROR;
}

/* Lists of the call's masks, in memory that holds NaN before. */
static strobe_status make_lists(device_copies *d, call *c, char *message, size_t capacity) {
    c->mask_lists.data = keep(d, NULL, c->mask_lists.bytes);
    if (!c->mask_lists.data) {
        snprintf(message, capacity, "lists of %zu bytes could not be had on the GPU", c->mask_lists.bytes);
        return STROBE_OUT_OF_MEMORY;
    }
    const strobe_status status = manner_make_lists(c, message, capacity);
    if (status) return status;
    return cuda_memory_wait(message, capacity) ? STROBE_OK : STROBE_DEVICE_ERROR;
}

strobe_status device_copies_run(device_copies *d, call *c, const outputs *out, const manner *how, char *message,
                                size_t capacity) {
    size_t bytes = 0;
    const strobe_status listed = manner_wants_lists(c, how) ? make_lists(d, c, message, capacity) : STROBE_OK;
    if (listed) return listed;
    strobe_status status = strobe_workspace(&c->attention, call_gradients(c), &bytes);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    void *fenced = fence(d, NULL, bytes, 0, WORKSPACE_UNIT);
    status = fenced ? run_in(d, c, out, how, fenced, bytes, message, capacity)
                    : run_between_guards(d, c, out, how, bytes, message, capacity);
    for (int id = 0; id < TENSOR_COUNT && !status; ++id) {
        const buffer *b = &out->tensor[id];
        const buffer *copy = &d->out.tensor[id];
        if (b->bytes && !cuda_memory_copy_back(b->bytes + d->from[1][id], copy->bytes, copy->size)) {
            snprintf(message, capacity, "results could not be copied from the GPU");
            status = STROBE_DEVICE_ERROR;
        }
    }
    return status;
}
