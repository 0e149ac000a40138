/* SPDX-License-Identifier: BSD-3-Clause
 *
 * evaluate.c: a score function for one score in float64, for the oracle. Integers are held as doubles, which have all of
 * their 32 bits. */
#include <math.h>

#include "core/element.h"
#include "core/score/score.h"

static double wrap(int64_t x) { return (double)(int32_t)(uint32_t)(uint64_t)x; }

/* Towards zero, the nearest where it does not fit, 0 of a NaN. */
static double to_integer(double x) {
    if (x != x) return 0;
    return x >= 2147483647.0 ? 2147483647.0 : x <= -2147483648.0 ? -2147483648.0 : trunc(x);
}

static double apply_to_integers(enum score_operation operation, int64_t a, int64_t b, int64_t c) {
    switch (operation) {
    case OP_I_ADD: return wrap(a + b);
    case OP_I_SUB: return wrap(a - b);
    case OP_I_MUL: return wrap(a * b);
    case OP_I_DIV: return b == 0 ? 0 : wrap(a / b);
    case OP_I_MOD: return b == 0 ? 0 : wrap(a % b);
    case OP_I_NEG: return wrap(-a);
    case OP_I_ABS: return wrap(a < 0 ? -a : a);
    case OP_I_MIN: return (double)(a < b ? a : b);
    case OP_I_MAX: return (double)(a > b ? a : b);
    case OP_I_LESS: return a < b;
    case OP_I_LESS_EQUAL: return a <= b;
    case OP_I_EQUAL: return a == b;
    case OP_I_AND: return a && b;
    case OP_I_OR: return a || b;
    case OP_I_NOT: return !a;
    case OP_I_SELECT: return (double)(a ? b : c);
    default: return (double)a; /* I_TO_F */
    }
}

static double apply_to_floats(enum score_operation operation, double a, double b, double c) {
    switch (operation) {
    case OP_F_ADD: return a + b;
    case OP_F_SUB: return a - b;
    case OP_F_MUL: return a * b;
    case OP_F_DIV: return a / b;
    case OP_F_NEG: return -a;
    case OP_F_ABS: return fabs(a);
    case OP_F_MIN: return a < b ? a : b;
    case OP_F_MAX: return a > b ? a : b;
    case OP_F_LESS: return a < b;
    case OP_F_LESS_EQUAL: return a <= b;
    case OP_F_EQUAL: return a == b;
    case OP_F_SELECT: return a != 0 ? b : c;
    case OP_F_CHAIN: return a == 0 ? 0 : a * b;
    case OP_F_EXP: return exp(a);
    case OP_F_EXP2: return exp2(a);
    case OP_F_LOG: return log(a);
    case OP_F_TANH: return tanh(a);
    case OP_F_SQRT: return sqrt(a);
    case OP_F_FLOOR: return floor(a);
    case OP_F_POW: return pow(a, b);
    default: return to_integer(a); /* F_TO_I */
    }
}

double strobe__score_apply(enum score_operation operation, double a, double b, double c) {
    if ((operation >= OP_I_ADD && operation <= OP_I_SELECT) || operation == OP_I_TO_F)
        return apply_to_integers(operation, (int64_t)a, (int64_t)b, (int64_t)c);
    return apply_to_floats(operation, a, b, c);
}

size_t strobe__score_dtype_bytes(int32_t dtype) {
    switch (dtype) {
    case STROBE_UINT8: return 1;
    case STROBE_FP16:
    case STROBE_BF16: return 2;
    case STROBE_FP64: return 8;
    default: return 4;
    }
}

double strobe__score_element(const strobe_score_elements *array, int64_t offset) {
    if (array->dtype == STROBE_INT32) return ((const int32_t *)array->data)[offset];
    if (array->dtype == STROBE_UINT8) return ((const uint8_t *)array->data)[offset];
    return element_load(array->data, array->dtype, offset);
}

static double leaf(const struct score_call *call, const struct score_node *n, const struct score_place *at, double score) {
    switch ((enum score_operation)n->operation) {
    case OP_CONSTANT: return n->value;
    case OP_SCALAR: return call->scalar[n->number];
    case OP_SCORE: return score;
    case OP_BATCH: return (double)at->b;
    case OP_HEAD: return (double)at->h;
    case OP_HEAD_KV: return (double)at->hkv;
    case OP_ROW: return (double)at->i;
    case OP_KEY: return (double)at->j;
    case OP_SEQ_Q: return (double)at->seq_q;
    case OP_SEQ_K: return (double)at->seq_k;
    case OP_STRIDE: return (double)call->array[n->number].stride[n->axis];
    default: return (double)(call->array[n->number].extent[n->axis] - 1); /* LAST */
    }
}

void strobe__score_evaluate(const struct score_call *call, const struct score_program *program,
                            const struct score_place *place, double score, bool in_fp32, double value[SCORE_MOST_NODES]) {
    const int steps = program->count[0] + program->count[1] + program->count[2] + program->count[3];
    for (int step = 0; step < steps; ++step) {
        const uint16_t at = program->step[step];
        const struct score_node *n = &call->function->node[at];
        const int operands = strobe__score_operands((enum score_operation)n->operation);
        double of[3] = {0, 0, 0};
        for (int k = 0; k < operands; ++k) of[k] = value[n->operand[k]];
        if (operands == 0)
            value[at] = leaf(call, n, place, score);
        else if (n->operation == OP_LOAD)
            value[at] = strobe__score_element(&call->array[n->number], (int64_t)of[0]);
        else
            value[at] = strobe__score_apply((enum score_operation)n->operation, of[0], of[1], of[2]);
        if (in_fp32 && !n->is_integer) value[at] = (double)(float)value[at];
    }
}
