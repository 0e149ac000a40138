/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_score.c: score functions: the parser's values are a C compiler's, for each operation; what an expression says of a
 * block holds for each pair of it; what is wrong is refused with its place; common subexpressions are shared. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/score/ranges.h"
#include "refusal.h"
#include "slot.h"
#include "test.h"

/* -------------------------------------------------------------------------------------------------------------- values --
 */

static float table[5][40];
static int32_t kind[40];
static uint8_t byte[4][3];

#define inf       ((double)INFINITY)
#define min(x, y) ((x) < (y) ? (x) : (y))
#define max(x, y) ((x) > (y) ? (x) : (y))
#define abs(x)    ((x) < 0 ? -(x) : (x))

/* F(name, the expression): C and the parser are given the same text. */
#define EXPRESSIONS(F)                                                                                                   \
    F(plain, score)                                                                                                      \
    F(precedence, 1 + 2 * i - 7 / 2 % 3 - -j * 2.5)                                                                      \
    F(from_the_left, i - j - 3 - b)                                                                                      \
    F(towards_zero, (i - 9) / 4 * 100 + (i - 9) % 4 + (j - 30) / -7 + (j - 30) % -7)                                     \
    F(comparisons, (i < j) + 2 * (i <= j) + 4 * (i > j) + 8 * (i >= j) + 16 * (i == j) + 32 * (i != j))                  \
    F(of_floats, (score < 0.25) + 2 * (score >= 0.5 * i) + 4 * (score == 0.5) + 8 * (score != score))                    \
    F(logic, (i < 3 || j < 5 && !(i == j)) + !score + !!i)                                                               \
    F(choice, i < j ? i < 3 ? 1 : 2 : j)                                                                                 \
    F(choice_of_floats, i % 2 == 0 ? score : -inf)                                                                       \
    F(mixed, i / 2 + i / 2.0 + 1e-3 * .5 + 2.e1 + 0.5f * i - 1.F / 4)                                                    \
    F(least_and_most, min(i, j) * max(i, 4) + min(score, 0.5) - max(score, i))                                           \
    F(sizes, abs(i - j) + abs(score) * hkv + h + seq_q - seq_k)                                                          \
    F(functions, exp(score) + exp2(score) + log(i + 1) + tanh(score) + sqrt(i) + floor(score * 7) + pow(i + 0.5, score)) \
    F(of_scalars, score *w + c * i - c / 2)                                                                              \
    F(loads, score + table[h][i - j + 20] * kind[j] + byte[b][2])                                                        \
    F(a_load_in_a_load, table[kind[i]][abs(kind[j]) + 1] + kind[kind[i] * 2])                                            \
    F(deep, ((((((((((((((((i)))))))))))))))) + - - -!+ +j)

#define DEFINE(name, ...)                                                                                                   \
    static double name(double score, int32_t b, int32_t h, int32_t hkv, int32_t i, int32_t j, int32_t seq_q, int32_t seq_k, \
                       double w, int32_t c) {                                                                               \
        (void)score, (void)b, (void)h, (void)hkv, (void)i, (void)j, (void)seq_q, (void)seq_k, (void)w, (void)c;             \
        return (double)(__VA_ARGS__);                                                                                       \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wparentheses" /* the parser has C's precedence; so has this */
#pragma GCC diagnostic ignored "-Wfloat-conversion"
#pragma GCC diagnostic ignored "-Wconversion"
EXPRESSIONS(DEFINE)
#pragma GCC diagnostic pop

static const struct {
    const char *name, *text;
    double (*value)(double, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, double, int32_t);
} expressions[] = {
#define ROW(name, ...) {#name, #__VA_ARGS__, name},
    EXPRESSIONS(ROW)
#undef ROW
};
#undef inf
#undef min
#undef max
#undef abs

static const strobe_score_scalar scalars[] = {{"w", 0.75, 0, 0}, {"c", -7, 1, 0}};
static const strobe_score_array arrays[] = {{"table", 2, STROBE_FP32}, {"kind", 1, STROBE_INT32}, {"byte", 2, STROBE_UINT8}};

static strobe_status make(const char *score, const char *visible, strobe_score **f) {
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = score,
                                        .visible = visible,
                                        .scalars = scalars,
                                        .arrays = arrays,
                                        .scalar_count = 2,
                                        .array_count = 3};
    return strobe_score_create(&source, f);
}

