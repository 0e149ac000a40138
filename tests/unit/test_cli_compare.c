/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_compare.c: how `strobe check` measures: elements and their rounding, errors, allowances, verdicts, quantiles. */
#include "test.h"

#include "bench/timing.h"
#include "check/compare.h"
#include "check/trial.h"
#include "check/verify.h"
#include "problem/element.h"

#include <math.h>
#include <string.h>

static char message[PROBLEM_MESSAGE];

/* --------------------------------------------------------------------------------------------------------- elements -- */

static void every_16_bit_pattern_survives(void **state) {
    (void)state;
    static const int64_t dtypes[] = {STROBE_FP16, STROBE_BF16};
    for (size_t d = 0; d < COUNT(dtypes); ++d)
        for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
            const uint16_t bits = (uint16_t)pattern;
            uint16_t back = 0;
            const double value = element_load(&bits, dtypes[d]);
            element_store(&back, dtypes[d], value);
            if (isnan(value))
                assert_true(isnan(element_load(&back, dtypes[d])));
            else
                assert_int_equal(back, bits);
        }
}

static const struct rounded {
    int64_t dtype;
    double value, expected;
} roundings[] = {
    {STROBE_FP16, 1 + 0x1p-11, 1},                     /* a tie goes to the even neighbour */
    {STROBE_FP16, 1 + 0x3p-11, 1 + 0x1p-9},            /* and so does this one */
    {STROBE_FP16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10}, /* no tie, but it would be after fp32 */
    {STROBE_FP16, 65519.999, 65504},
    {STROBE_FP16, 65520, INFINITY},
    {STROBE_FP16, -1e300, -INFINITY},
    {STROBE_FP16, 0x1p-25, 0},
    {STROBE_FP16, 0x1.8p-25, 0x1p-24},
    {STROBE_FP16, 0x1.ff8p-15, 0x1.ff8p-15},
    {STROBE_FP16, 0x1.ffcp-15, 0x1p-14},
    {STROBE_BF16, 1 + 0x1p-8, 1},
    {STROBE_BF16, 1 + 0x3p-8, 1 + 0x1p-6},
    {STROBE_BF16, 0x1.ffp127, INFINITY},
    {STROBE_FP32, 0x1.fffffefp127, 0x1.fffffep127},
    {STROBE_FP32, 0x1p-150, 0},
    {STROBE_FP64, 0.1, 0.1},
};

static void rounds_to_nearest_even(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(roundings); ++i) {
        const double rounded = element_round(roundings[i].dtype, roundings[i].value);
        if (rounded != roundings[i].expected)
            fail_msg("%a in dtype %d is %a, not %a", roundings[i].value, (int)roundings[i].dtype, rounded,
                     roundings[i].expected);
    }
    assert_true(signbit(element_round(STROBE_FP16, -0.0)));
    assert_true(isnan(element_round(STROBE_BF16, NAN)));
}

static void fp32_rounds_as_the_compiler_does(void **state) {
    (void)state;
    struct random r = {5};
    for (int i = 0; i < 100000; ++i) {
        const double value = ldexp(random_value(&r), (int)random_below(&r, 320) - 160);
        assert_true(element_round(STROBE_FP32, value) == (double)(float)value);
    }
}

/* ------------------------------------------------------------------------------------------------------- difference -- */

/* One row of numbers as a tensor of rows. */
static buffer row_buffer(double *values, int64_t count) {
    return (buffer){
        .data = (unsigned char *)values, .extent = {1, 1, 1, count}, .stride = {count, count, count}, .dtype = STROBE_FP64};
}

static difference compare_rows(double *result, double *reference, int64_t count) {
    static sequence one = {.rows = 1, .keys = 1};
    const inputs in = {.problem = {.batch = 1}, .sequences = &one};
    const buffer r = row_buffer(result, count), right = row_buffer(reference, count);
    return compare(&in, T_OUT, &r, &right);
}

static void finds_the_largest_error(void **state) {
    (void)state;
    const difference d = compare_rows((double[]){1, 2.5, 3}, (double[]){1, 2, 3.25}, 3);
    assert_true(d.error == 0.5 && d.column == 1 && d.row == 0);
    assert_true(fabs(d.relative - sqrt(0.3125 / (1 + 4 + 3.25 * 3.25))) < 1e-15);
}

static void what_is_not_a_number_is_an_infinite_error(void **state) {
    (void)state;
    assert_true(compare_rows((double[]){NAN}, (double[]){1}, 1).error == INFINITY);
    assert_true(compare_rows((double[]){1}, (double[]){NAN}, 1).error == INFINITY);
    assert_true(compare_rows((double[]){INFINITY}, (double[]){1}, 1).error == INFINITY);
    assert_true(compare_rows((double[]){-INFINITY}, (double[]){INFINITY}, 1).error == INFINITY);
    assert_true(compare_rows((double[]){1}, (double[]){-INFINITY}, 1).error == INFINITY);
    assert_true(compare_rows((double[]){-INFINITY}, (double[]){-INFINITY}, 1).error == 0);
}

