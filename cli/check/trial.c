/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trial.c: one call of the library, in several manners; see trial.h. */
#include "check/trial.h"

#include "problem/cuda_trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096, POISON = 0xFF }; /* the guard keeps the workspace aligned to 64 bytes */

const manner trial_plain = {.name = "plainly"};
const char *const trial_reference[2] = {[STROBE_FORWARD] = "reference_forward", [STROBE_BACKWARD] = "reference_backward"};
const char *const trial_standard[2] = {[STROBE_FORWARD] = "standard_forward", [STROBE_BACKWARD] = "standard_backward"};

static void run_backwards(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                          void *context) {
    const int32_t workers = *(const int32_t *)self;
    for (int64_t index = tasks - 1; index >= 0; --index) task(context, index, (int32_t)(index % workers));
}

static void set_manner(call *c, const char *kernel, const manner *how) {
    if (kernel) {
        c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .kernel = kernel};
        c->attention.tuning = &c->tuning;
    }
    if (!how->threads) return;
    c->parallel = (strobe_parallel){.struct_size = sizeof c->parallel, .threads = how->threads};
    if (how->own_loop) c->parallel.run = run_backwards, c->parallel.self = &c->parallel.threads;
    c->attention.parallel = &c->parallel;
}

static strobe_status run(const call *c, void *workspace, size_t bytes) {
    return c->backward ? strobe_backward(&c->attention, &c->gradients, workspace, bytes, NULL)
                       : strobe_forward(&c->attention, workspace, bytes, NULL);
}

static bool is_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (bytes[i] != POISON) return false;
    return true;
}

static strobe_status run_guarded(const call *c, char *message, size_t capacity) {
    size_t bytes = 0;
    strobe_status status = strobe_workspace(&c->attention, call_gradients(c), &bytes);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    const size_t all = (bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD;
    unsigned char *block = aligned_alloc(GUARD, all);
    if (!block) {
        snprintf(message, capacity, "a workspace of %zu bytes could not be allocated", bytes);
        return STROBE_OUT_OF_MEMORY;
    }
    memset(block, POISON, all);
    status = run(c, bytes ? block + GUARD : NULL, bytes);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    const bool intact = is_poison(block, GUARD) && is_poison(block + GUARD + bytes, all - GUARD - bytes);
    free(block);
    if (status || intact) return status;
    snprintf(message, capacity, "memory outside the workspace of %zu bytes was written", bytes);
    return STROBE_DEVICE_ERROR;
}

/* The oracle and the plain implementation are the CPU's, whatever device the problem is for. */
static bool is_on_gpu(const inputs *in, const char *kernel) {
    if (in->problem.device != STROBE_CUDA) return false;
    for (int operation = 0; kernel && operation < 2; ++operation)
        if (!strcmp(kernel, trial_reference[operation]) || !strcmp(kernel, trial_standard[operation])) return false;
    return true;
}

static strobe_status run_on_gpu(const inputs *in, const outputs *out, const char *kernel, char *message, size_t capacity) {
    call c;
    device_copies copies;
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (device_copies_create(&copies, in, out, message, capacity)) {
        call_prepare(&c, &copies.in, &copies.out);
        set_manner(&c, kernel, &trial_plain);
        status = device_copies_run(&copies, &c, out, message, capacity);
    }
    device_copies_free(&copies);
    return status;
}

strobe_status trial_run(const inputs *in, const outputs *out, const char *kernel, const manner *how, char *message,
                        size_t capacity) {
    if (is_on_gpu(in, kernel)) return run_on_gpu(in, out, kernel, message, capacity);
    call c;
    call_prepare(&c, in, out);
    c.attention.device = STROBE_CPU;
    set_manner(&c, kernel, how);
    if (how->guarded_workspace) return run_guarded(&c, message, capacity);
    const strobe_status status = run(&c, NULL, 0);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    return status;
}

strobe_status trial_forward(inputs *in, const char *kernel, char *message, size_t capacity) {
    inputs forward = *in; /* shares all memory */
    outputs into = {0};
    forward.problem.operation = STROBE_FORWARD;
    forward.problem.kernel[0] = 0;
    into.tensor[T_OUT] = in->tensor[T_OUT];
    into.tensor[T_LSE] = in->tensor[T_LSE];
    return trial_run(&forward, &into, kernel, &trial_plain, message, capacity);
}