/* The function in a call: its arrays lie apart, the table with its rows turned round. */
static struct score_call call_of(const strobe_score *f) {
    struct score_call c = {.function = f, .scalar = {0.75, -7}};
    for (int n = 0; n < 40; ++n) kind[n] = n / 7 - 1 < 0 ? 0 : n / 7 - 1;
    for (int n = 0; n < 200; ++n) table[n / 40][n % 40] = (float)(n * 37 % 101) / 16;
    for (int n = 0; n < 12; ++n) byte[n / 3][n % 3] = (uint8_t)(n * 21);
    c.array[0] = (strobe_score_elements){.data = table, .extent = {5, 40, 1, 1}, .stride = {40, 1}, .dtype = STROBE_FP32};
    c.array[1] = (strobe_score_elements){.data = kind, .extent = {40, 1, 1, 1}, .stride = {1}, .dtype = STROBE_INT32};
    c.array[2] = (strobe_score_elements){.data = byte, .extent = {4, 3, 1, 1}, .stride = {3, 1}, .dtype = STROBE_UINT8};
    return c;
}

static void test_values(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(expressions); ++n) {
        strobe_score *f;
        if (make(expressions[n].text, NULL, &f)) fail_msg("%s: %s", expressions[n].name, strobe_last_error());
        const struct score_call of = call_of(f);
        for (int e = 0; e < 400; ++e) {
            const struct score_place at = {
                .b = e % 4, .h = e % 5, .hkv = e % 2, .i = e % 20, .j = e / 20, .seq_q = 20, .seq_k = 19};
            const double score = (double)(e * 29 % 64 - 31) / 16;
            double value[SCORE_MOST_NODES];
            strobe__score_evaluate(&of, &f->of_score, &at, score, false, value);
            const double expected = expressions[n].value(score, (int32_t)at.b, (int32_t)at.h, (int32_t)at.hkv, (int32_t)at.i,
                                                         (int32_t)at.j, 20, 19, 0.75, -7);
            if (!(value[f->score] == expected || fabs(value[f->score] - expected) <= 1e-13 * fabs(expected)))
                fail_msg("%s is %.17g at i %d, j %d, in C %.17g", expressions[n].text, value[f->score], (int)at.i, (int)at.j,
                         expected);
        }
        strobe_score_destroy(f);
    }
}

/* What C leaves open. */
static void test_defined(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } rows[] = {
        {"i / 0 + 5 % 0", 0},
        {"2147483647 + i", -2147483648.0 + 2},
        {"-2147483647 - 1 - i", 2147483645},
        {"(-2147483647 - 1) / -1", -2147483648.0},
        {"(-2147483647 - 1) % -1", 0},
        {"abs(-2147483647 - 1)", -2147483648.0},
        {"65536 * 65537", 65536},
        {"int(-2.9) + int(3e10) / 2147483647 + int(0.0 / 0)", -1},
        {"int(-inf) + 1", -2147483647},
        {"kind[i - 100 * (i * i)]", 0}, /* clamped to the ends */
        {"kind[i * i * 100]", 4},
        {"float(7) / 2", 3.5},
        {"(0.1f == 0.1) + 00.5 + 1e1F", 11.5}, /* floats have one type */
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        strobe_score *f;
        if (make(rows[n].text, NULL, &f)) fail_msg("%s", strobe_last_error());
        const struct score_call of = call_of(f);
        const struct score_place at = {.i = 3};
        double value[SCORE_MOST_NODES];
        strobe__score_evaluate(&of, &f->of_score, &at, 0, false, value);
        if (value[f->score] != rows[n].value) fail_msg("%s is %g, not %g", rows[n].text, value[f->score], rows[n].value);
        strobe_score_destroy(f);
    }
}

/* ------------------------------------------------------------------------------------------------------------- blocks -- */

static const struct {
    const char *text;
    bool decided; /* some blocks have to be hidden for certain, and others visible for certain */
} masks[] = {
    {"j <= i", true},
    {"j <= i && i - j < 9", true},
    {"abs(i - j) <= 5", true},
    {"kind[i] == kind[j]", true},
    {"!(kind[i] != kind[j] || j > i)", true},
    {"i / 8 == j / 8", true},
    {"j % 16 < 8", true},
    {"(i - j) % 3 == 0", false},
    {"min(i, j) < 10 && max(i, j) > 3 || h == 2", true},
    {"table[h][j] > 2", false},
    {"1.5 * i - j > 4 ? j < 20 : i > 30", true},
    {"sqrt(float(i * i + j * j)) < 15", true},
    {"exp(-0.1 * abs(i - j)) > 0.5", true},
    {"int(log(i + 1.0) * 3) == int(log(j + 1.0) * 3)", true},
    {"floor(0.13 * i) == floor(0.13 * j) && tanh(0.2 * j) > 0.1", true},
    {"pow(i + 0.5, 2) > exp2(0.25 * j)", true},
    {"byte[i / 10][j / 14] > 100", false},
    {"h + hkv == 2", true},
    {"i", false},
};

