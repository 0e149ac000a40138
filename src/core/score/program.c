/* SPDX-License-Identifier: BSD-3-Clause
 *
 * program.c: which nodes an evaluation needs, in which order, and where their values lie. Values of a call, a row or a key
 * are worked out rarely, and each has a place of its own. A value of a pair has a register, which is given to another once
 * nothing reads it any more. */
#include <string.h>

#include "core/score/score.h"

/* Marks what the roots need, and writes the steps, class by class. */
static void find_steps(const struct strobe_score *f, struct score_program *p, const bool *root) {
    bool needed[SCORE_MOST_NODES] = {false};
    for (int n = f->node_count - 1; n >= 0; --n) {
        needed[n] = needed[n] || root[n];
        const int operands = strobe__score_operands((enum score_operation)f->node[n].operation);
        for (int k = 0; k < operands && needed[n]; ++k) needed[f->node[n].operand[k]] = true;
    }
    int steps = 0;
    for (int class = 0; class < 4; ++class) {
        const int first = steps;
        for (uint16_t n = 0; n < f->node_count; ++n)
            if (needed[n] && f->node[n].varies == class) p->step[steps++] = n;
        p->count[class] = (uint16_t)(steps - first);
    }
}

/* The registers of the pairs' values. Those of roots are never given away; the score itself lies with the caller. */
static void assign_registers(const struct strobe_score *f, struct score_program *p, const bool *root) {
    uint16_t last[SCORE_MOST_NODES] = {0}, owner_end[SCORE_MOST_NODES];
    const uint16_t *const pairs = p->step + p->count[0] + p->count[1] + p->count[2];
    p->registers = 0;
    for (uint16_t s = 0; s < p->count[OF_PAIR]; ++s) {
        const struct score_node *x = &f->node[pairs[s]];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        for (int k = 0; k < operands; ++k) last[x->operand[k]] = s;
        if (root[pairs[s]]) last[pairs[s]] = UINT16_MAX;
    }
    for (uint16_t s = 0; s < p->count[OF_PAIR]; ++s)
        if (root[pairs[s]]) last[pairs[s]] = UINT16_MAX;
    for (uint16_t s = 0; s < p->count[OF_PAIR]; ++s) {
        if (f->node[pairs[s]].operation == OP_SCORE) continue;
        uint16_t r = 0;
        while (r < p->registers && owner_end[r] >= s) ++r; /* operands of this step keep their registers */
        if (r == p->registers) ++p->registers;
        owner_end[r] = last[pairs[s]];
        p->register_of[pairs[s]] = r;
    }
}

/* The values of keys that have to lie in every lane. */
static void find_wide(const struct strobe_score *f, struct score_program *p, const bool *root) {
    bool wide[SCORE_MOST_NODES] = {false};
    const uint16_t *const pairs = p->step + p->count[0] + p->count[1] + p->count[2];
    for (uint16_t s = 0; s < p->count[OF_PAIR]; ++s)
        for (int k = 0; k < strobe__score_operands((enum score_operation)f->node[pairs[s]].operation); ++k)
            wide[f->node[pairs[s]].operand[k]] = true;
    p->wide_count = 0;
    for (uint16_t n = 0; n < f->node_count; ++n)
        if ((wide[n] || root[n]) && f->node[n].varies == OF_KEY) p->wide[p->wide_count++] = n;
}

static void make_program(const struct strobe_score *f, struct score_program *p, const bool *root) {
    find_steps(f, p, root);
    assign_registers(f, p, root);
    find_wide(f, p, root);
}

void strobe__score_programs(struct strobe_score *f) {
    bool root[SCORE_MOST_NODES] = {false};
    uint16_t slots[4] = {0};
    for (uint16_t n = 0; n < f->node_count; ++n) f->place[n] = slots[f->node[n].varies]++;
    memcpy(f->slots, slots, sizeof f->slots);
    if (f->has_visible) {
        root[f->visible] = true;
        make_program(f, &f->of_visible, root);
        root[f->visible] = false;
    }
    if (!f->has_score) return;
    root[f->score] = true;
    make_program(f, &f->of_score, root);
    root[f->score] = false;
    root[f->slope] = true;
    make_program(f, &f->of_slope, root);
    for (uint16_t n = 0; n < f->load_count; ++n)
        for (int axis = 0; f->adjoint[n] != NO_NODE && axis < f->array_rank[f->load[n].array]; ++axis)
            root[f->adjoint[n]] = root[f->load[n].index[axis]] = true;
    make_program(f, &f->of_gradients, root);
}