static void what_a_dtype_cannot_hold_is_infinite(void **state) {
    (void)state;
    static sequence one = {.rows = 1, .keys = 1};
    const inputs in = {.problem = {.batch = 1}, .sequences = &one};
    uint16_t infinite;
    double reference = 65519;
    element_store(&infinite, STROBE_FP16, INFINITY);
    buffer result = row_buffer(&reference, 1);
    const buffer right = result;
    result.data = (unsigned char *)&infinite, result.dtype = STROBE_FP16;
    assert_true(compare(&in, T_OUT, &result, &right).error == INFINITY);
    reference = 65520;
    assert_true(compare(&in, T_OUT, &result, &right).error == 0);
    reference = -65520;
    assert_true(compare(&in, T_OUT, &result, &right).error == INFINITY);
}

enum { MANY = 100 };

/* Of references 1, 1 + step, 1 + 2 step ... and results that are these in bf16, but for `last` that is added to the last. */
static bool finds_rounded(double step, double last) {
    static sequence one = {.rows = 1, .keys = 1};
    const inputs in = {.problem = {.batch = 1}, .sequences = &one};
    double result[MANY], reference[MANY];
    for (int i = 0; i < MANY; ++i) {
        reference[i] = 1 + step * i;
        result[i] = element_round(STROBE_BF16, reference[i]);
    }
    result[MANY - 1] += last;
    const buffer r = row_buffer(result, MANY), right = row_buffer(reference, MANY);
    return compare_finds_rounded(&in, T_OUT, &r, &right, STROBE_BF16);
}

static void finds_results_that_were_rounded_on_their_way(void **state) {
    (void)state;
    assert_true(finds_rounded(0.001, 0));
    assert_false(finds_rounded(0.001, 0x1p-20)); /* a digit of its own */
    assert_false(finds_rounded(0x1p-7, 0));      /* the reference has none either */
    assert_false(finds_rounded(0x1p-30, 0));     /* too near to numbers of the dtype to tell */
}

/* A row of one key: half of its value, where `scaled` says so, is all that out has of it. */
static bool finds_rounded_value(double scaled) {
    static sequence one = {.rows = 1, .keys = 1};
    double result[MANY], reference[MANY], value[MANY], scale = scaled;
    for (int i = 0; i < MANY; ++i) {
        reference[i] = 1 + 0.001 * i, value[i] = 2 * reference[i];
        result[i] = element_round(STROBE_BF16, reference[i]);
    }
    inputs in = {.problem = {.batch = 1, .heads_q = 1, .heads_kv = 1}, .sequences = &one};
    in.tensor[T_V] = row_buffer(value, MANY), in.tensor[T_V_SCALE] = row_buffer(&scale, 1);
    const buffer r = row_buffer(result, MANY), right = row_buffer(reference, MANY);
    return compare_finds_rounded(&in, T_OUT, &r, &right, STROBE_BF16);
}

static void lets_a_scaled_value_be_rounded(void **state) {
    (void)state;
    assert_false(finds_rounded_value(0.5));
    assert_true(finds_rounded_value(0.625)); /* of another value */
}

static double rounding_of(tensor_id id, int64_t inputs_dtype, double value, int64_t dtype) {
    static sequence one = {.rows = 1, .keys = 1};
    const inputs in = {.problem = {.batch = 1, .heads_q = 1, .dtype = inputs_dtype}, .sequences = &one};
    const buffer b = row_buffer(&value, 1);
    return compare_rounding(&in, id, &b, dtype);
}

static void rounding_is_half_a_step_at_the_magnitude(void **state) {
    (void)state;
    assert_true(rounding_of(T_OUT, STROBE_BF16, 100, STROBE_FP16) == 0x1p-5); /* steps of 1/16 */
    assert_true(rounding_of(T_OUT, STROBE_BF16, 0.001, STROBE_FP16) == 0x1p-13);
    assert_true(rounding_of(T_OUT, STROBE_BF16, 2, STROBE_FP32) == 0x1p-23);
    for (double value = 0.01; value < 1e4; value *= 1.37) { /* what the flash-attn tests measure never exceeds it */
        const double r = element_round(STROBE_BF16, value), up = element_round(STROBE_BF16, r + 0.3);
        assert_true(fabs(element_round(STROBE_BF16, up - 0.3) - r) <= rounding_of(T_OUT, STROBE_BF16, value, STROBE_BF16));
    }
    assert_true(rounding_of(T_OUT, STROBE_BF16, -INFINITY, STROBE_FP32) == 0);
    assert_true(rounding_of(T_LSE, STROBE_BF16, 0, STROBE_FP32) == 0x1p-24);     /* of 1, or a weight of 1 */
    assert_true(rounding_of(T_LSE, STROBE_FP8_E4M3, 0, STROBE_FP32) == 0x1p-22); /* of 448, whose logarithm is 6.1 */
}