static void check_box(const struct score_call *of, const char *text, const struct score_box *box, int decided[2]) {
    struct interval range[SCORE_MOST_NODES];
    const struct strobe_score *f = of->function;
    strobe__score_ranges(of, &f->of_visible, box, OF_CALL, OF_PAIR + 1, range);
    const bool none = interval_is_false(range[f->visible]), all = interval_is_true(range[f->visible]);
    struct score_place at = {.b = box->b, .hkv = box->hkv, .seq_q = 40, .seq_k = 40};
    for (at.h = box->first_h; at.h <= box->last_h; ++at.h)
        for (at.i = box->first_i; at.i <= box->last_i; ++at.i)
            for (at.j = box->first_j; at.j <= box->last_j; ++at.j) {
                double value[SCORE_MOST_NODES];
                strobe__score_evaluate(of, &f->of_visible, &at, 0, at.i % 2, value);
                if (value[f->visible] != 0 ? none : all)
                    fail_msg("%s: h %d, i %d, j %d is %svisible; the block says otherwise", text, (int)at.h, (int)at.i,
                             (int)at.j, value[f->visible] != 0 ? "" : "not ");
            }
    decided[0] += none, decided[1] += all;
}

static void test_blocks(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(masks); ++n) {
        strobe_score *f;
        struct random random = {.state = 77 + n};
        int decided[2] = {0, 0};
        if (make(NULL, masks[n].text, &f)) fail_msg("%s: %s", masks[n].text, strobe_last_error());
        const struct score_call of = call_of(f);
        for (int trial = 0; trial < 300; ++trial) {
            const int64_t i = (int64_t)random_below(&random, 40), j = (int64_t)random_below(&random, 40);
            const int64_t h = (int64_t)random_below(&random, 4), last = trial % 3 == 0 ? 0 : trial % 8;
            const struct score_box box = {.b = trial % 4,
                                          .hkv = h,
                                          .first_h = h,
                                          .last_h = h + trial % 2,
                                          .first_i = i,
                                          .last_i = i + last < 40 ? i + last : 39,
                                          .first_j = j,
                                          .last_j = j + last < 40 ? j + last : 39,
                                          .seq_q = 40,
                                          .seq_k = 40};
            check_box(&of, masks[n].text, &box, decided);
        }
        if (masks[n].decided && (decided[0] == 0 || decided[1] == 0))
            fail_msg("%s: %d blocks hidden, %d visible for certain", masks[n].text, decided[0], decided[1]);
        strobe_score_destroy(f);
    }
}

static void test_sharing(void **state) {
    (void)state;
    strobe_score *f;
    int tanhs = 0, loads = 0;
    assert_int_equal(make("tanh(score * w) * kind[j] + (tanh(score * w) + kind[j]) * byte[0][1]", "kind[j] > 0", &f),
                     STROBE_OK);
    for (int n = 0; n < f->node_count; ++n) {
        tanhs += f->node[n].operation == OP_F_TANH;
        loads += f->node[n].operation == OP_LOAD;
    }
    assert_int_equal(tanhs, 1);
    assert_int_equal(loads, 2);
    assert_int_equal(f->of_score.registers <= 3, 1);
    strobe_score_destroy(f);
}

/* ------------------------------------------------------------------------------------------------------------ refusals --
 */

