/* SPDX-License-Identifier: BSD-3-Clause
 *
 * interval.h: what an expression may be when its operands lie in intervals: how a score function's `visible` says of a whole
 * block of rows and keys that nothing, or all, of it is visible. One text for CPU and GPU, a function for each operation of
 * core/score/score.h. Results hold whatever fp32 arithmetic gives: those of floats are widened by more than its rounding.
 * Integers are exact; interval_wrap() gives the result of 32 bits. Float64 has all of these integers and their products,
 * which matter only while they are below 2^53. */
#ifndef STROBE_MATH_INTERVAL_H
#define STROBE_MATH_INTERVAL_H

#if !defined(__CUDACC__)
#include <math.h>
#endif

#include "math/inline.h"

#define INTERVAL_LEAST    (-2147483648.0)
#define INTERVAL_MOST     2147483647.0
#define INTERVAL_INFINITY ((double)INFINITY)

/* nan: it may be NaN too. A truth is [0, 0], [1, 1] or [0, 1]. */
struct interval {
    double lo, hi;
    int nan;
};

STROBE_INLINE struct interval interval_of(double lo, double hi) {
    const struct interval x = {lo, hi, 0};
    return x;
}

STROBE_INLINE struct interval interval_unknown(void) {
    const struct interval x = {-INTERVAL_INFINITY, INTERVAL_INFINITY, 1};
    return x;
}

STROBE_INLINE double interval_least(double a, double b) { return a < b ? a : b; }
STROBE_INLINE double interval_most(double a, double b) { return a > b ? a : b; }

STROBE_INLINE int interval_is_true(struct interval x) { return !x.nan && (x.lo > 0 || x.hi < 0); }
STROBE_INLINE int interval_is_false(struct interval x) { return !x.nan && x.lo == 0 && x.hi == 0; }

STROBE_INLINE struct interval interval_hull(struct interval a, struct interval b) {
    const struct interval x = {interval_least(a.lo, b.lo), interval_most(a.hi, b.hi), a.nan | b.nan};
    return x;
}

/* The least and the most of four values; unknown when one of them is NaN. */
STROBE_INLINE struct interval interval_of_four(double a, double b, double c, double d) {
    if (a != a || b != b || c != c || d != d) return interval_unknown();
    return interval_of(interval_least(interval_least(a, b), interval_least(c, d)),
                       interval_most(interval_most(a, b), interval_most(c, d)));
}

/* ----------------------------------------------------------------------------------------------------------- integers -- */

STROBE_INLINE struct interval interval_wrap(struct interval x) {
    return x.lo < INTERVAL_LEAST || x.hi > INTERVAL_MOST ? interval_of(INTERVAL_LEAST, INTERVAL_MOST) : x;
}

STROBE_INLINE struct interval interval_i_add(struct interval a, struct interval b) {
    return interval_of(a.lo + b.lo, a.hi + b.hi);
}

STROBE_INLINE struct interval interval_i_sub(struct interval a, struct interval b) {
    return interval_of(a.lo - b.hi, a.hi - b.lo);
}

STROBE_INLINE struct interval interval_i_mul(struct interval a, struct interval b) {
    return interval_of_four(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi);
}

STROBE_INLINE struct interval interval_i_div(struct interval a, struct interval b) {
    const double most = interval_most(fabs(a.lo), fabs(a.hi));
    if (b.lo <= 0 && b.hi >= 0) return interval_of(-most, most);
    return interval_of_four(trunc(a.lo / b.lo), trunc(a.lo / b.hi), trunc(a.hi / b.lo), trunc(a.hi / b.hi));
}

/* Where the divisor is one number and no multiple of it lies between, the ends' remainders are those of the interval. */
STROBE_INLINE struct interval interval_i_mod(struct interval a, struct interval b) {
    const double most = interval_most(interval_most(fabs(b.lo), fabs(b.hi)) - 1, 0), m = fabs(b.lo);
    if (b.lo == b.hi && m > 0 && trunc(a.lo / m) == trunc(a.hi / m) && (a.lo >= 0 || a.hi <= 0))
        return interval_of(a.lo - m * trunc(a.lo / m), a.hi - m * trunc(a.hi / m));
    return interval_of(a.lo < 0 ? -interval_least(most, -a.lo) : 0, a.hi > 0 ? interval_least(most, a.hi) : 0);
}

STROBE_INLINE struct interval interval_neg(struct interval a) {
    const struct interval x = {-a.hi, -a.lo, a.nan};
    return x;
}

STROBE_INLINE struct interval interval_abs(struct interval a) {
    const struct interval x = {a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, interval_most(-a.lo, a.hi), a.nan};
    return x;
}

/* min and max of integers, and of floats: x < y ? x : y is y where x is NaN and where y is. */
STROBE_INLINE struct interval interval_min(struct interval a, struct interval b) {
    const struct interval x = {interval_least(a.lo, b.lo), a.nan ? b.hi : interval_least(a.hi, b.hi), b.nan};
    return x;
}

STROBE_INLINE struct interval interval_max(struct interval a, struct interval b) {
    const struct interval x = {a.nan ? b.lo : interval_most(a.lo, b.lo), interval_most(a.hi, b.hi), b.nan};
    return x;
}

/* ------------------------------------------------------------------------------------------------------------- truths -- */

/* A comparison with a NaN is false. */
STROBE_INLINE struct interval interval_less(struct interval a, struct interval b) {
    return interval_of(!a.nan && !b.nan && a.hi < b.lo, a.lo < b.hi);
}

STROBE_INLINE struct interval interval_less_equal(struct interval a, struct interval b) {
    return interval_of(!a.nan && !b.nan && a.hi <= b.lo, a.lo <= b.hi);
}

