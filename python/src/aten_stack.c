/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_stack.c: see aten_stack.h. */
#include "aten_stack.h"

struct torch_tensor *aten_defined(stable_value tensor) {
    bool is_defined = false;
    torch_abi.is_defined(as_tensor(tensor), &is_defined);
    return is_defined ? as_tensor(tensor) : NULL;
}

struct torch_tensor *aten_given_tensor(stable_value optional) {
    return given(optional) ? aten_defined(*given(optional)) : NULL;
}

const double *aten_given_double(stable_value optional, double *number) {
    if (!given(optional)) return NULL;
    *number = as_double(*given(optional));
    return number;
}

void aten_release(stable_value *stack, const char *kinds) {
    for (; *kinds; ++kinds, ++stack) {
        stable_value *const held = (stable_value *)(uintptr_t)*stack;
        const bool is_optional = *kinds == 'T' || *kinds == 'N';
        if (*kinds == 't') torch_abi.tensor_delete(as_tensor(*stack));
        if (*kinds == 'l') torch_abi.list_delete(as_list(*stack));
        if (*kinds == 'T' && held) torch_abi.tensor_delete(as_tensor(*held));
        if (is_optional && held) torch_abi.value_delete(held);
    }
}

void aten_delete(struct torch_tensor **made, int count) {
    for (int n = 0; n < count; ++n)
        if (made[n]) torch_abi.tensor_delete(made[n]);
}

void aten_answer(stable_value *stack, const char *kinds, struct torch_tensor *const *made, int count) {
    aten_release(stack, kinds);
    for (int n = 0; n < count; ++n) stack[n] = (uintptr_t)made[n];
}

bool aten_without_gradient(stable_value *stack, const char *kinds, int results) {
    enum { MOST = 4 };
    struct torch_tensor *made[MOST] = {0};
    if (aten_defined(stack[0]) || results > MOST) return false;
    for (int n = 0; n < results; ++n) {
        if (torch_abi.undefined(&made[n]) == 0) continue;
        aten_delete(made, n);
        return false;
    }
    aten_answer(stack, kinds, made, results);
    return true;
}

bool aten_goes_straight(const stable_value *stack, int tensors) {
    if (!torch_abi.dispatches[0] || torch_abi.modes(false)) return false;
    for (int n = 0; n < tensors; ++n)
        for (int by = 0; by < SEEN_BY; ++by)
            if (torch_abi.dispatches[by](as_tensor(stack[n]))) return false;
    return true;
}

void aten_refuse(const char *sentence) { torch_abi.check(false, "strobe", "strobe", 0, sentence); }

void aten_go_on(const char *operator, stable_value * stack) {
    if (torch_abi.call(operator, "", stack, TORCH_ABI) == 0) return;
    aten_refuse(torch_abi.last_error ? torch_abi.last_error() : "the kernel that a call was handed on to has failed");
}
