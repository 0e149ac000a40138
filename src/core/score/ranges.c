/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranges.c: see ranges.h. A load's interval is that of the elements that its indices may name, where these are few; they are
 * read. */
#include "core/score/ranges.h"

#include "core/element.h"

/* More elements than this are not read for a block: what they hold may be anything. */
enum { MOST_ELEMENTS = 1024 };

/* Any value of the array's dtype. */
static struct interval of_dtype(int32_t dtype) {
    if (dtype == STROBE_UINT8) return interval_of(0, 255);
    return dtype == STROBE_INT32 ? interval_of(INTERVAL_LEAST, INTERVAL_MOST) : interval_unknown();
}

static void take(struct interval *sum, double value) {
    if (value != value)
        sum->nan = 1;
    else
        sum->lo = interval_least(sum->lo, value), sum->hi = interval_most(sum->hi, value);
}

/* The elements at `first`, `first + stride` and so on. */
static void take_line(struct interval *sum, const strobe_score_elements *array, int64_t first, int64_t count,
                      int64_t stride) {
    if (array->dtype == STROBE_INT32) {
        const int32_t *x = (const int32_t *)array->data + first;
        int32_t least = *x, most = *x;
        for (int64_t n = 1; n < count; ++n) {
            const int32_t element = x[n * stride];
            least = element < least ? element : least;
            most = element > most ? element : most;
        }
        take(sum, least);
        take(sum, most);
        return;
    }
    for (int64_t n = 0; n < count; ++n) take(sum, strobe__score_element(array, first + n * stride));
}

/* The interval of a load from those of its indices. Indices that were checked at the call lie inside the array even where
 * their intervals do not. */
static struct interval of_load(const struct score_call *call, const struct score_load *load, const struct interval *value) {
    const struct strobe_score *f = call->function;
    const strobe_score_elements *array = &call->array[load->array];
    const int rank = f->array_rank[load->array];
    int64_t first[SCORE_MOST_RANK] = {0}, count[SCORE_MOST_RANK] = {1, 1, 1, 1}, elements = 1;
    for (int axis = 0; axis < rank; ++axis) {
        const double last = (double)(array->extent[axis] - 1);
        const struct interval index = value[load->index[axis]];
        const double lo = interval_least(interval_most(index.lo, 0), last),
                     hi = interval_least(interval_most(index.hi, 0), last);
        first[axis] = (int64_t)lo, count[axis] = (int64_t)hi - first[axis] + 1;
        elements = elements > MOST_ELEMENTS ? elements : elements * count[axis];
    }
    if (elements > MOST_ELEMENTS) return of_dtype(array->dtype);
    struct interval sum = {INTERVAL_INFINITY, -INTERVAL_INFINITY, 0};
    const int line = rank - 1;
    int64_t lines = 1;
    for (int axis = 0; axis < line; ++axis) lines *= count[axis];
    for (int64_t n = 0; n < lines; ++n) {
        int64_t offset = first[line] * array->stride[line], rest = n;
        for (int axis = line - 1; axis >= 0; --axis) {
            offset += (first[axis] + rest % count[axis]) * array->stride[axis];
            rest /= count[axis];
        }
        take_line(&sum, array, offset, count[line], array->stride[line]);
    }
    return sum.lo > sum.hi ? interval_unknown() : sum;
}

static const struct score_load *load_of(const struct strobe_score *f, uint16_t node) {
    const struct score_load *load = f->load;
    while (load->node != node) ++load;
    return load;
}

static struct interval leaf(const struct score_call *call, const struct score_node *n, const struct score_box *box) {
    switch ((enum score_operation)n->operation) {
    case OP_CONSTANT: return n->is_integer ? interval_of(n->value, n->value) : interval_widen(n->value, n->value, 0);
    case OP_SCALAR: {
        const double x = call->scalar[n->number];
        return n->is_integer ? interval_of(x, x) : x != x ? interval_unknown() : interval_widen(x, x, 0);
    }
    case OP_BATCH: return interval_of((double)box->b, (double)box->b);
    case OP_HEAD: return interval_of((double)box->first_h, (double)box->last_h);
    case OP_HEAD_KV: return interval_of((double)box->hkv, (double)box->hkv);
    case OP_ROW: return interval_of((double)box->first_i, (double)box->last_i);
    case OP_KEY: return interval_of((double)box->first_j, (double)box->last_j);
    case OP_SEQ_Q: return interval_of((double)box->seq_q, (double)box->seq_q);
    case OP_SEQ_K: return interval_of((double)box->seq_k, (double)box->seq_k);
    case OP_STRIDE: {
        const double x = (double)call->array[n->number].stride[n->axis];
        return interval_of(x, x);
    }
    case OP_LAST: {
        const double x = (double)(call->array[n->number].extent[n->axis] - 1);
        return interval_of(x, x);
    }
    default: return interval_unknown(); /* the score */
    }
}

void strobe__score_ranges(const struct score_call *call, const struct score_program *program, const struct score_box *box,
                          int first, int end, struct interval *value) {
    const struct strobe_score *f = call->function;
    const uint16_t *step = program->step;
    for (int class = 0; class < first; ++class) step += program->count[class];
    for (int class = first; class < end; ++class)
        for (int n = 0; n < program->count[class]; ++n, ++step) {
            const struct score_node *x = &f->node[*step];
            const enum score_operation operation = (enum score_operation)x->operation;
            const int operands = strobe__score_operands(operation);
            struct interval result;
            if (operands == 0)
                result = leaf(call, x, box);
            else if (operation == OP_LOAD)
                result = of_load(call, load_of(f, *step), value);
            else
                result = interval_of_operation((int)operation, value[x->operand[0]], value[x->operand[operands > 1 ? 1 : 0]],
                                               value[x->operand[operands > 2 ? 2 : 0]]);
            value[*step] = x->is_integer && operation != OP_LOAD ? interval_wrap(result) : result;
        }
}