static void the_allowance_follows_the_rule(void **state) {
    (void)state;
    const problem plain = {0}, capped = {.softcap = 15};
    assert_true(compare_allowance(&plain, 0.5, 0.25) == 1.5);
    assert_true(compare_allowance(&capped, 0.5, 0.25) == 2);
    assert_true(compare_allowance(&plain, INFINITY, 0.25) == 0.5); /* a standard without an error excuses nothing */
    assert_true(compare_ratio(0, 0) == 0);
    assert_true(compare_ratio(1e-30, 0) == INFINITY);
    assert_true(compare_ratio(1, 2) == 0.5);
}

/* --------------------------------------------------------------------------------------------------------- verdicts -- */

typedef struct judged {
    inputs in;
    oracle o;
} judged;

static void judge(judged *j, const char *text) {
    problem p;
    assert_true(problem_parse(text, &p, message, sizeof message));
    assert_true(inputs_create(&j->in, &p, message, sizeof message));
    assert_true(oracle_create(&j->o, &j->in, message, sizeof message));
    inputs_poison(&j->in);
}

static void release(judged *j) {
    oracle_free(&j->o);
    inputs_free(&j->in);
}

static void right_results_pass_and_wrong_ones_fail(void **state) {
    static const tensor_id outputs_of[2][3] = {{T_OUT, T_LSE, T_LSE}, {T_DQ, T_DK, T_DV}};
    const char *text = *state;
    judged j;
    judge(&j, text);
    const char *kernel = trial_reference[j.in.problem.operation]; /* right whatever the machine has */
    verification v = verify_kernel(&j.in, &j.o, kernel);
    if (v.verdict != VERDICT_PASSED) fail_msg("%s: %s", text, v.sentence);
    assert_true(v.ratio <= 1);
    for (int i = 0; i < 3; ++i) {
        const tensor_id id = outputs_of[j.in.problem.operation][i];
        double *element = (double *)(void *)inputs_row(&j.in, id, &j.o.reference.tensor[id], 0, 1, 0), saved = *element;
        *element += 4 * j.o.allowance[id];
        j.o.refined = true;
        v = verify_kernel(&j.in, &j.o, kernel);
        assert_int_equal(v.verdict, VERDICT_FAILED);
        assert_non_null(strstr(v.sentence, tensor_name(id)));
        *element = saved;
    }
    release(&j);
}

static void an_unknown_kernel_fails(void **state) {
    (void)state;
    judged j;
    judge(&j, "s=3 d=4");
    const verification v = verify_kernel(&j.in, &j.o, "no_such_kernel");
    assert_int_equal(v.verdict, VERDICT_FAILED);
    assert_non_null(strstr(v.sentence, "no_such_kernel"));
    release(&j);
}

/* ---------------------------------------------------------------------------------------------------------- timings -- */

static void quartiles_interpolate(void **state) {
    (void)state;
    const timing t = timing_of((double[]){4, 1, 3, 2, 5}, 5);
    assert_true(t.median == 3 && t.samples == 5 && fabs(t.spread - 2.0 / 3) < 1e-15);
    assert_true(timing_of((double[]){1, 2}, 2).median == 1.5);
    assert_true(timing_of((double[]){7}, 1).spread == 0);
    assert_true(timing_of(NULL, 0).median == 0);
}

static void count_calls(void *context) { ++*(int *)context; }

static void measures_at_least_five_times(void **state) {
    (void)state;
    int calls = 0;
    const timing t = timing_measure(count_calls, &calls, 0);
    assert_int_equal(t.samples, 5);
    assert_true(calls >= 7 && t.median > 0);
}

int main(void) {
    static const char *const problems[] = {"fwd s=5 d=8", "fwd b=2 h=4/2 sq=9 sk=21 d=33 bf16 causal varlen=packed_used",
                                           "bwd b=2 h=2 s=11 d=16 fp16 layout=gaps",
                                           "bwd h=4/1 sq=7 sk=19 d=24 dv=8 window=4,2"};
    static const struct CMUnitTest others[] = {cmocka_unit_test(every_16_bit_pattern_survives),
                                               cmocka_unit_test(rounds_to_nearest_even),
                                               cmocka_unit_test(fp32_rounds_as_the_compiler_does),
                                               cmocka_unit_test(finds_the_largest_error),
                                               cmocka_unit_test(what_is_not_a_number_is_an_infinite_error),
                                               cmocka_unit_test(what_a_dtype_cannot_hold_is_infinite),
                                               cmocka_unit_test(finds_results_that_were_rounded_on_their_way),
                                               cmocka_unit_test(lets_a_scaled_value_be_rounded),
                                               cmocka_unit_test(rounding_is_half_a_step_at_the_magnitude),
                                               cmocka_unit_test(the_allowance_follows_the_rule),
                                               cmocka_unit_test(an_unknown_kernel_fails),
                                               cmocka_unit_test(quartiles_interpolate),
                                               cmocka_unit_test(measures_at_least_five_times)};
    struct CMUnitTest tests[COUNT(problems) + COUNT(others)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(problems); ++i)
        tests[count++] = test_of_row(problems[i], right_results_pass_and_wrong_ones_fail, problems[i]);
    for (size_t i = 0; i < COUNT(others); ++i) tests[count++] = others[i];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
