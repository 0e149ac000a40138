/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bounds.c: what the indices and integers of a score function may be over all positions of a problem. An affine integer, a
 * sum of multiples of positions and sizes, is worked out as such: its range is exact, also where a position occurs twice.
 * The range of any other follows from those of its operands. Under varlen each sequence is asked, where the host can read
 * their lengths; elsewhere sequences may be of any length from 1 up to the bounds seq_q and seq_k. What is affine has its
 * ends at the ends of both, also where lengths occur in it: in the shortest sequence or in the longest. */
#include "core/score/bind.h"
#include "core/score/ranges.h"
#include "core/validate.h"

enum { ONE, BATCH, HEAD, HEAD_KV, ROW, KEY, TERMS };

/* number[ONE] + number[BATCH] b + ... */
struct affine {
    double number[TERMS];
};

struct bounds {
    const struct problem *p;
    struct score_box box;
    struct affine sum[SCORE_MOST_NODES];
    struct interval range[SCORE_MOST_NODES];
    bool from_data[SCORE_MOST_NODES]; /* depends on elements or floats: wraps, where the others are refused */
};

static struct affine affine_of(const struct bounds *w, const struct score_node *n) {
    const struct affine *a = &w->sum[n->operand[0]], *b = &w->sum[n->operand[1]];
    const struct score_call *call = &w->p->score_call;
    struct affine sum = {{0}};
    switch ((enum score_operation)n->operation) {
    case OP_CONSTANT: sum.number[ONE] = n->value; break;
    case OP_SCALAR: sum.number[ONE] = call->scalar[n->number]; break;
    case OP_STRIDE: sum.number[ONE] = (double)call->array[n->number].stride[n->axis]; break;
    case OP_LAST: sum.number[ONE] = (double)(call->array[n->number].extent[n->axis] - 1); break;
    case OP_SEQ_Q: sum.number[ONE] = (double)w->box.seq_q; break;
    case OP_SEQ_K: sum.number[ONE] = (double)w->box.seq_k; break;
    case OP_BATCH: sum.number[BATCH] = 1; break;
    case OP_HEAD: sum.number[HEAD] = 1; break;
    case OP_HEAD_KV: sum.number[HEAD_KV] = 1; break;
    case OP_ROW: sum.number[ROW] = 1; break;
    case OP_KEY: sum.number[KEY] = 1; break;
    case OP_I_MUL: /* one of them is a number */
        for (int t = 0; t < TERMS; ++t) sum.number[t] = a->number[t] * b->number[ONE];
        for (int t = BATCH; t < TERMS; ++t) sum.number[t] += a->number[ONE] * b->number[t];
        break;
    default: {
        const double sign = n->operation == OP_I_ADD ? 1 : -1;
        for (int t = 0; t < TERMS; ++t)
            sum.number[t] = n->operation == OP_I_NEG ? -a->number[t] : a->number[t] + sign * b->number[t];
    }
    }
    return sum;
}

static struct interval range_of_affine(const struct bounds *w, const struct affine *sum) {
    const struct score_box *x = &w->box;
    const double lo[TERMS] = {1, (double)x->b, (double)x->first_h, 0, (double)x->first_i, (double)x->first_j};
    const double hi[TERMS] = {
        1, (double)x->b, (double)x->last_h, (double)(w->p->a.heads_kv - 1), (double)x->last_i, (double)x->last_j};
    struct interval ends = {0, 0, 0};
    for (int t = 0; t < TERMS; ++t) {
        ends.lo += sum->number[t] * (sum->number[t] < 0 ? hi[t] : lo[t]);
        ends.hi += sum->number[t] * (sum->number[t] < 0 ? lo[t] : hi[t]);
    }
    return ends;
}

/* The range of a node that is not affine, integers not wrapped. */
static struct interval range_of(const struct bounds *w, const struct score_node *n) {
    const strobe_score_elements *array = &w->p->score_call.array[n->number];
    if (n->operation == OP_LOAD && array->dtype == STROBE_UINT8) return interval_of(0, 255);
    if (n->operation == OP_LOAD && n->is_integer) return interval_of(INTERVAL_LEAST, INTERVAL_MOST);
    const int operands = strobe__score_operands((enum score_operation)n->operation);
    if (operands == 0 || n->operation == OP_LOAD) return interval_unknown(); /* floats */
    const struct interval a = w->range[n->operand[0]], b = operands > 1 ? w->range[n->operand[1]] : a,
                          c = operands > 2 ? w->range[n->operand[2]] : a;
    return interval_of_operation(n->operation, a, b, c);
}

