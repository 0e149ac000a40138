/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare.c: errors and the allowance for them; see compare.h. */
#include "check/compare.h"

#include "problem/element.h"

#include <math.h>

/* dtype: the result's, in which a reference may be too large and so infinite. */
static double error_of(double result, double reference, int64_t dtype) {
    if (result == reference) return 0; /* -inf as well: the lse of a row that sees nothing */
    if (isinf(result) && result == element_round(dtype, reference)) return 0;
    if (isnan(result) && isnan(reference)) return 0;
    const double error = fabs(result - reference);
    return isnan(error) ? INFINITY : error;
}

difference compare(const inputs *in, tensor_id id, const buffer *result, const buffer *reference) {
    difference d = {0};
    double all_squares = 0, all_reference_squares = 0;
    const size_t result_bytes = element_bytes(result->dtype), reference_bytes = element_bytes(reference->dtype);
    for (rows r = rows_of(in, id, result); rows_next(&r);) {
        const unsigned char *row = rows_at(&r, result), *right = rows_at(&r, reference);
        double squares = 0, reference_squares = 0;
        for (int64_t c = 0; c < result->extent[3]; ++c) {
            const double value = element_load(right + (size_t)c * reference_bytes, reference->dtype) +
                                 outputs_before(&in->problem, id, result, &r, c);
            const double error = error_of(element_load(row + (size_t)c * result_bytes, result->dtype), value, result->dtype);
            squares += error * error;
            if (isfinite(value)) reference_squares += value * value;
            if (error > d.error) d = (difference){error, d.finite, 0, d.relative, r.batch, r.row, r.head, c};
            if (error > d.finite && isfinite(error)) d.finite = error;
        }
        const double relative = reference_squares > 0 ? sqrt(squares / reference_squares) : 0;
        if (relative > d.relative) d.relative = relative;
        all_squares += squares, all_reference_squares += reference_squares;
    }
    d.whole = all_reference_squares > 0 ? sqrt(all_squares / all_reference_squares) : 0;
    return d;
}

/* A result that belongs between two numbers of the dtype happens to be one of them once in 8 times at most: of so many not
 * all are. */
enum { ENOUGH_BETWEEN = 64 };

/* Whether the reference's row of out is the value of one key, a byte times its scale, which kernels may round to the inputs'
 * dtype before they multiply. */
static bool is_a_scaled_value(const inputs *in, const rows *r, const buffer *reference, int64_t dtype) {
    const buffer *v = &in->tensor[T_V], *scales = &in->tensor[T_V_SCALE];
    const size_t v_bytes = element_bytes(v->dtype), bytes = element_bytes(reference->dtype);
    const int64_t head = r->head * in->problem.heads_kv / in->problem.heads_q;
    for (int64_t key = 0; key < in->sequences[r->batch].keys; ++key) {
        const unsigned char *row = inputs_row(in, T_V, v, r->batch, key, head);
        const double scale = element_load(inputs_row(in, T_V_SCALE, scales, r->batch, key, head), scales->dtype);
        int64_t same = 0;
        for (; same < reference->extent[3]; ++same) {
            const double right = element_load(rows_at(r, reference) + (size_t)same * bytes, reference->dtype);
            const double value = scale * element_load(row + (size_t)same * v_bytes, v->dtype);
            if (!(fabs(right - value) <= element_step(dtype, right) / 64)) break;
        }
        if (same == reference->extent[3]) return true;
    }
    return false;
}

bool compare_finds_rounded(const inputs *in, tensor_id id, const buffer *result, const buffer *reference, int64_t dtype) {
    const size_t result_bytes = element_bytes(result->dtype), reference_bytes = element_bytes(reference->dtype);
    const bool has_scaled_values = id == T_OUT && in->tensor[T_V_SCALE].data;
    int64_t between = 0;
    for (rows r = rows_of(in, id, result); rows_next(&r);) {
        if (has_scaled_values && is_a_scaled_value(in, &r, reference, dtype)) continue;
        for (int64_t c = 0; c < result->extent[3]; ++c) {
            const double value = element_load(rows_at(&r, result) + (size_t)c * result_bytes, result->dtype);
            const double right = element_load(rows_at(&r, reference) + (size_t)c * reference_bytes, reference->dtype);
            if (isfinite(value) && value != element_round(dtype, value)) return false;
            const double step = element_step(dtype, right), own_step = element_step(result->dtype, right);
            between += own_step < step / 4 && fabs(value - right) <= step && /* fp16's subnormal numbers have fewer digits */
                       fabs(right - element_round(dtype, right)) > step / 16;
        }
    }
    return between >= ENOUGH_BETWEEN;
}

/* The numbers beside 0 are sums of others: their terms were rounded at the magnitude of the inputs, not at theirs. An lse is
 * the logarithm of a sum of at least the largest weight, whose rounding it shows however near to 0 it is: of 1, and of e4m3
 * inputs, whose weights are rounded to e4m3, of up to 448. */
static double magnitude_of(const inputs *in, tensor_id id, double value) {
    const double least = id != T_LSE ? 0 : in->problem.dtype == STROBE_FP8_E4M3 ? log(448) : 1;
    return fmax(value + 0.3, least);
}

double compare_rounding(const inputs *in, tensor_id id, const buffer *reference, int64_t dtype) {
    double largest = 0;
    const size_t bytes = element_bytes(reference->dtype);
    for (rows r = rows_of(in, id, reference); rows_next(&r);)
        for (int64_t c = 0; c < reference->extent[3]; ++c) {
            const double magnitude = fabs(element_load(rows_at(&r, reference) + (size_t)c * bytes, reference->dtype));
            const double rounding = element_step(dtype, magnitude_of(in, id, magnitude)) / 2;
            if (isfinite(rounding) && rounding > largest) largest = rounding;
        }
    return largest;
}

double compare_allowance(const problem *p, double standard_error, double rounding) {
    const double factor = p->softcap > 0 ? 3 : 2;
    return (isfinite(standard_error) ? factor * standard_error : 0) + 2 * rounding;
}

double compare_ratio(double error, double allowance) {
    if (error == 0) return 0;
    return allowance > 0 ? error / allowance : INFINITY;
}
