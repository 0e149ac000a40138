/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_cuda.c: compiled kernels for operators of PyTorch's on CUDA: see aten.c for where they are registered. Results have
 * the shapes and strides of PyTorch's own kernels, on which compiled graphs count; the state of a random generator among
 * them, which nobody reads without dropout, is memory with nothing written, as it is there.
 *
 * What a replacing kernel does not take goes to an operator in Python of the same name in strobe's namespace
 * (strobe/torch/_activate.py), which takes more and knows PyTorch's own kernel. What an offered kernel does not take is a
 * RuntimeError, after which strobe.torch goes another way. */
#include "aten.h"
#include "aten_stack.h"

#define STROBES(name) "strobe::_scaled_dot_product_" name

/* An operator's arguments: the places of those that the kernels read; -1 for one that the operator does not have. */
struct forward_places {
    const char *kinds;
    int mask, dropout, causal, debug, scale;
    uint64_t flags; /* of the descriptor */
};

struct backward_places {
    const char *kinds;
    int out, lse, mask, dropout, causal, scale;
    bool mask_is_optional; /* a Tensor?, not a Tensor that may be undefined */
    uint64_t flags;        /* of the descriptor */
};

static bool describe(struct aten_call *c, const stable_value *qkv, const stable_value *causal, const stable_value *scale) {
    double number;
    return aten_describe(c, as_tensor(qkv[0]), as_tensor(qkv[1]), as_tensor(qkv[2]), as_bool(*causal),
                         aten_given_double(*scale, &number)) &&
           c->a.dtype != STROBE_FP64;
}

/* In fp32 of more columns there are no products of tf32 parts, and PyTorch's own kernel, which has them, is faster. */
static bool are_faster_here(const struct aten_call *c) {
    enum { MOST_COLUMNS = 128 };
    const bool many = c->a.dim > MOST_COLUMNS || c->a.dim_v > MOST_COLUMNS;
    return !(many && c->a.dtype == STROBE_FP32 && c->a.flags & STROBE_TF32X3);
}

/* Dropout is PyTorch's: its generator on the GPU chooses what is dropped. */
static bool open_forward(struct aten_call *c, const stable_value *stack, const struct forward_places *at) {
    c->a.flags = at->flags;
    return as_double(stack[at->dropout]) == 0 && (at->debug < 0 || !as_bool(stack[at->debug])) &&
           describe(c, stack, &stack[at->causal], &stack[at->scale]) && are_faster_here(c) &&
           (at->mask < 0 || aten_mask(c, aten_given_tensor(stack[at->mask])));
}

static bool open_backward(struct aten_call *c, const stable_value *stack, const struct backward_places *at) {
    c->a.flags = at->flags;
    if (as_double(stack[at->dropout]) != 0 || !describe(c, stack + 1, &stack[at->causal], &stack[at->scale]) ||
        !are_faster_here(c))
        return false;
    if (at->mask < 0) return true;
    return aten_mask(c, at->mask_is_optional ? aten_given_tensor(stack[at->mask]) : aten_defined(stack[at->mask]));
}

/* The gradients of query, key and value as the results; false with nothing done. */
static bool run_backward(stable_value *stack, const struct backward_places *at, bool like_inputs) {
    struct aten_call call = {0};
    struct torch_tensor *made[3] = {0};
    const bool done = open_backward(&call, stack, at) &&
                      aten_backward(&call, stack, stack[at->out], stack[at->lse], like_inputs, made);
    aten_close(&call);
    if (done)
        aten_answer(stack, at->kinds, made, 3);
    else
        aten_delete(made, 3);
    return done;
}

static void out_size(const struct aten_call *c, int64_t size[4]) {
    size[0] = c->a.batch, size[1] = c->a.heads_q, size[2] = c->a.seq_q, size[3] = c->a.dim_v;
}

/* ----------------------------------------------------------------------------------------------------- flash and cudnn --
 */

/* Both answer output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask. */
enum { OUT, LSE, CUM_Q, CUM_K, MAX_Q, MAX_K, SEED, OFFSET, DEBUG_MASK, RESULTS };

