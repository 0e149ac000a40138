/* SPDX-License-Identifier: BSD-3-Clause
 *
 * derive.c: the derivatives of a score function, by reverse mode over its graph. The adjoint of a node is d score / d node;
 * those of the root's operands follow from the root's, 1, and so on down. All are nodes of the same graph, so that a kernel
 * evaluates them as it does the function. An adjoint is multiplied by a derivative that may be infinite or NaN, such as
 * that of log at 0, by F_CHAIN: what ?: has turned off stays 0. */
#include <math.h>

#include "core/score/score.h"

struct derivation {
    struct strobe_score *f;
    uint16_t adjoint[SCORE_MOST_NODES]; /* NO_NODE: 0 */
    bool active[SCORE_MOST_NODES];      /* depends on the score or on an array of floats */
    bool full;                          /* a node could not be had */
};

static uint16_t make(struct derivation *d, enum score_operation operation, uint16_t a, uint16_t b, uint16_t c) {
    const uint16_t n = strobe__score_node(d->f, operation, a, b, c);
    d->full = d->full || n == NO_NODE;
    return n;
}

static uint16_t number(struct derivation *d, double value) {
    const uint16_t n = strobe__score_constant(d->f, false, value);
    d->full = d->full || n == NO_NODE;
    return n;
}

/* Adds to the adjoint of a node. */
static void add(struct derivation *d, uint16_t node, uint16_t adjoint) {
    if (!d->active[node] || d->full) return;
    const uint16_t before = d->adjoint[node];
    d->adjoint[node] = before == NO_NODE ? adjoint : make(d, OP_F_ADD, before, adjoint, 0);
}

static void add_product(struct derivation *d, uint16_t node, uint16_t adjoint, uint16_t factor) {
    if (d->active[node]) add(d, node, make(d, OP_F_MUL, adjoint, factor, 0));
}

static void add_chain(struct derivation *d, uint16_t node, uint16_t adjoint, uint16_t factor) {
    if (d->active[node]) add(d, node, make(d, OP_F_CHAIN, adjoint, factor, 0));
}

/* The adjoint goes to one of two operands. */
static void add_selected(struct derivation *d, uint16_t condition, uint16_t yes, uint16_t no, uint16_t adjoint) {
    const uint16_t zero = number(d, 0);
    if (d->active[yes]) add(d, yes, make(d, OP_F_SELECT, condition, adjoint, zero));
    if (d->active[no]) add(d, no, make(d, OP_F_SELECT, condition, zero, adjoint));
}

/* x < 0 ? -1 : 0 < x ? 1 : 0 */
static uint16_t sign(struct derivation *d, uint16_t x) {
    const uint16_t zero = number(d, 0), one = number(d, 1);
    const uint16_t positive = make(d, OP_F_SELECT, make(d, OP_F_LESS, zero, x, 0), one, zero);
    return make(d, OP_F_SELECT, make(d, OP_F_LESS, x, zero, 0), number(d, -1), positive);
}

static void of_arithmetic(struct derivation *d, const struct score_node *n, uint16_t g) {
    const uint16_t a = n->operand[0], b = n->operand[1];
    switch ((enum score_operation)n->operation) {
    case OP_F_ADD: add(d, a, g), add(d, b, g); break;
    case OP_F_SUB:
        add(d, a, g);
        if (d->active[b]) add(d, b, make(d, OP_F_NEG, g, 0, 0));
        break;
    case OP_F_MUL: add_product(d, a, g, b), add_product(d, b, g, a); break;
    case OP_F_DIV: {
        const uint16_t inverse = make(d, OP_F_DIV, number(d, 1), b, 0);
        add_chain(d, a, g, inverse);
        if (d->active[b])
            add_chain(d, b, g, make(d, OP_F_NEG, make(d, OP_F_MUL, make(d, OP_F_MUL, a, inverse, 0), inverse, 0), 0, 0));
        break;
    }
    case OP_F_NEG: add(d, a, make(d, OP_F_NEG, g, 0, 0)); break;
    case OP_F_ABS: add_product(d, a, g, sign(d, a)); break;
    case OP_F_MIN: add_selected(d, make(d, OP_F_LESS, a, b, 0), a, b, g); break;
    case OP_F_MAX: add_selected(d, make(d, OP_F_LESS, b, a, 0), a, b, g); break;
    case OP_F_SELECT: add_selected(d, a, b, n->operand[2], g); break;
    case OP_F_CHAIN: add_chain(d, a, g, b), add_chain(d, b, g, a); break;
    default: break; /* floor, comparisons, conversions: 0 */
    }
}

static void of_function(struct derivation *d, const struct score_node *n, uint16_t self, uint16_t g) {
    const uint16_t a = n->operand[0], b = n->operand[1];
    switch ((enum score_operation)n->operation) {
    case OP_F_EXP: add_chain(d, a, g, self); break;
    case OP_F_EXP2: add_chain(d, a, g, make(d, OP_F_MUL, self, number(d, log(2)), 0)); break;
    case OP_F_LOG: add_chain(d, a, g, make(d, OP_F_DIV, number(d, 1), a, 0)); break;
    case OP_F_TANH: add_product(d, a, g, make(d, OP_F_SUB, number(d, 1), make(d, OP_F_MUL, self, self, 0), 0)); break;
    case OP_F_SQRT: add_chain(d, a, g, make(d, OP_F_DIV, number(d, 0.5), self, 0)); break;
    case OP_F_POW:
        if (d->active[a]) {
            const uint16_t less = make(d, OP_F_SUB, b, number(d, 1), 0);
            add_chain(d, a, g, make(d, OP_F_MUL, b, make(d, OP_F_POW, a, less, 0), 0));
        }
        if (d->active[b]) add_chain(d, b, g, make(d, OP_F_MUL, self, make(d, OP_F_LOG, a, 0, 0), 0));
        break;
    default: of_arithmetic(d, n, g); break;
    }
}

bool strobe__score_derive(struct strobe_score *f) {
    struct derivation d = {.f = f};
    for (int n = 0; n < SCORE_MOST_NODES; ++n) d.adjoint[n] = NO_NODE;
    for (uint16_t n = 0; n <= f->score; ++n) {
        const struct score_node *x = &f->node[n];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        d.active[n] = x->operation == OP_SCORE || (x->operation == OP_LOAD && !x->is_integer);
        for (int k = 0; k < operands && !x->is_integer && x->operation != OP_LOAD; ++k)
            d.active[n] = d.active[n] || d.active[x->operand[k]];
    }
    d.adjoint[f->score] = number(&d, 1);
    f->slope = number(&d, 0);
    for (int n = f->score; n >= 0 && !d.full; --n) {
        if (d.adjoint[n] == NO_NODE || !d.active[n]) continue;
        const struct score_node x = f->node[n];
        if (x.operation == OP_SCORE)
            f->slope = d.adjoint[n];
        else if (x.operation != OP_LOAD)
            of_function(&d, &x, (uint16_t)n, d.adjoint[n]);
    }
    for (uint16_t n = 0; n < f->load_count; ++n) {
        const struct score_load *load = &f->load[n];
        f->adjoint[n] = load->node <= f->score && d.active[load->node] ? d.adjoint[load->node] : NO_NODE;
        if (f->adjoint[n] != NO_NODE) f->array_has_gradient[load->array] = true;
    }
    return !d.full;
}
