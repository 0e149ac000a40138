/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trial.c: one call of a kernel, in several manners; see trial.h. */
#include "check/trial.h"

#include "check/ranks.h"
#include "problem/cuda_trial.h"

#include <stdio.h>
#include <string.h>

const manner trial_plain = {.name = "plainly"};
const char *const trial_reference[2] = {[STROBE_FORWARD] = "reference_forward", [STROBE_BACKWARD] = "reference_backward"};
const char *const trial_standard[2] = {[STROBE_FORWARD] = "standard_forward", [STROBE_BACKWARD] = "standard_backward"};

static const char tensor_core_forward[] = "tensor_core_forward";

const char *trial_plain_lse(const problem *p, strobe_dtype *dtype) {
    const bool by_tensor_cores = p->device == STROBE_CUDA && p->dtype != STROBE_FP32;
    *dtype = by_tensor_cores ? (strobe_dtype)p->dtype : STROBE_FP32;
    return by_tensor_cores ? tensor_core_forward : trial_standard[STROBE_FORWARD];
}

bool trial_is_yardstick(const char *kernel) {
    if (!strcmp(kernel, tensor_core_forward)) return true;
    for (int operation = 0; operation < 2; ++operation)
        if (!strcmp(kernel, trial_reference[operation]) || !strcmp(kernel, trial_standard[operation])) return true;
    return false;
}

static void run_backwards(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                          void *context) {
    const int32_t workers = *(const int32_t *)self;
    for (int64_t index = tasks - 1; index >= 0; --index) task(context, index, (int32_t)(index % workers));
}

static void set_manner(call *c, const char *kernel, const manner *how) {
    if (kernel) {
        c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .kernel = kernel, .split_keys = c->tuning.split_keys};
        if (trial_is_yardstick(kernel)) c->tuning.split_keys = 0; /* it answers a question that was put to another */
        c->attention.tuning = &c->tuning;
    }
    if (!how->threads) return;
    c->parallel = (strobe_parallel){.struct_size = sizeof c->parallel, .threads = how->threads};
    if (how->own_loop) c->parallel.run = run_backwards, c->parallel.self = &c->parallel.threads;
    c->attention.parallel = &c->parallel;
}

/* The oracle and the plain implementation are the CPU's, whatever device the problem is for. */
static bool is_on_gpu(const inputs *in, const char *kernel) {
    return in->problem.device == STROBE_CUDA && !(kernel && trial_is_yardstick(kernel));
}

static strobe_status run_on_gpu(const inputs *in, const outputs *out, const char *kernel, const manner *how, char *message,
                                size_t capacity) {
    call c;
    device_copies copies;
    strobe_status status = STROBE_OUT_OF_MEMORY;
    if (device_copies_create(&copies, in, out, how->fenced && !in->problem.ranks, message, capacity)) {
        call_prepare(&c, &copies.in, &copies.out);
        set_manner(&c, kernel, how);
        status = in->problem.ranks ? ranks_run(in, out, &c, how, message, capacity)
                                   : device_copies_run(&copies, &c, out, how, message, capacity);
    }
    device_copies_free(&copies);
    return status;
}

strobe_status trial_run(const inputs *in, const outputs *out, const char *kernel, const manner *how, char *message,
                        size_t capacity) {
    outputs_begin(out, in);
    if (is_on_gpu(in, kernel)) return run_on_gpu(in, out, kernel, how, message, capacity);
    call c;
    call_prepare(&c, in, out);
    c.attention.device = STROBE_CPU;
    set_manner(&c, kernel, how);
    if (in->problem.ranks && !(kernel && trial_is_yardstick(kernel))) return ranks_run(in, out, &c, how, message, capacity);
    return manner_run(&c, how, message, capacity);
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
