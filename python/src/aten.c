/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten.c: compiled kernels for operators of PyTorch's, so that neither a call nor its derivative, which PyTorch has
 * compiled, runs a line of Python. They are registered with PyTorch's dispatcher through its stable C ABI (torch_abi.h).
 *
 * Replaced are _scaled_dot_product_flash_attention_for_cpu and its _backward, while strobe.torch.activate() is in force.
 * What a kernel does not take goes to strobe::_flash_for_cpu, an operator in Python (strobe/torch/_activate.py) that takes
 * more and knows PyTorch's own kernel.
 *
 * Offered are _scaled_dot_product_efficient_attention and its _backward, for which PyTorch has no kernel on the CPU.
 * strobe.torch calls them for their compiled derivative (strobe/torch/_compiled.py). What a kernel does not take is a
 * RuntimeError, after which strobe.torch goes another way.
 *
 * A kernel owns what is on its stack and leaves its results there. PyTorch calls it without the GIL, from any thread. */
#include <stdatomic.h>
#include <string.h>

#include "arguments.h"
#include "aten.h"

/* How many calls were computed, forward and backward: tests ask whether it was here. */
static atomic_llong computed[2];

/* -------------------------------------------------------------------------------------------------------------- stack -- */

static struct torch_tensor *as_tensor(stable_value value) { return (struct torch_tensor *)(uintptr_t)value; }
static stable_value of_tensor(struct torch_tensor *tensor) { return (uintptr_t)tensor; }
static bool as_bool(stable_value value) { return (value & 0xff) != 0; }
static double as_double(stable_value value) {
    double number;
    memcpy(&number, &value, sizeof number);
    return number;
}

/* What an optional value points to; NULL where there is none. */
static const stable_value *given(stable_value optional) { return (const stable_value *)(uintptr_t)optional; }

/* A tensor that a formula gives, NULL for an undefined one. */
static struct torch_tensor *defined(stable_value tensor) {
    bool is_defined = false;
    torch_abi.is_defined(as_tensor(tensor), &is_defined);
    return is_defined ? as_tensor(tensor) : NULL;
}

/* The tensor that an optional value has; NULL where there is none, as when a formula gives an undefined one. */
static struct torch_tensor *given_tensor(stable_value optional) {
    return given(optional) ? defined(*given(optional)) : NULL;
}

/* Frees arguments by their kinds: t a tensor, T an optional one, l a list of numbers, N an optional number, n a number. */
static void release(stable_value *stack, const char *kinds) {
    for (; *kinds; ++kinds, ++stack) {
        stable_value *const held = (stable_value *)(uintptr_t)*stack;
        const bool is_optional = *kinds == 'T' || *kinds == 'N';
        if (*kinds == 't') torch_abi.tensor_delete(as_tensor(*stack));
        if (*kinds == 'l') torch_abi.list_delete((struct torch_list *)(uintptr_t)*stack);
        if (*kinds == 'T' && held) torch_abi.tensor_delete(as_tensor(*held));
        if (is_optional && held) torch_abi.value_delete(held);
    }
}

static void delete_made(struct torch_tensor **made, int count) {
    for (int n = 0; n < count; ++n)
        if (made[n]) torch_abi.tensor_delete(made[n]);
}

static void answer(stable_value *stack, const char *kinds, struct torch_tensor *const *made, int count) {
    release(stack, kinds);
    for (int n = 0; n < count; ++n) stack[n] = of_tensor(made[n]);
}

/* Throws PyTorch's exception: through the frames of this file, which hold nothing then. */
static void refuse(const char *sentence) { torch_abi.check(false, "strobe", "strobe", 0, sentence); }

/* Another operator of the same arguments and results, which takes the stack over. */
static void go_on(const char *operator, stable_value * stack) {
    if (torch_abi.call(operator, "", stack, TORCH_ABI) == 0) return;
    refuse(torch_abi.last_error ? torch_abi.last_error() : "the kernel that a call was handed on to has failed");
}

/* -------------------------------------------------------------------------------------------------------------- calls -- */

static bool describe(struct aten_call *c, const stable_value *qkv, bool causal, stable_value scale) {
    double number = 0;
    if (given(scale)) number = as_double(*given(scale));
    return aten_describe(c, as_tensor(qkv[0]), as_tensor(qkv[1]), as_tensor(qkv[2]), causal, given(scale) ? &number : NULL);
}

static bool takes_mask(struct aten_call *c, struct torch_tensor *mask) { return !mask || aten_mask(c, mask); }

static void choose_own_threads(struct aten_call *c) {
    use_threads(&c->parallel, threads_of(&c->a));
    c->a.parallel = &c->parallel;
}

static bool forward(struct aten_call *c) {
    choose_own_threads(c);
    if (strobe_forward(&c->a, NULL, 0, NULL)) return false;
    atomic_fetch_add_explicit(&computed[0], 1, memory_order_relaxed);
    return true;
}

