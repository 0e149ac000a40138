/* SPDX-License-Identifier: BSD-3-Clause
 *
 * alibi.c: see alibi.h. The score is the score and a product beside it; the product is of a distance, which depends on
 * positions as |i - j| does, and of a slope, which is a number, a scalar or an element of an array of heads. */
#include "core/score/alibi.h"

#include "core/score/line.h"

/* The product so far. */
struct product {
    const struct problem *p;
    const struct strobe_score *f;
    struct score_alibi *to;
    bool has_distance, has_array;
};

static bool is_position(const struct score_node *x, enum score_operation operation) {
    return x->operation == (uint8_t)operation;
}

/* slope[h], or slope[b][h], of fp32 elements whose heads are neighbours. */
static bool take_array(struct product *x, const struct score_node *load) {
    const struct score_call *call = &x->p->score_call;
    const strobe_score_elements *array = &call->array[load->number];
    const int rank = x->f->array_rank[load->number];
    const struct score_load *l = NULL;
    for (uint16_t n = 0; n < x->f->load_count; ++n)
        if (&x->f->node[x->f->load[n].node] == load) l = &x->f->load[n];
    if (!l || x->has_array || rank > 2 || array->dtype != STROBE_FP32) return false;
    if (!is_position(&x->f->node[l->index[rank - 1]], OP_HEAD)) return false;
    if (rank == 2 && !is_position(&x->f->node[l->index[0]], OP_BATCH)) return false;
    if (array->stride[rank - 1] != 1 && x->p->a.heads_q > 1) return false;
    x->to->slopes = array->data, x->to->stride_batch = rank == 2 ? array->stride[0] : 0;
    return x->has_array = true;
}

/* i - j + one, or what is left of it where the mask shows only pairs on one side. */
static bool take_distance(struct product *x, uint16_t node, bool is_absolute) {
    struct score_line line = {0};
    const struct problem *p = x->p;
    if (x->has_distance || !strobe__score_add_line(&line, &p->score_call, node, 1)) return false;
    if (line.key > 0) { /* j - i - one */
        line = (struct score_line){-line.row, -line.key, -line.seq_q, -line.seq_k, -line.one};
        x->to->factor *= is_absolute ? 1 : -1;
    }
    const bool bottom = line.seq_k == 1 && line.seq_q == -1;
    if (line.row != 1 || line.key != -1 || (!bottom && (line.seq_k || line.seq_q))) return false;
    if (line.one > SCORE_FARTHEST || line.one < -SCORE_FARTHEST || (!bottom && p->a.varlen)) return false;
    x->to->shift = line.one + (bottom ? 0 : p->a.seq_q - p->a.seq_k);
    if (!is_absolute) { /* whether every pair that is seen has j <= i + one, around ALiBi's diagonal, the bottom-right one */
        const struct sequence s = {.rows = p->a.seq_q, .keys = p->a.seq_k};
        const struct band band = strobe__band(p, &s);
        const bool by_length = p->a.varlen && p->a.mask != STROBE_MASK_CAUSAL_BOTTOM_RIGHT &&
                               p->a.mask != STROBE_MASK_WINDOW_BOTTOM_RIGHT;
        const int64_t apart = p->a.q_start - p->a.k_start + s.keys - s.rows;
        if (by_length || band.right == BAND_UNBOUNDED || band.diagonal + band.right > apart + x->to->shift) return false;
    }
    return x->has_distance = true;
}

/* A factor of the product; false where it is none that ALiBi has. */
static bool take_factor(struct product *x, uint16_t n) {
    const struct score_node *node = &x->f->node[n];
    const struct score_node *inner = &x->f->node[node->operand[0]];
    switch ((enum score_operation)node->operation) {
    case OP_F_MUL: return take_factor(x, node->operand[0]) && take_factor(x, node->operand[1]);
    case OP_F_NEG: x->to->factor = -x->to->factor; return take_factor(x, node->operand[0]);
    case OP_CONSTANT: x->to->factor *= node->value; return true;
    case OP_SCALAR: x->to->factor *= x->p->score_call.scalar[node->number]; return true;
    case OP_LOAD: return take_array(x, node);
    case OP_F_ABS:
        if (inner->operation != OP_I_TO_F) return false;
        return take_distance(x, inner->operand[0], true);
    case OP_I_TO_F:
        if (inner->operation == OP_I_ABS) return take_distance(x, inner->operand[0], true);
        if (inner->operation == OP_SCALAR) return take_factor(x, node->operand[0]);
        return take_distance(x, node->operand[0], false);
    default: return false;
    }
}

bool strobe__score_as_alibi(const struct problem *p, struct score_alibi *alibi) {
    const struct strobe_score *f = p->score_call.function;
    if (!p->a.score || !f->has_score || p->score_call.wants_gradients) return false;
    const struct score_node *root = &f->node[f->score];
    const bool first = f->node[root->operand[0]].operation == OP_SCORE,
               second = f->node[root->operand[1]].operation == OP_SCORE;
    *alibi = (struct score_alibi){.factor = root->operation == OP_F_SUB ? 1 : -1}; /* ALiBi takes away */
    if (!(root->operation == OP_F_ADD && first != second) && !(root->operation == OP_F_SUB && first && !second))
        return false;
    struct product product = {.p = p, .f = f, .to = alibi};
    return take_factor(&product, root->operand[first ? 1 : 0]) && product.has_distance && alibi->factor - alibi->factor == 0;
}
