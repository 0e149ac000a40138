/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_cpu.c: compiled kernels for operators of PyTorch's on the CPU: see aten.c for where they are registered.
 *
 * What a replacing kernel does not take goes to an operator in Python of the same name in strobe's namespace
 * (strobe/torch/_activate.py), which takes more and knows PyTorch's own kernel. What an offered kernel does not take is a
 * RuntimeError, after which strobe.torch goes another way. */
#include "aten.h"
#include "aten_stack.h"

static bool describe(struct aten_call *c, const stable_value *qkv, bool causal, stable_value scale) {
    double number;
    return aten_describe(c, as_tensor(qkv[0]), as_tensor(qkv[1]), as_tensor(qkv[2]), causal,
                         aten_given_double(scale, &number));
}

/* ----------------------------------------------------------------------------------------------------------- replaced -- */

/* query, key, value, dropout_p, is_causal, attn_mask, scale -> output, logsumexp. Not float64, for which PyTorch has fast
 * kernels. */
void aten_flash_for_cpu(stable_value *stack, uint64_t arguments, uint64_t results) {
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[2] = {0};
    const bool done = as_double(stack[3]) == 0 && describe(&call, stack, as_bool(stack[4]), stack[6]) &&
                      call.a.dtype != STROBE_FP64 && call.a.dim == call.a.dim_v &&
                      aten_mask(&call, aten_given_tensor(stack[5])) &&
                      aten_new_like(&call, &call.q, call.q.size, &made[0], &call.a.out) &&
                      aten_new_lse(&call, LSE_HEADS_LAST, call.a.seq_q, &made[1]) && aten_forward(&call);
    aten_close(&call);
    if (done) {
        aten_answer(stack, "tttnnTN", made, 2);
    } else {
        aten_delete(made, 2);
        aten_go_on("strobe::_scaled_dot_product_flash_attention_for_cpu", stack);
    }
}

/* grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale -> the gradients of query, key, value.
 */
void aten_flash_for_cpu_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const char kinds[] = "ttttttnnTN";
    (void)arguments, (void)results;
    if (aten_without_gradient(stack, kinds, 3)) return;
    struct aten_call call = {0};
    struct torch_tensor *made[3] = {0};
    const bool done = as_double(stack[6]) == 0 && describe(&call, stack + 1, as_bool(stack[7]), stack[9]) &&
                      call.a.dtype != STROBE_FP64 && aten_mask(&call, aten_given_tensor(stack[8])) &&
                      aten_backward(&call, stack, stack[4], stack[5], false, made);
    aten_close(&call);
    if (done) {
        aten_answer(stack, kinds, made, 3);
    } else {
        aten_delete(made, 3);
        aten_go_on("strobe::_scaled_dot_product_flash_attention_for_cpu_backward", stack);
    }
}

/* ------------------------------------------------------------------------------------------------------------ offered -- */

/* Whether the gradient of attn_bias is asked for, the last of grad_input_mask: strobe.torch goes another way for it. */
static bool wants_bias(stable_value mask) {
    stable_value wanted = 0;
    return torch_abi.list_item(as_list(mask), 3, &wanted) || as_bool(wanted);
}

/* query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale -> output, log_sumexp, philox_seed,
 * philox_offset. The last two are undefined tensors, and so is log_sumexp where it is not asked for. */
void aten_efficient_offered(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const char kinds[] = "tttTnnnN";
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[4] = {0};
    const bool with_lse = as_bool(stack[4]);
    bool done = as_double(stack[5]) == 0 && describe(&call, stack, as_bool(stack[6]), stack[7]) &&
                aten_mask(&call, aten_given_tensor(stack[3]));
    if (done) {
        const int64_t size[4] = {call.a.batch, call.a.heads_q, call.a.seq_q, call.a.dim_v};
        done = aten_new(&call, size, &made[0], &call.a.out) &&
               (with_lse ? aten_new_lse(&call, LSE_ROWS_LAST, call.a.seq_q, &made[1]) && aten_has_backward(&call)
                         : torch_abi.undefined(&made[1]) == 0) &&
               torch_abi.undefined(&made[2]) == 0 && torch_abi.undefined(&made[3]) == 0 && aten_forward(&call);
    }
    aten_close(&call);
    if (done) {
        aten_answer(stack, kinds, made, 4);
    } else {
        aten_delete(made, 4);
        aten_release(stack, kinds);
        aten_refuse("Strobe's kernel takes query, key and value of the CPU, with elements and without dropout");
    }
}

static const char efficient_backward_kinds[] = "tttttttttnlnN";

/* grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
 * is_causal, scale -> the gradients of query, key, value; and of attn_bias, an undefined tensor. */
void aten_efficient_offered_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    const char *const kinds = efficient_backward_kinds;
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[4] = {0};
    const bool done = as_double(stack[9]) == 0 && !wants_bias(stack[10]) &&
                      describe(&call, stack + 1, as_bool(stack[11]), stack[12]) &&
                      aten_mask(&call, aten_defined(stack[4])) &&
                      aten_backward(&call, stack, stack[5], stack[6], false, made) && torch_abi.undefined(&made[3]) == 0;
    aten_close(&call);
    if (done) {
        aten_answer(stack, kinds, made, 4);
    } else {
        aten_delete(made, 4);
        aten_release(stack, kinds);
        aten_refuse("Strobe's kernel has no gradient for these tensors; what its forward gave, as it was, is accepted");
    }
}

/* The same, seen by autograd. Where the gradient is a part of a graph (create_graph=True), strobe::_efficient_backward,
 * which is made of operators that autograd knows, refuses when it is asked for its derivative. Elsewhere the kernel above:
 * as it is, or by an operator that autograd lets pass, where a tensor is one that the dispatcher has something to do for
 * first, such as a view with its negative bit set. */
void aten_efficient_offered_graph(stable_value *stack, uint64_t arguments, uint64_t results) {
    if (aten_without_gradient(stack, efficient_backward_kinds, 4)) return;
    if (torch_abi.grad_mode())
        aten_go_on("strobe::_efficient_backward", stack);
    else if (aten_goes_straight(stack, 4) && !aten_defined(stack[4]))
        aten_efficient_offered_backward(stack, arguments, results);
    else
        aten_go_on("strobe::_efficient_backward_below", stack);
}