STROBE_INLINE struct interval interval_equal(struct interval a, struct interval b) {
    return interval_of(!a.nan && !b.nan && a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi);
}

STROBE_INLINE struct interval interval_and(struct interval a, struct interval b) {
    return interval_of(interval_is_true(a) && interval_is_true(b), !interval_is_false(a) && !interval_is_false(b));
}

STROBE_INLINE struct interval interval_or(struct interval a, struct interval b) {
    return interval_of(interval_is_true(a) || interval_is_true(b), !interval_is_false(a) || !interval_is_false(b));
}

STROBE_INLINE struct interval interval_not(struct interval a) {
    return interval_of(interval_is_false(a), !interval_is_true(a));
}

STROBE_INLINE struct interval interval_select(struct interval c, struct interval yes, struct interval no) {
    return interval_is_true(c) ? yes : interval_is_false(c) ? no : interval_hull(yes, no);
}

/* ------------------------------------------------------------------------------------------------------------- floats -- */

/* The interval of what fp32 may give for these ends: its rounding, and that of its exp and tanh, is a tenth of this. */
STROBE_INLINE struct interval interval_widen(double lo, double hi, int nan) {
    if (lo != lo || hi != hi) return interval_unknown();
    const struct interval x = {lo - fabs(lo) * 4e-6 - 1e-36, hi + fabs(hi) * 4e-6 + 1e-36, nan};
    if (x.lo != x.lo || x.hi != x.hi) return interval_unknown();
    const struct interval far = {x.lo < -3.4e38 ? -INTERVAL_INFINITY : x.lo, x.hi > 3.4e38 ? INTERVAL_INFINITY : x.hi, nan};
    return far;
}

STROBE_INLINE struct interval interval_f_add(struct interval a, struct interval b) {
    const int opposite = interval_most(a.hi, b.hi) == INTERVAL_INFINITY && interval_least(a.lo, b.lo) == -INTERVAL_INFINITY;
    return interval_widen(a.lo + b.lo, a.hi + b.hi, a.nan || b.nan || opposite);
}

STROBE_INLINE struct interval interval_f_mul(struct interval a, struct interval b) {
    const struct interval x = interval_of_four(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi);
    const int some = x.nan || a.hi == INTERVAL_INFINITY || a.lo == -INTERVAL_INFINITY || b.hi == INTERVAL_INFINITY ||
                     b.lo == -INTERVAL_INFINITY;
    return interval_widen(x.lo, x.hi, a.nan || b.nan || some);
}

STROBE_INLINE struct interval interval_f_div(struct interval a, struct interval b) {
    if (b.lo <= 0 && b.hi >= 0) return interval_unknown();
    const struct interval x = interval_of_four(a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi);
    return interval_widen(x.lo, x.hi, a.nan || b.nan || x.nan);
}

STROBE_INLINE struct interval interval_f_exp(struct interval a) { return interval_widen(exp(a.lo), exp(a.hi), a.nan); }
STROBE_INLINE struct interval interval_f_exp2(struct interval a) { return interval_widen(exp2(a.lo), exp2(a.hi), a.nan); }
STROBE_INLINE struct interval interval_f_tanh(struct interval a) { return interval_widen(tanh(a.lo), tanh(a.hi), a.nan); }

STROBE_INLINE struct interval interval_f_log(struct interval a) {
    if (a.hi < 0) return interval_unknown();
    const struct interval wide = interval_widen(a.lo <= 0 ? -INTERVAL_INFINITY : log(a.lo), log(a.hi), a.nan || a.lo < 0);
    const struct interval x = {wide.lo - 1e-6, wide.hi + 1e-6, wide.nan}; /* near 1 its error is not relative */
    return x;
}

STROBE_INLINE struct interval interval_f_sqrt(struct interval a) {
    return a.hi < 0 ? interval_unknown() : interval_widen(a.lo <= 0 ? 0 : sqrt(a.lo), sqrt(a.hi), a.nan || a.lo < 0);
}

STROBE_INLINE struct interval interval_f_floor(struct interval a) {
    const struct interval x = {floor(a.lo), floor(a.hi), a.nan};
    return x;
}

/* Of a positive number; of others nothing is said. Its error grows with the exponent. */
STROBE_INLINE struct interval interval_f_pow(struct interval a, struct interval b) {
    if (!(a.lo > 0) || a.nan || b.nan || interval_most(fabs(b.lo), fabs(b.hi)) > 16) return interval_unknown();
    const struct interval x = interval_of_four(pow(a.lo, b.lo), pow(a.lo, b.hi), pow(a.hi, b.lo), pow(a.hi, b.hi));
    const struct interval wide = interval_widen(x.lo, x.hi, x.nan);
    return interval_widen(wide.lo, wide.hi, wide.nan);
}

STROBE_INLINE struct interval interval_i_to_f(struct interval a) {
    return interval_most(fabs(a.lo), fabs(a.hi)) <= 16777216.0 ? a : interval_widen(a.lo, a.hi, 0);
}

/* Towards zero, to the nearest that there is; a NaN gives 0. */
STROBE_INLINE struct interval interval_f_to_i(struct interval a) {
    const double lo = a.lo < INTERVAL_LEAST ? INTERVAL_LEAST : a.lo > INTERVAL_MOST ? INTERVAL_MOST : trunc(a.lo);
    const double hi = a.hi < INTERVAL_LEAST ? INTERVAL_LEAST : a.hi > INTERVAL_MOST ? INTERVAL_MOST : trunc(a.hi);
    return a.nan ? interval_of(interval_least(lo, 0), interval_most(hi, 0)) : interval_of(lo, hi);
}

#endif
