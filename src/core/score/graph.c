/* SPDX-License-Identifier: BSD-3-Clause
 *
 * graph.c: nodes of a score function. A node that is already there is used again, and what is made of constants alone is
 * worked out at once. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/score/score.h"

bool strobe__score_fail(struct score_error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->sentence, sizeof error->sentence, format, arguments);
    va_end(arguments);
    return false;
}

static const uint8_t operands[] = {
#define SCORE_OPERANDS(name, count) count,
    STROBE__SCORE_OPERATIONS(SCORE_OPERANDS)
#undef SCORE_OPERANDS
};

int strobe__score_operands(enum score_operation operation) { return operands[operation]; }

static bool same(const struct score_node *x, const struct score_node *y) {
    return x->operation == y->operation && x->is_integer == y->is_integer && x->number == y->number && x->axis == y->axis &&
           memcmp(x->operand, y->operand, sizeof x->operand) == 0 && memcmp(&x->value, &y->value, sizeof x->value) == 0;
}

static uint16_t enter(struct strobe_score *f, const struct score_node *node) {
    for (uint16_t n = 0; n < f->node_count; ++n)
        if (same(&f->node[n], node)) return n;
    if (f->node_count == SCORE_MOST_NODES) return NO_NODE;
    f->node[f->node_count] = *node;
    return f->node_count++;
}

uint16_t strobe__score_constant(struct strobe_score *f, bool is_integer, double value) {
    const struct score_node node = {
        .operation = OP_CONSTANT, .is_integer = is_integer, .varies = OF_CALL, .affine = is_integer, .value = value};
    return enter(f, &node);
}

uint16_t strobe__score_named(struct strobe_score *f, enum score_operation operation, uint8_t number, uint8_t axis) {
    struct score_node node = {.operation = (uint8_t)operation, .is_integer = true, .number = number, .axis = axis};
    if (operation == OP_SCALAR) node.is_integer = f->scalar_is_integer[number];
    if (operation == OP_SCORE) node.is_integer = false, node.varies = OF_PAIR;
    if (operation == OP_ROW || operation == OP_HEAD) node.varies = OF_ROW;
    if (operation == OP_KEY) node.varies = OF_KEY;
    node.affine = node.is_integer;
    return enter(f, &node);
}

uint16_t strobe__score_load(struct strobe_score *f, uint8_t array, uint16_t offset) {
    struct score_node node = {.operation = OP_LOAD, .number = array, .operand = {offset}, .varies = f->node[offset].varies};
    node.is_integer = f->array_dtype[array] == STROBE_INT32 || f->array_dtype[array] == STROBE_UINT8;
    return enter(f, &node);
}

/* Whether the result of an operation is an integer. */
static bool gives_integer(enum score_operation operation) {
    return (operation >= OP_I_ADD && operation <= OP_I_SELECT) || operation == OP_F_LESS || operation == OP_F_LESS_EQUAL ||
           operation == OP_F_EQUAL || operation == OP_F_TO_I;
}

/* Whether a node is the same for all scores of a sequence whatever it is, and so may multiply a position. */
static bool is_number(const struct score_node *n) {
    return n->operation == OP_CONSTANT || n->operation == OP_SCALAR || n->operation == OP_STRIDE || n->operation == OP_LAST;
}

static bool is_affine(const struct strobe_score *f, enum score_operation operation, uint16_t a, uint16_t b) {
    if (operation == OP_I_NEG) return f->node[a].affine;
    if (operation == OP_I_ADD || operation == OP_I_SUB) return f->node[a].affine && f->node[b].affine;
    return operation == OP_I_MUL && f->node[a].affine && f->node[b].affine &&
           (is_number(&f->node[a]) || is_number(&f->node[b]));
}

static bool is_value(const struct strobe_score *f, uint16_t n, double value) {
    return f->node[n].operation == OP_CONSTANT && f->node[n].value == value;
}

/* x + 0, x * 1 and the like, which derivatives are full of; NO_NODE: nothing simpler. */
static uint16_t simpler(const struct strobe_score *f, enum score_operation operation, uint16_t a, uint16_t b) {
    if (operation == OP_F_ADD || operation == OP_I_ADD) {
        if (is_value(f, a, 0)) return b;
        if (is_value(f, b, 0)) return a;
    }
    if (operation == OP_F_SUB && is_value(f, b, 0)) return a;
    if (operation == OP_F_MUL || operation == OP_I_MUL || operation == OP_F_CHAIN) {
        if (is_value(f, a, 1)) return b;
        if (is_value(f, b, 1)) return a;
    }
    return NO_NODE;
}

uint16_t strobe__score_node(struct strobe_score *f, enum score_operation operation, uint16_t a, uint16_t b, uint16_t c) {
    const uint16_t of[3] = {a, b, c};
    struct score_node node = {.operation = (uint8_t)operation};
    bool constant = true;
    double value[3] = {0, 0, 0};
    for (int n = 0; n < operands[operation]; ++n) {
        if (of[n] == NO_NODE) return NO_NODE;
        node.operand[n] = of[n];
        node.varies |= f->node[of[n]].varies;
        constant = constant && f->node[of[n]].operation == OP_CONSTANT;
        value[n] = f->node[of[n]].value;
    }
    node.is_integer = gives_integer(operation);
    if (constant)
        return strobe__score_constant(f, node.is_integer, strobe__score_apply(operation, value[0], value[1], value[2]));
    const uint16_t known = operands[operation] == 2 ? simpler(f, operation, a, b) : NO_NODE;
    if (known != NO_NODE) return known;
    node.affine = is_affine(f, operation, a, b);
    return enter(f, &node);
}