static bool run_forward(stable_value *stack, const struct forward_places *at, bool is_cudnn) {
    struct aten_call call = {0};
    struct torch_tensor *made[RESULTS] = {0};
    int64_t size[4];
    const int64_t two = 2, nothing = 0;
    bool done = open_forward(&call, stack, at) && (is_cudnn || call.a.dim == call.a.dim_v);
    if (done) {
        out_size(&call, size);
        const int32_t state = is_cudnn ? torch_abi.int64() : torch_abi.uint64();
        done = aten_new_like(&call, &call.q, size, &made[OUT], &call.a.out) &&
               aten_new_lse(&call, is_cudnn ? LSE_COLUMN : LSE_ROWS_LAST, call.a.seq_q, &made[LSE]) &&
               torch_abi.undefined(&made[CUM_Q]) == 0 && torch_abi.undefined(&made[CUM_K]) == 0 &&
               aten_new_empty(&call, state, is_cudnn ? NULL : &two, &made[SEED]) &&
               aten_new_empty(&call, state, NULL, &made[OFFSET]) &&
               (is_cudnn ? torch_abi.undefined(&made[DEBUG_MASK]) == 0
                         : aten_new_empty(&call, call.q.dtype, &nothing, &made[DEBUG_MASK])) &&
               aten_forward(&call);
    }
    aten_close(&call);
    if (done) {
        aten_answer(stack, at->kinds, made, RESULTS);
        stack[MAX_Q] = (stable_value)call.a.seq_q, stack[MAX_K] = (stable_value)call.a.seq_k;
    } else {
        aten_delete(made, RESULTS);
    }
    return done;
}

/* Rows of query or keys of key; 0 of what is no such tensor. */
static stable_value length_of(stable_value tensor) {
    int64_t axes, *size;
    if (torch_abi.dim(as_tensor(tensor), &axes) || axes != 4 || torch_abi.sizes(as_tensor(tensor), &size)) return 0;
    return (stable_value)size[2];
}

/* The operator that is handed on to has the same results but for max_q and max_k. */
static void hand_on(const char *operator, stable_value * stack) {
    const stable_value max_q = length_of(stack[0]), max_k = length_of(stack[1]);
    aten_go_on(operator, stack);
    memmove(&stack[SEED], &stack[MAX_Q], (RESULTS - SEED) * sizeof stack[0]);
    stack[MAX_Q] = max_q, stack[MAX_K] = max_k;
}

/* query, key, value, dropout_p, is_causal, return_debug_mask, scale. */
void aten_flash(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct forward_places at = {"tttnnnN", .mask = -1, .dropout = 3, .causal = 4, .debug = 5, .scale = 6};
    (void)arguments, (void)results;
    if (!run_forward(stack, &at, false)) hand_on(STROBES("flash_attention"), stack);
}

/* grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
 * philox_offset, scale. */
void aten_flash_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct backward_places at = {"ttttttttnnnnttN", .out = 4,     .lse = 5,   .mask = -1,
                                              .dropout = 10,     .causal = 11, .scale = 14};
    (void)arguments, (void)results;
    if (aten_without_gradient(stack, at.kinds, 3)) return;
    if (!run_backward(stack, &at, true)) aten_go_on(STROBES("flash_attention_backward"), stack);
}

/* query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale. */
void aten_cudnn(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct forward_places at = {"tttTnnnnN", .mask = 3, .dropout = 5, .causal = 6, .debug = 7, .scale = 8};
    (void)arguments, (void)results;
    if (!run_forward(stack, &at, true)) hand_on(STROBES("cudnn_attention"), stack);
}

/* grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k,
 * dropout_p, is_causal, scale. */
void aten_cudnn_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct backward_places at = {"tttttttttttnnnnN", .out = 4,     .lse = 5,   .mask = 8,
                                              .dropout = 13,      .causal = 14, .scale = 15};
    (void)arguments, (void)results;
    if (aten_without_gradient(stack, at.kinds, 3)) return;
    if (!run_backward(stack, &at, true)) aten_go_on(STROBES("cudnn_attention_backward"), stack);
}

/* ----------------------------------------------------------------------------------------------------------- efficient --
 */

/* The operator that PyTorch calls with fp32. Its own kernel makes an fp32 product of three of tf32, and so may ours. */

/* Of lse, PyTorch's own kernel makes whole 32s of rows. */
static bool new_padded_lse(struct aten_call *c, bool wanted, struct torch_tensor **made) {
    if (wanted) return aten_new_lse(c, LSE_ROWS_LAST, (c->a.seq_q + 31) / 32 * 32, made);
    const int64_t size[3] = {c->a.batch, c->a.heads_q, 0}, stride[3] = {1, 1, 1};
    return torch_abi.empty(3, size, stride, torch_abi.float32(), c->q.place.device, c->q.place.index, made) == 0;
}

/* query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale -> output, log_sumexp, philox_seed,
 * philox_offset. */