static const struct {
    const char *score, *visible, *sentence;
} texts[] = {
    {"", NULL, "score ends at column 1; a number, a name, (, -, + or ! is accepted there"},
    {"score +", NULL, "score ends at column 8; a number, a name, (, -, + or ! is accepted there"},
    {"score 2", NULL, "score has \"2\" at column 7; an operator or the end is accepted there"},
    {"(score", NULL, "score ends at column 7; an operator or ) is accepted there"},
    {"min(i)", NULL, "score has \")\" at column 6; an operator or , and a second operand is accepted there"},
    {"tanh score", NULL, "score has \"score\" at column 6; ( is accepted there"},
    {"i & j", NULL, "score has \"&\" at column 3; && or || is accepted there"},
    {"i = j", NULL, "score has \"=\" at column 3; == is accepted there"},
    {"score; drop", NULL, "score has \";\" at column 6; an operator, a name or a number is accepted there"},
    {"score \x01", NULL, "score has the byte 0x01 at column 7; letters, digits and operators are accepted there"},
    {"1.5.2", NULL, "score has \"1.5.\" at column 1; a number, an operator behind it, is accepted there"},
    {"1e+", NULL, "score has \"1e+\" at column 1; a digit of the exponent is accepted there"},
    {"2147483648", NULL,
     "score has \"2147483648\" at column 1; an integer up to 2147483647, or a float such as 3e9, is accepted there"},
    {"0.5fx", NULL, "score has \"0.5fx\" at column 1; a number, an operator behind it, is accepted there"},
    {"0.5f5", NULL, "score has \"0.5f5\" at column 1; a number, an operator behind it, is accepted there"},
    {"score + 2f", NULL, "score has \"2f\" at column 9; a number, an operator behind it, is accepted there"},
    {"score + 010", NULL, "score has \"010\" at column 9; a decimal number, whose first digit is not 0, is accepted there"},
    {"1e39", NULL, "score has \"1e39\" at column 1; a number up to 3.4e38, or inf, is accepted there"},
    {"score % 2", NULL,
     "score has \"%\" at column 7; % between integers (floor() and - make a remainder of floats) is accepted there"},
    {"table[h]", NULL, "score ends at column 9; [ (table has rank 2) is accepted there"},
    {"kind[w]", NULL, "score has \"w\" at column 6; an integer (int(x) makes one) as an index is accepted there"},
    {"kind + 1", NULL, "score has \"+\" at column 6; [ (kind has rank 1) is accepted there"},
    {"i ? j", NULL, "score ends at column 6; an operator or : is accepted there"},
    {NULL, "score > 0", "visible has \"score\" at column 1; a name other than score is accepted there"},
    {"q", NULL,
     "score has \"q\" at column 1; one of score, b, h, hkv, i, j, seq_q, seq_k, inf, a declared scalar or array, or a "
     "function (min, max, abs, exp, exp2, log, tanh, sqrt, floor, pow, int, float) is accepted there"},
    {NULL, NULL, "source.score and source.visible are NULL; one of both or both are accepted"},
};

static void test_texts(void **state) {
    (void)state;
    strobe_score *f = NULL;
    for (size_t n = 0; n < COUNT(texts); ++n) {
        assert_int_equal(make(texts[n].score, texts[n].visible, &f), STROBE_INVALID_ARGUMENT);
        assert_string_equal(strobe_last_error(), texts[n].sentence);
        assert_null(f);
    }
    char text[SCORE_MOST_TEXT + 2];
    memset(text, '(', sizeof text), text[sizeof text - 1] = 0;
    assert_int_equal(make(text, NULL, &f), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), "score has more than 4096 characters; up to 4096 are accepted");
    text[200] = 0;
    assert_int_equal(make(text, NULL, &f), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), "score is nested more than 64 deep at column 65; up to 64 is accepted");
    memset(text, '-', 200);
    assert_int_equal(make(text, NULL, &f), STROBE_INVALID_ARGUMENT);
    size_t length = (size_t)snprintf(text, sizeof text, "score");
    for (int n = 0; n < 300; ++n) length += (size_t)snprintf(text + length, sizeof text - length, "*tanh(%d)*i", n);
    assert_int_equal(make(text, NULL, &f), STROBE_INVALID_ARGUMENT);
    assert_non_null(strstr(strobe_last_error(), "score has more operations than are accepted, 512"));
}

static void test_sources(void **state) {
    (void)state;
    strobe_score *f = NULL;
    strobe_score_scalar scalar = {"w", 1, 0, 0}, twice[2] = {{"w", 1, 0, 0}, {"w", 1, 0, 0}};
    strobe_score_array array = {"a", 1, STROBE_FP32};
    strobe_score_source source = {.struct_size = sizeof source,
                                  .score = "score",
                                  .scalars = &scalar,
                                  .arrays = &array,
                                  .scalar_count = 1,
                                  .array_count = 1};
#define REFUSED(sentence)                                                        \
    assert_int_equal(strobe_score_create(&source, &f), STROBE_INVALID_ARGUMENT); \
    assert_string_equal(strobe_last_error(), sentence)
    scalar.name = "exp";
    REFUSED("source.scalars[0].name is \"exp\", which every function has; another name is accepted");
    scalar.name = "2x";
    REFUSED(
        "source.scalars[0].name has a character other than letters, digits and _ at 0; such a name, with a letter first, "
        "is accepted");
    scalar.name = "w", array.name = "w";
    REFUSED("source.arrays[0].name is \"w\" a second time; another name is accepted");
    array.name = "a", array.rank = 5;
    REFUSED("source.arrays[0].rank is 5; 1 to 4 is accepted");
    array.rank = 1, array.dtype = STROBE_FP64;
    REFUSED("source.arrays[0].dtype is 4; STROBE_FP32, STROBE_FP16, STROBE_BF16, STROBE_INT32 or STROBE_UINT8 is accepted");
    array.dtype = STROBE_FP32, scalar.integer = 1, scalar.value = 1.5;
    REFUSED("source.scalars[0] (w) is 1.5; a whole number from -2147483648 to 2147483647 is accepted");
    source.scalars = twice, source.scalar_count = 2;
    REFUSED("source.scalars[1].name is \"w\" a second time; another name is accepted");
    source.array_count = 17;
    source.scalars = &scalar, source.scalar_count = 1, scalar.value = 1;
    REFUSED("source.array_count is 17; 0 to 16 is accepted");
    source.struct_size = 4;
    REFUSED("source.struct_size is 4; sizeof the structure, 48, is accepted");
#undef REFUSED
    assert_int_equal(strobe_score_create(NULL, &f), STROBE_INVALID_ARGUMENT);
    assert_int_equal(strobe_score_create(&source, NULL), STROBE_INVALID_ARGUMENT);
    assert_null(f);
    strobe_score_destroy(NULL);
}