/* from: grad_out, query, key, value; then out and lse, which stand elsewhere in each operator. made: dq, dk, dv. */
static bool backward(struct aten_call *c, const stable_value *from, stable_value out, stable_value lse,
                     struct torch_tensor *made[3]) {
    strobe_gradients g = {.struct_size = sizeof g};
    struct view dout = {0}, saved = {0};
    choose_own_threads(c);
    const bool done = aten_read(c, &dout, as_tensor(from[0]), &g.dout) && aten_read(c, &saved, as_tensor(out), &c->a.out) &&
                      aten_read_lse(c, as_tensor(lse)) && aten_new(c, c->q.size, &made[0], &g.dq) &&
                      aten_new(c, c->k.size, &made[1], &g.dk) && aten_new(c, c->v.size, &made[2], &g.dv) &&
                      strobe_backward(&c->a, &g, NULL, 0, NULL) == STROBE_OK;
    aten_close_view(&dout);
    aten_close_view(&saved);
    if (done) atomic_fetch_add_explicit(&computed[1], 1, memory_order_relaxed);
    return done;
}

/* Whether the backward would be refused: who records a gradient is to hear it of the forward. The gradients' tensors are not
 * there yet; no kernel asks for more of them than that they are, and where. */
static bool has_backward(const struct aten_call *c) {
    static _Alignas(64) char nowhere[4][64];
    strobe_gradients g = {.struct_size = sizeof g};
    g.dout.data = nowhere[0], g.dq.data = nowhere[1], g.dk.data = nowhere[2], g.dv.data = nowhere[3]; /* contiguous */
    return strobe_check(&c->a, &g) == STROBE_OK;
}

/* ----------------------------------------------------------------------------------------------------------- replaced -- */

/* query, key, value, dropout_p, is_causal, attn_mask, scale -> output, logsumexp. Not float64, for which PyTorch has fast
 * kernels. */
static void flash_for_cpu(stable_value *stack, uint64_t arguments, uint64_t results) {
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[2] = {0};
    const bool done = as_double(stack[3]) == 0 && describe(&call, stack, as_bool(stack[4]), stack[6]) &&
                      call.a.dtype != STROBE_FP64 && call.a.dim == call.a.dim_v &&
                      takes_mask(&call, given_tensor(stack[5])) && aten_new_like_q(&call, &made[0], &call.a.out) &&
                      aten_new_lse(&call, true, &made[1]) && forward(&call);
    aten_close(&call);
    if (done) {
        answer(stack, "tttnnTN", made, 2);
    } else {
        delete_made(made, 2);
        go_on("strobe::_flash_for_cpu", stack);
    }
}

/* grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale -> the gradients of query, key, value.
 */
static void flash_for_cpu_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[3] = {0};
    const bool done = as_double(stack[6]) == 0 && describe(&call, stack + 1, as_bool(stack[7]), stack[9]) &&
                      call.a.dtype != STROBE_FP64 && takes_mask(&call, given_tensor(stack[8])) &&
                      backward(&call, stack, stack[4], stack[5], made);
    aten_close(&call);
    if (done) {
        answer(stack, "ttttttnnTN", made, 3);
    } else {
        delete_made(made, 3);
        go_on("strobe::_flash_for_cpu_backward", stack);
    }
}

/* ------------------------------------------------------------------------------------------------------------ offered -- */

/* Whether the gradient of attn_bias is asked for, the last of grad_input_mask: strobe.torch goes another way for it. */
static bool wants_bias(stable_value mask) {
    stable_value wanted = 0;
    return torch_abi.list_item((struct torch_list *)(uintptr_t)mask, 3, &wanted) || as_bool(wanted);
}

/* query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale -> output, log_sumexp, philox_seed,
 * philox_offset. The last two are undefined tensors, and so is log_sumexp where it is not asked for. */
static void efficient(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const char kinds[] = "tttTnnnN";
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[4] = {0};
    const bool with_lse = as_bool(stack[4]);
    bool done = as_double(stack[5]) == 0 && describe(&call, stack, as_bool(stack[6]), stack[7]) &&
                takes_mask(&call, given_tensor(stack[3]));
    if (done) {
        const int64_t size[4] = {call.a.batch, call.a.heads_q, call.a.seq_q, call.a.dim_v};
        done = aten_new(&call, size, &made[0], &call.a.out) &&
               (with_lse ? aten_new_lse(&call, false, &made[1]) && has_backward(&call)
                         : torch_abi.undefined(&made[1]) == 0) &&
               torch_abi.undefined(&made[2]) == 0 && torch_abi.undefined(&made[3]) == 0 && forward(&call);
    }
    aten_close(&call);
    if (done) {
        answer(stack, kinds, made, 4);
    } else {
        delete_made(made, 4);
        release(stack, kinds);
        refuse("Strobe's kernel takes query, key and value of the CPU, with elements and without dropout");
    }
}

/* grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
 * is_causal, scale -> the gradients of query, key, value; and of attn_bias, an undefined tensor. */
static void efficient_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const char kinds[] = "tttttttttnlnN";
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[4] = {0};
    const bool done = as_double(stack[9]) == 0 && !wants_bias(stack[10]) &&
                      describe(&call, stack + 1, as_bool(stack[11]), stack[12]) && takes_mask(&call, defined(stack[4])) &&
                      backward(&call, stack, stack[5], stack[6], made) && torch_abi.undefined(&made[3]) == 0;
    aten_close(&call);
    if (done) {
        answer(stack, kinds, made, 4);
    } else {
        delete_made(made, 4);
        release(stack, kinds);
        refuse("Strobe's kernel has no gradient for these tensors; what its forward gave, as it was, is accepted");
    }
}

/* The same, seen by autograd. Where the gradient is a part of a graph (create_graph=True), strobe::_efficient_backward,
 * which is made of operators that autograd knows, refuses when it is asked for its derivative. Elsewhere the kernel above,
 * by an operator that autograd lets pass: grad_out may be a tensor that the dispatcher has something to do for first, such
 * as a view with its negative bit set. */
static void efficient_backward_autograd(stable_value *stack, uint64_t arguments, uint64_t results) {
    (void)arguments, (void)results;
    go_on(torch_abi.grad_mode() ? "strobe::_efficient_backward" : "strobe::_efficient_backward_cpu", stack);
}

/* ------------------------------------------------------------------------------------------------------- registration -- */

struct registration {
    const char *space, *key, *operator;
    stable_kernel *kernel;
};

static bool register_kernels(const struct registration *r, int count, struct torch_library **libraries) {
    for (int n = 0; n < count; ++n)
        if (torch_abi.library_new(r[n].space, r[n].key, "strobe", 0, &libraries[n]) ||
            torch_abi.library_impl(libraries[n], r[n].operator, r[n].kernel, TORCH_ABI)) {
            PyErr_Format(PyExc_RuntimeError, "PyTorch has not taken a kernel for %s::%s on %s", r[n].space, r[n].operator,
                         r[n].key);
            return false;
        }
    return true;
}

static void unregister_kernels(struct torch_library **libraries, int count) {
    for (int n = 0; n < count; ++n) {
        if (libraries[n]) torch_abi.library_delete(libraries[n]);
        libraries[n] = NULL;
    }
}

/* Opens PyTorch's library at a path; whether its ABI is one that the kernels here know. */
FUNCTION(py_aten_open) {
    (void)module;
    const char *path = count == 1 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    if (!path) return NULL;
    const bool open = torch_abi_open(path);
    if (open) aten_dtypes();
    return PyBool_FromLong(open);
}

static bool is_open(void) {
    if (!torch_abi.version) PyErr_SetString(PyExc_RuntimeError, "PyTorch's library has not been opened");
    return torch_abi.version != NULL;
}

/* Registers the kernels that replace PyTorch's (True), or gives PyTorch its own back (False). */
FUNCTION(py_aten_replace) {
    static const struct registration kernels[] = {
        {"aten", "CPU", "_scaled_dot_product_flash_attention_for_cpu", flash_for_cpu},
        {"aten", "CPU", "_scaled_dot_product_flash_attention_for_cpu_backward", flash_for_cpu_backward},
    };
    enum { KERNELS = sizeof kernels / sizeof kernels[0] };
    static struct torch_library *libraries[KERNELS];
    (void)module;
    if (count != 1 || !is_open()) return NULL;
    unregister_kernels(libraries, KERNELS);
    if (args[0] == Py_True && !register_kernels(kernels, KERNELS, libraries)) {
        unregister_kernels(libraries, KERNELS);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

/* Registers the kernels that PyTorch has none for. */
FUNCTION(py_aten_offer) {
    static const struct registration kernels[] = {
        {"aten", "CPU", "_scaled_dot_product_efficient_attention", efficient},
        {"aten", "CPU", "_scaled_dot_product_efficient_attention_backward", efficient_backward},
        {"strobe", "CPU", "_efficient_backward_cpu", efficient_backward},
        {"aten", "AutogradCPU", "_scaled_dot_product_efficient_attention_backward", efficient_backward_autograd},
    };
    enum { KERNELS = sizeof kernels / sizeof kernels[0] };
    static struct torch_library *libraries[KERNELS];
    (void)module, (void)args, (void)count;
    if (!is_open()) return NULL;
    if (!libraries[0] && !register_kernels(kernels, KERNELS, libraries)) {
        unregister_kernels(libraries, KERNELS);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

FUNCTION(py_aten_calls) {
    (void)module, (void)args, (void)count;
    return Py_BuildValue("LL", (long long)atomic_load(&computed[0]), (long long)atomic_load(&computed[1]));
}
