/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_intervals.h: the operations of a score function on intervals (interval.h), chosen by their number. */
#ifndef STROBE_MATH_SCORE_INTERVALS_H
#define STROBE_MATH_SCORE_INTERVALS_H

#include "math/interval.h"
#include "math/score_operations.h"

/* One operation, integers not wrapped; not of loads and leaves, of which nothing is known. */
STROBE_INLINE struct interval interval_of_operation(int operation, struct interval a, struct interval b, struct interval c) {
    switch (operation) {
    case OP_I_ADD: return interval_i_add(a, b);
    case OP_I_SUB: return interval_i_sub(a, b);
    case OP_I_MUL: return interval_i_mul(a, b);
    case OP_I_DIV: return interval_i_div(a, b);
    case OP_I_MOD: return interval_i_mod(a, b);
    case OP_I_NEG:
    case OP_F_NEG: return interval_neg(a);
    case OP_I_ABS:
    case OP_F_ABS: return interval_abs(a);
    case OP_I_MIN:
    case OP_F_MIN: return interval_min(a, b);
    case OP_I_MAX:
    case OP_F_MAX: return interval_max(a, b);
    case OP_I_LESS:
    case OP_F_LESS: return interval_less(a, b);
    case OP_I_LESS_EQUAL:
    case OP_F_LESS_EQUAL: return interval_less_equal(a, b);
    case OP_I_EQUAL:
    case OP_F_EQUAL: return interval_equal(a, b);
    case OP_I_AND: return interval_and(a, b);
    case OP_I_OR: return interval_or(a, b);
    case OP_I_NOT: return interval_not(a);
    case OP_I_SELECT:
    case OP_F_SELECT: return interval_select(a, b, c);
    case OP_F_ADD: return interval_f_add(a, b);
    case OP_F_SUB: return interval_f_add(a, interval_neg(b));
    case OP_F_MUL: return interval_f_mul(a, b);
    case OP_F_DIV: return interval_f_div(a, b);
    case OP_F_EXP: return interval_f_exp(a);
    case OP_F_EXP2: return interval_f_exp2(a);
    case OP_F_LOG: return interval_f_log(a);
    case OP_F_TANH: return interval_f_tanh(a);
    case OP_F_SQRT: return interval_f_sqrt(a);
    case OP_F_FLOOR: return interval_f_floor(a);
    case OP_F_POW: return interval_f_pow(a, b);
    case OP_I_TO_F: return interval_i_to_f(a);
    case OP_F_TO_I: return interval_f_to_i(a);
    default: return interval_unknown();
    }
}

#endif
