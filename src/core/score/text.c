/* SPDX-License-Identifier: BSD-3-Clause
 *
 * text.c: see text.h. A node becomes a constant of its number, v7, in the order of a program. */
#include "core/score/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/score/relative.h"

void strobe__score_print(struct score_text *t, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int count = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (count >= 0 && !t->full && t->length + (size_t)count + 1 > t->room) {
        const size_t room = 2 * t->room + (size_t)count + 4096;
        char *larger = realloc(t->text, room);
        if (larger) t->text = larger, t->room = room;
        t->full = !larger;
    }
    if (count >= 0 && !t->full) {
        vsnprintf(t->text + t->length, t->room - t->length, format, again);
        t->length += (size_t)count;
    }
    va_end(again);
}

static const char *const names[] = {
#define SCORE_NAME(name, operands) #name,
    STROBE__SCORE_OPERATIONS(SCORE_NAME)
#undef SCORE_NAME
};

static const char *name_of_dtype(int dtype) {
    switch (dtype) {
    case STROBE_FP16: return "FP16";
    case STROBE_BF16: return "BF16";
    case STROBE_INT32: return "INT32";
    case STROBE_UINT8: return "UINT8";
    default: return "FP32";
    }
}

static void write_constant(struct score_text *t, const struct score_node *n) {
    const float x = (float)n->value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (n->is_integer && n->value == -2147483648.0)
        strobe__score_print(t, "-2147483647 - 1");
    else if (n->is_integer)
        strobe__score_print(t, "%d", (int)n->value);
    else
        strobe__score_print(t, "SCORE_FLOAT(0x%08xu)", (unsigned)bits); /* in any locale, infinities and NaN too */
}

static void write_leaf(struct score_text *t, const struct strobe_score *f, const struct score_node *n, unsigned dense) {
    const bool is_last = n->axis == f->array_rank[n->number] - 1;
    switch ((enum score_operation)n->operation) {
    case OP_CONSTANT: write_constant(t, n); break;
    case OP_SCALAR: strobe__score_print(t, "a->%s[%d]", n->is_integer ? "integer" : "number", n->number); break;
    case OP_SCORE: strobe__score_print(t, "score"); break;
    case OP_BATCH: strobe__score_print(t, "at->b"); break;
    case OP_HEAD: strobe__score_print(t, "at->h"); break;
    case OP_HEAD_KV: strobe__score_print(t, "at->hkv"); break;
    case OP_ROW: strobe__score_print(t, "at->i"); break;
    case OP_KEY: strobe__score_print(t, "at->j"); break;
    case OP_SEQ_Q: strobe__score_print(t, "at->seq_q"); break;
    case OP_SEQ_K: strobe__score_print(t, "at->seq_k"); break;
    case OP_STRIDE:
        if (is_last && dense >> n->number & 1)
            strobe__score_print(t, "1");
        else
            strobe__score_print(t, "a->stride[%d][%d]", n->number, n->axis);
        break;
    default: strobe__score_print(t, "a->last[%d][%d]", n->number, n->axis); break;
    }
}

/* An affine integer was checked to stay in 32 bits, so that it needs no wrapping, and a compiler may make what is constant
 * in it part of an address. */
static const char *plain_operator(const struct score_node *n) {
    if (!n->affine) return NULL;
    return n->operation == OP_I_ADD ? "+" : n->operation == OP_I_SUB ? "-" : n->operation == OP_I_MUL ? "*" : NULL;
}

/* Which nodes are made of the score. */
static void find_made_of_score(const struct strobe_score *f, bool made[SCORE_MOST_NODES]) {
    for (int n = 0; n < f->node_count; ++n) {
        const struct score_node *x = &f->node[n];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        made[n] = x->operation == OP_SCORE;
        for (int k = 0; k < operands; ++k) made[n] = made[n] || made[x->operand[k]];
    }
}