/* The call's function is "score + table[h][i - j + 4] / c", of 4 rows, 5 keys, 4 heads. */
static const struct refusal refusals[] = {
    {{ATTACH(score), POINT(score.function, NULL)},
     "score.function is NULL; a function of strobe_score_create is accepted",
     0},
    {{ATTACH(score), INT(score.array_count, 2)}, "score.array_count is 2; 1, as declared, is accepted", 0},
    {{ATTACH(score), INT(score.scalar_count, 2)}, "score.scalar_count is 2; 1, as declared, is accepted", 0},
    {{ATTACH(score), REAL(scalar, 2.5)},
     "score.scalars[0] (c) is 2.5; a whole number from -2147483648 to 2147483647 is accepted",
     0},
    {{ATTACH(score), INT(elements.extent[1], 7)},
     "score: index 2 of table at column 9 is from 0 to 7 for these positions; 0 to 6 is accepted (min and max clamp it)",
     0},
    {{ATTACH(score), INT(a.q_start, -1)},
     "score: index 2 of table at column 9 is from -1 to 6 for these positions; 0 to 8 is accepted (min and max clamp it)",
     0},
    {{ATTACH(score), INT(elements.extent[0], 3)},
     "score: index 1 of table at column 9 is from 0 to 3 for these positions; 0 to 2 is accepted (min and max clamp it)",
     0},
    {{ATTACH(score), INT(elements.extent[0], 0)}, "score.arrays[0] (table).extent[0] is 0; 1 to 2147483647 is accepted", 0},
    {{ATTACH(score), INT(elements.stride[0], (int64_t)1 << 40)},
     "score.arrays[0] (table).stride[0] is 1099511627776; -2147483647 to 2147483647 is accepted",
     0},
    {{ATTACH(score), INT(elements.dtype, STROBE_FP16)},
     "score.arrays[0] (table).dtype is 2; 1, as declared, or 0 is accepted",
     0},
    {{ATTACH(score), INT(elements.reserved, 1)}, "score.arrays[0] (table).reserved is 1; 0 is accepted", 0},
    {{ATTACH(score), INT(a.k_start, (int64_t)1 << 31)},
     "positions of keys are from 2147483648 to 2147483652; with a score function -2147483648 to 2147483647 is accepted",
     0},
    {{ATTACH_D(dscore)}, "dscore is given without a score; both or none is accepted", BACKWARD},
    {{ATTACH(score), ATTACH_D(dscore), INT(delements.extent[1], 10)},
     "dscore.arrays[0] (table).extent[1] is 10; the array's, 9, is accepted",
     BACKWARD},
    {{ATTACH(score), ATTACH_D(dscore), INT(delements.stride[0], 3), INT(delements.stride[1], 1)},
     "dscore.arrays[0] (table).stride makes elements share a place; strides that keep them apart are accepted",
     BACKWARD},
    {{ATTACH(score), ATTACH_D(dscore), INT(dscore.array_count, 0)},
     "dscore.array_count is 0; 1, as declared, is accepted",
     BACKWARD},
    {{ATTACH(score), ATTACH_D(dscore), POINT(score.function, &visible_function)},
     "dscore.arrays[0] (table) is given; NULL is accepted, since score does not change with this array's elements",
     BACKWARD},
};

static void test_calls(void **state) {
    (void)state;
    check_refusals(refusals, COUNT(refusals));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_defined), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_sharing), cmocka_unit_test(test_texts),   cmocka_unit_test(test_sources),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
