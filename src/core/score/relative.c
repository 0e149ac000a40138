/* SPDX-License-Identifier: BSD-3-Clause
 *
 * relative.c: see relative.h. Which way a value depends on the positions is followed from the leaves on: a sum of i's and
 * j's is known by how many of each it has, anything else by whether it moves, and whether it moves with i - j alone. */
#include "core/score/relative.h"

#include <string.h>

/* How a node depends on i and j. */
struct dependence {
    bool moves;    /* at all */
    bool diagonal; /* only by i - j, or not at all */
    bool line;     /* row i + key j and what does not move */
    int64_t row, key;
};

static struct dependence of_line(int64_t row, int64_t key) {
    return (struct dependence){.moves = row || key, .diagonal = row == -key, .line = true, .row = row, .key = key};
}

/* a + factor b. Factors stay far below 64 bits: they have 32, and there are few nodes between a position and its sum. */
static struct dependence of_sum(const struct dependence *a, const struct dependence *b, int64_t factor) {
    enum { MOST = 1 << 30 };
    if (a->line && b->line && a->row < MOST && a->row > -MOST && a->key < MOST && a->key > -MOST && b->row < MOST &&
        b->row > -MOST && b->key < MOST && b->key > -MOST)
        return of_line(a->row + factor * b->row, a->key + factor * b->key);
    return (struct dependence){.moves = a->moves || b->moves, .diagonal = a->diagonal && b->diagonal};
}

static struct dependence of_node(const struct strobe_score *f, uint16_t n, const struct dependence *of) {
    const struct score_node *x = &f->node[n];
    const int operands = strobe__score_operands((enum score_operation)x->operation);
    static const struct dependence none = {.diagonal = true, .line = true};
    switch ((enum score_operation)x->operation) {
    case OP_ROW: return of_line(1, 0);
    case OP_KEY: return of_line(0, 1);
    case OP_I_ADD: return of_sum(&of[x->operand[0]], &of[x->operand[1]], 1);
    case OP_I_SUB: return of_sum(&of[x->operand[0]], &of[x->operand[1]], -1);
    case OP_I_NEG: return of_sum(&none, &of[x->operand[0]], -1);
    case OP_I_LESS:
    case OP_I_LESS_EQUAL:
    case OP_I_EQUAL: { /* i < j is 0 < j - i */
        struct dependence apart = of_sum(&of[x->operand[0]], &of[x->operand[1]], -1);
        apart.line = !apart.moves;
        return apart;
    }
    default: break;
    }
    struct dependence all = none;
    for (int k = 0; k < operands; ++k) {
        all.moves = all.moves || of[x->operand[k]].moves;
        all.diagonal = all.diagonal && of[x->operand[k]].diagonal;
    }
    all.line = !all.moves;
    return all;
}

uint16_t strobe__score_relative(const struct strobe_score *f) {
    struct dependence of[SCORE_MOST_NODES];
    bool made_of_score[SCORE_MOST_NODES] = {false};
    uint16_t found = NO_NODE;
    memset(of, 0, sizeof of);
    const struct score_program *p = &f->of_score;
    const int steps = p->count[0] + p->count[1] + p->count[2] + p->count[3];
    for (int s = 0; s < steps; ++s) {
        const uint16_t n = p->step[s];
        const struct score_node *x = &f->node[n];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        of[n] = of_node(f, n, of);
        made_of_score[n] = x->operation == OP_SCORE;
        for (int k = 0; k < operands; ++k) made_of_score[n] = made_of_score[n] || made_of_score[x->operand[k]];
        for (int k = 0; k < operands && made_of_score[n]; ++k) {
            const uint16_t beside = x->operand[k];
            if (made_of_score[beside] || !of[beside].moves) continue;
            if (f->node[beside].is_integer || !of[beside].diagonal || (found != NO_NODE && found != beside)) return NO_NODE;
            found = beside;
        }
    }
    return found;
}