static void write_step(struct score_text *t, const struct strobe_score *f, uint16_t node, unsigned dense,
                       bool made_of_score) {
    const struct score_node *n = &f->node[node];
    const int operands = strobe__score_operands((enum score_operation)n->operation);
    strobe__score_print(t, "    const %s v%d = ", n->is_integer ? "int" : "float", node);
    if (operands == 0) {
        write_leaf(t, f, n, dense);
    } else if (n->operation == OP_LOAD) {
        strobe__score_print(t, "SCORE_LOAD(%s, a->data[%d], v%d)", name_of_dtype(f->array_dtype[n->number]), n->number,
                            n->operand[0]);
    } else if (operands == 2 && plain_operator(n)) {
        strobe__score_print(t, "v%d %s v%d", n->operand[0], plain_operator(n), n->operand[1]);
    } else {
        strobe__score_print(t, "score_%s(", n->operation == OP_F_DIV && made_of_score ? "QUOTIENT" : names[n->operation]);
        for (int k = 0; k < operands; ++k) strobe__score_print(t, "%sv%d", k ? ", " : "", n->operand[k]);
        strobe__score_print(t, ")");
    }
    strobe__score_print(t, ";\n");
}

static int steps_of(const struct score_program *p) { return p->count[0] + p->count[1] + p->count[2] + p->count[3]; }

/* given: a node whose value is the argument `relative`, or NO_NODE. */
static void write_steps(struct score_text *t, const struct strobe_score *f, const struct score_program *p, unsigned dense,
                        uint16_t given) {
    bool made[SCORE_MOST_NODES];
    find_made_of_score(f, made);
    for (int n = 0; n < steps_of(p); ++n) {
        if (p->step[n] == given)
            strobe__score_print(t, "    const float v%d = relative;\n", given);
        else
            write_step(t, f, p->step[n], dense, made[p->step[n]]);
    }
}

/* The element of a gradient that a load's adjoint goes to; gradients are summed without gaps. */
static void write_offset(struct score_text *t, const struct strobe_score *f, const struct score_load *load) {
    const int rank = f->array_rank[load->array];
    for (int axis = 1; axis < rank; ++axis) strobe__score_print(t, "(");
    strobe__score_print(t, "v%d", load->index[0]);
    for (int axis = 1; axis < rank; ++axis)
        strobe__score_print(t, ") * (a->last[%d][%d] + 1) + v%d", load->array, axis, load->index[axis]);
}

bool strobe__score_slope_is_one(const struct strobe_score *f) {
    const struct score_node *n = &f->node[f->slope];
    return n->operation == OP_CONSTANT && n->value == 1;
}

static bool reads(const struct strobe_score *f, const struct score_program *p, enum score_operation operation) {
    for (int n = 0; n < steps_of(p); ++n)
        if (f->node[p->step[n]].operation == operation) return true;
    return false;
}

/* How many elements further an offset is where i is one further; false where it is no sum of leaves and of their multiples
 * by 1, strides of arrays without gaps among them, and by what does not depend on i. */
static bool elements_a_row(const struct strobe_score *f, uint16_t node, unsigned dense, int *elements) {
    const struct score_node *x = &f->node[node];
    int more = 0;
    *elements = x->operation == OP_ROW;
    if (strobe__score_operands((enum score_operation)x->operation) == 0) return true;
    if (!plain_operator(x) || !elements_a_row(f, x->operand[0], dense, elements) ||
        !elements_a_row(f, x->operand[1], dense, &more))
        return false;
    if (x->operation == OP_I_MUL) {
        const struct score_node *y = &f->node[x->operand[1]];
        const bool by_one = y->operation == OP_STRIDE && y->axis == f->array_rank[y->number] - 1 && dense >> y->number & 1;
        return by_one || (*elements == 0 && more == 0);
    }
    *elements += x->operation == OP_I_ADD ? more : -more;
    return true;
}

/* The offset as one expression. */
static void write_sum(struct score_text *t, const struct strobe_score *f, uint16_t node, unsigned dense) {
    const struct score_node *x = &f->node[node];
    strobe__score_print(t, "(");
    if (strobe__score_operands((enum score_operation)x->operation) == 0) {
        write_leaf(t, f, x, dense);
    } else {
        write_sum(t, f, x->operand[0], dense);
        strobe__score_print(t, " %s ", plain_operator(x));
        write_sum(t, f, x->operand[1], dense);
    }
    strobe__score_print(t, ")");
}