void aten_efficient(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct forward_places at = {"tttTnnnN",  .mask = 3,  .dropout = 5,          .causal = 6,
                                             .debug = -1, .scale = 7, .flags = STROBE_TF32X3};
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[4] = {0};
    int64_t size[4];
    bool done = open_forward(&call, stack, &at);
    if (done) {
        out_size(&call, size);
        done = aten_new(&call, size, &made[0], &call.a.out) && new_padded_lse(&call, as_bool(stack[4]), &made[1]) &&
               aten_new_unread(&call, &made[2], 2) && aten_forward(&call);
    }
    aten_close(&call);
    if (done) {
        aten_answer(stack, at.kinds, made, 4);
    } else {
        aten_delete(made, 4);
        aten_go_on(STROBES("efficient_attention"), stack);
    }
}

/* grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
 * is_causal, scale -> the gradients of query, key, value; and of attn_bias, an undefined tensor: whoever asks for it is
 * handed on. */
void aten_efficient_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct backward_places at = {"tttttttttnlnN", .out = 5,     .lse = 6,    .mask = 4,
                                              .dropout = 9,    .causal = 11, .scale = 12, .flags = STROBE_TF32X3};
    (void)arguments, (void)results;
    if (aten_without_gradient(stack, at.kinds, 4)) return;
    stable_value of_bias = 0;
    struct torch_tensor *none = NULL;
    const bool asked = torch_abi.list_item(as_list(stack[10]), 3, &of_bias) != 0 || as_bool(of_bias);
    if (!asked && torch_abi.undefined(&none) == 0 && run_backward(stack, &at, false)) {
        stack[3] = (uintptr_t)none;
    } else {
        if (none) torch_abi.tensor_delete(none);
        aten_go_on(STROBES("efficient_attention_backward"), stack);
    }
}

/* ------------------------------------------------------------------------------------------------------------- offered --
 */

/* query, key, value, dropout_p, is_causal, attn_mask, scale -> output, in memory (batch, seq, heads, dim), and logsumexp:
 * an undefined tensor where no gradient is recorded, and where one is and the backward would be refused, nothing. */
void aten_flash_offered(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct forward_places at = {"tttnnTN", .mask = 5, .dropout = 3, .causal = 4, .debug = -1, .scale = 6};
    (void)arguments, (void)results;
    struct aten_call call = {0};
    struct torch_tensor *made[2] = {0};
    int64_t size[4];
    bool done = open_forward(&call, stack, &at);
    if (done) {
        out_size(&call, size);
        done = aten_new(&call, size, &made[0], &call.a.out) &&
               (torch_abi.grad_mode()
                    ? aten_new_lse(&call, LSE_ROWS_LAST, call.a.seq_q, &made[1]) && aten_has_backward(&call)
                    : torch_abi.undefined(&made[1]) == 0) &&
               aten_forward(&call);
    }
    aten_close(&call);
    if (done) {
        aten_answer(stack, at.kinds, made, 2);
    } else {
        aten_delete(made, 2);
        aten_release(stack, at.kinds);
        aten_refuse("Strobe's kernel takes query, key and value of one GPU, with elements and without dropout");
    }
}

#define OFFERED_BACKWARD "ttttttnnTN"

/* grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale -> the gradients of query, key and
 * value, in memory (batch, seq, heads, dim). */
void aten_flash_offered_backward(stable_value *stack, uint64_t arguments, uint64_t results) {
    static const struct backward_places at = {OFFERED_BACKWARD, .out = 4,    .lse = 5,   .mask = 8,
                                              .dropout = 6,     .causal = 7, .scale = 9, .mask_is_optional = true};
    (void)arguments, (void)results;
    if (run_backward(stack, &at, false)) return;
    aten_release(stack, at.kinds);
    aten_refuse("Strobe's kernel has no gradient for these tensors; what its forward gave, as it was, is accepted");
}

/* The same, seen by autograd: as aten_efficient_offered_graph of the CPU. */
void aten_flash_offered_graph(stable_value *stack, uint64_t arguments, uint64_t results) {
    if (aten_without_gradient(stack, OFFERED_BACKWARD, 3)) return;
    if (torch_abi.grad_mode())
        aten_go_on("strobe::_flash_backward", stack);
    else if (aten_goes_straight(stack, 4) && !aten_given_tensor(stack[8]))
        aten_flash_offered_backward(stack, arguments, results);
    else
        aten_go_on("strobe::_flash_backward_below", stack);
}