/* Works out all nodes. Returns whether integers of positions alone stay in 32 bits; else *wide is one that does not. */
static bool find_ranges(struct bounds *w, struct interval *wide) {
    const struct strobe_score *f = w->p->score_call.function;
    bool fit = true;
    for (uint16_t n = 0; n < f->node_count; ++n) {
        const struct score_node *x = &f->node[n];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        w->from_data[n] = x->operation == OP_LOAD || x->operation == OP_F_TO_I;
        for (int k = 0; k < operands; ++k) w->from_data[n] = w->from_data[n] || w->from_data[x->operand[k]];
        if (x->affine) w->sum[n] = affine_of(w, x);
        const struct interval range = x->affine ? range_of_affine(w, &w->sum[n]) : range_of(w, x);
        w->range[n] = x->is_integer ? interval_wrap(range) : range;
        const bool leaves = x->is_integer && (range.lo < INTERVAL_LEAST || range.hi > INTERVAL_MOST);
        if (leaves && !w->from_data[n] && fit) *wide = range, fit = false;
    }
    return fit;
}

/* Under the bounds of a box: the indices first, whose sentences say more. */
static strobe_status check_box(struct bounds *w) {
    const struct score_call *call = &w->p->score_call;
    const struct strobe_score *f = call->function;
    struct interval wide;
    const bool fit = find_ranges(w, &wide);
    for (uint16_t n = 0; n < f->load_count; ++n)
        for (int axis = 0; axis < f->array_rank[f->load[n].array]; ++axis) {
            const struct score_load *load = &f->load[n];
            const struct interval index = w->range[load->index[axis]];
            const int64_t last = call->array[load->array].extent[axis] - 1;
            if (!f->node[load->index[axis]].affine || (index.lo >= 0 && index.hi <= (double)last)) continue;
            return strobe__fail(STROBE_INVALID_ARGUMENT,
                                "%s: index %d of %s at column %d is from %.0f to %.0f for these positions; 0 to %lld is "
                                "accepted (min and max clamp it)",
                                load->in_visible ? "visible" : "score", axis + 1, f->array_name[load->array].text,
                                load->column, index.lo, index.hi, (long long)last);
        }
    if (fit) return STROBE_OK;
    return strobe__fail(
        STROBE_INVALID_ARGUMENT,
        "score: an integer is from %.0f to %.0f for these positions; 32 bits are accepted (1.0 * makes a float)", wide.lo,
        wide.hi);
}

static strobe_status check_positions(const char *name, int64_t start, int64_t count) {
    if (start >= INT32_MIN && start + count - 1 <= INT32_MAX) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "%s are from %lld to %lld; with a score function -2147483648 to 2147483647 is accepted", name,
                        (long long)start, (long long)(start + count - 1));
}

static strobe_status check_lengths(struct bounds *w, int64_t b, int64_t rows, int64_t keys) {
    const strobe_attention *a = &w->p->a;
    w->box.b = b, w->box.seq_q = rows, w->box.seq_k = keys;
    w->box.first_i = a->q_start, w->box.last_i = a->q_start + rows - 1;
    w->box.first_j = a->k_start, w->box.last_j = a->k_start + keys - 1;
    return check_box(w);
}

strobe_status strobe__score_check_bounds(const struct problem *p) {
    const strobe_attention *a = &p->a;
    TRY(check_positions("positions of rows", a->q_start, a->seq_q));
    TRY(check_positions("positions of keys", a->k_start, a->seq_k));
    TRY(check_positions("batch entries", 0, a->batch));
    const bool readable = p->runs && a->device == STROBE_CPU;
    if (a->varlen && !p->runs) return STROBE_OK; /* a query knows no lengths */
    struct bounds w = {.p = p, .box = {.last_h = a->heads_q - 1}};
    for (int64_t b = 0; b < a->batch; ++b) {
        struct sequence s = {.b = b, .rows = a->seq_q, .keys = a->seq_k};
        if (a->varlen && readable) s = strobe__sequence(p, b);
        if (s.rows == 0 || s.keys == 0) continue;
        if (!(a->varlen && readable) && b > 0 && b < a->batch - 1)
            continue; /* what is affine in b has its ends at the ends */
        TRY(check_lengths(&w, b, s.rows, s.keys));
        if (!a->varlen || readable) continue;
        TRY(check_lengths(&w, b, 1, s.keys));
        TRY(check_lengths(&w, b, s.rows, 1));
        TRY(check_lengths(&w, b, 1, 1));
    }
    return STROBE_OK;
}
