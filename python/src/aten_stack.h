/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_stack.h: the values on the stack of a kernel of PyTorch's stable C ABI: what aten_cpu.c and aten_cuda.c read and
 * leave there. A kernel owns what is on its stack and leaves its results there. */
#ifndef STROBE_PYTHON_ATEN_STACK_H
#define STROBE_PYTHON_ATEN_STACK_H

#include <string.h>

#include "torch_abi.h"

static inline struct torch_tensor *as_tensor(stable_value value) { return (struct torch_tensor *)(uintptr_t)value; }
static inline struct torch_list *as_list(stable_value value) { return (struct torch_list *)(uintptr_t)value; }
static inline bool as_bool(stable_value value) { return (value & 0xff) != 0; }
static inline double as_double(stable_value value) {
    double number;
    memcpy(&number, &value, sizeof number);
    return number;
}

/* What an optional value points to; NULL where there is none. */
static inline const stable_value *given(stable_value optional) { return (const stable_value *)(uintptr_t)optional; }

/* A tensor that a formula gives, NULL for an undefined one. */
struct torch_tensor *aten_defined(stable_value tensor);
/* The tensor that an optional value has; NULL where there is none, as when a formula gives an undefined one. */
struct torch_tensor *aten_given_tensor(stable_value optional);
/* An optional number, read into *number; NULL where there is none. */
const double *aten_given_double(stable_value optional, double *number);

/* Frees arguments by their kinds: t a tensor, T an optional one, l a list of numbers, N an optional number, n a number. */
void aten_release(stable_value *stack, const char *kinds);
/* Deletes those of the new tensors that were made. */
void aten_delete(struct torch_tensor **made, int count);
/* Frees the arguments, and leaves tensors as results. */
void aten_answer(stable_value *stack, const char *kinds, struct torch_tensor *const *made, int count);

/* Whether the first argument, the gradient of a result, is undefined: of one that no loss depends on, as where a function in
 * between has returned None. Then frees the arguments, and leaves so many undefined tensors as results, as PyTorch's kernels
 * do. */
bool aten_without_gradient(stable_value *stack, const char *kinds, int results);

/* Whether the next kernel below autograd may be called as it is, without the dispatcher, for what the first so many
 * arguments are, all of them tensors: nothing else would see the call. */
bool aten_goes_straight(const stable_value *stack, int tensors);

/* Throws PyTorch's exception: through the frames of the caller, which hold nothing then. */
void aten_refuse(const char *sentence);
/* Another operator of the same arguments and results, which takes the stack over. */
void aten_go_on(const char *operator, stable_value * stack);

#endif