/* A step of the relative value, of which `at` is moved, and `from` is not. A load whose elements lie in the order of rows is
 * so many elements from that of `from`, by a constant: its address is worked out once for all. */
static void write_moved_step(struct score_text *t, const struct strobe_score *f, uint16_t node, unsigned dense) {
    const struct score_node *x = &f->node[node];
    int elements;
    if (x->operation != OP_LOAD || !elements_a_row(f, x->operand[0], dense, &elements)) {
        write_step(t, f, node, dense, false);
        return;
    }
    strobe__score_print(t, "    at = from;\n    const %s v%d = SCORE_LOAD_FURTHER(%s, a->data[%d], ",
                        x->is_integer ? "int" : "float", node, name_of_dtype(f->array_dtype[x->number]), x->number);
    write_sum(t, f, x->operand[0], dense);
    strobe__score_print(t, ", %d * further);\n    at = &moved;\n", elements);
}

/* score_relative() and score_joined(). What a compiler finds unused it leaves out. */
static void write_relative(struct score_text *t, const struct strobe_score *f, unsigned dense, const char *start) {
    const uint16_t relative = strobe__score_relative(f);
    bool made[SCORE_MOST_NODES];
    strobe__score_print(t, "#define SCORE_HAS_RELATIVE %d\n\n", relative != NO_NODE);
    if (relative == NO_NODE) return;
    find_made_of_score(f, made);
    strobe__score_print(
        t, "SCORE_INLINE float score_relative(const struct score_values *a, const struct score_place *from, int "
           "further) {\n"
           "    struct score_place moved = *from;\n    const struct score_place *at = &moved;\n"
           "    moved.i += further;\n    (void)a, (void)at;\n");
    for (int n = 0; n < steps_of(&f->of_score); ++n)
        if (!made[f->of_score.step[n]]) write_moved_step(t, f, f->of_score.step[n], dense);
    strobe__score_print(t, "    return v%d;\n}\n\n", relative);
    strobe__score_print(t, start, "float", "joined", ", float relative");
    write_steps(t, f, &f->of_score, dense, relative);
    strobe__score_print(t, "    return v%d;\n}\n\n", f->score);
}

void strobe__score_write(struct score_text *t, const struct strobe_score *f, unsigned dense) {
    static const char start[] =
        "SCORE_INLINE %s score_%s(const struct score_values *a, const struct score_place *at, float score%s) {\n"
        "    (void)a, (void)at, (void)score;\n";
    if (!f->has_score) return;
    strobe__score_print(t, "#define SCORE_SLOPE_IS_ONE %d\n#define SCORE_NEEDS_INPUT %d\n", strobe__score_slope_is_one(f),
                        reads(f, &f->of_gradients, OP_SCORE));
    strobe__score_print(t, "#define SCORE_READS_ARRAYS %d\n\n",
                        reads(f, &f->of_score, OP_LOAD) || reads(f, &f->of_gradients, OP_LOAD));
    strobe__score_print(t, start, "float", "value", "");
    write_steps(t, f, &f->of_score, dense, NO_NODE);
    strobe__score_print(t, "    return v%d;\n}\n\n", f->score);
    write_relative(t, f, dense, start);
    strobe__score_print(t, start, "float", "slope", "");
    write_steps(t, f, &f->of_slope, dense, NO_NODE);
    strobe__score_print(t, "    return v%d;\n}\n\n", f->slope);
    strobe__score_print(t, start, "void", "gradients", ", float ds");
    strobe__score_print(t, "    (void)ds;\n");
    write_steps(t, f, &f->of_gradients, dense, NO_NODE);
    for (uint16_t n = 0; n < f->load_count; ++n) {
        if (f->adjoint[n] == NO_NODE) continue;
        strobe__score_print(t, "    if (a->gradient[%d]) SCORE_ADD(a->gradient[%d], ", f->load[n].array, f->load[n].array);
        write_offset(t, f, &f->load[n]);
        strobe__score_print(t, ", score_F_CHAIN(ds, v%d));\n", f->adjoint[n]);
    }
    strobe__score_print(t, "}\n");
}
