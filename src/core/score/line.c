/* SPDX-License-Identifier: BSD-3-Clause
 *
 * line.c: see line.h. Numbers are those of the call: scalars, strides and extents have the values that it gives. */
#include "core/score/line.h"

bool strobe__score_add(int64_t *x, int64_t y, int64_t factor) {
    int64_t product;
    return !__builtin_mul_overflow(y, factor, &product) && !__builtin_add_overflow(*x, product, x);
}

/* sum += factor * x; false when a number leaves 64 bits. */
static bool add_line(struct score_line *sum, const struct score_line *x, int64_t factor) {
    return strobe__score_add(&sum->row, x->row, factor) && strobe__score_add(&sum->key, x->key, factor) &&
           strobe__score_add(&sum->seq_q, x->seq_q, factor) && strobe__score_add(&sum->seq_k, x->seq_k, factor) &&
           strobe__score_add(&sum->one, x->one, factor);
}

static bool is_number(const struct score_line *x) { return !x->row && !x->key && !x->seq_q && !x->seq_k; }

/* What is affine was checked to stay in 32 bits, so it does not wrap. */
bool strobe__score_add_line(struct score_line *sum, const struct score_call *call, uint16_t n, int64_t factor) {
    const struct score_node *x = &call->function->node[n];
    if (!x->affine) return false;
    switch ((enum score_operation)x->operation) {
    case OP_CONSTANT: return strobe__score_add(&sum->one, (int64_t)x->value, factor);
    case OP_SCALAR: return strobe__score_add(&sum->one, (int64_t)call->scalar[x->number], factor);
    case OP_STRIDE: return strobe__score_add(&sum->one, call->array[x->number].stride[x->axis], factor);
    case OP_LAST: return strobe__score_add(&sum->one, call->array[x->number].extent[x->axis] - 1, factor);
    case OP_ROW: return strobe__score_add(&sum->row, 1, factor);
    case OP_KEY: return strobe__score_add(&sum->key, 1, factor);
    case OP_SEQ_Q: return strobe__score_add(&sum->seq_q, 1, factor);
    case OP_SEQ_K: return strobe__score_add(&sum->seq_k, 1, factor);
    case OP_I_NEG: return strobe__score_add_line(sum, call, x->operand[0], -factor);
    case OP_I_ADD:
        return strobe__score_add_line(sum, call, x->operand[0], factor) &&
               strobe__score_add_line(sum, call, x->operand[1], factor);
    case OP_I_SUB:
        return strobe__score_add_line(sum, call, x->operand[0], factor) &&
               strobe__score_add_line(sum, call, x->operand[1], -factor);
    case OP_I_MUL: {
        struct score_line a = {0}, b = {0};
        if (!strobe__score_add_line(&a, call, x->operand[0], 1) || !strobe__score_add_line(&b, call, x->operand[1], 1))
            return false;
        const struct score_line *number = is_number(&a) ? &a : &b, *other = is_number(&a) ? &b : &a;
        int64_t product = factor;
        return !__builtin_mul_overflow(product, number->one, &product) && add_line(sum, other, product);
    }
    default: return false;
    }
}
