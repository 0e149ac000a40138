/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_table.c: the four renderings of a table, byte by byte, and numbers to text and back. */
#include "test.h"

#include "io/json.h"
#include "io/number.h"
#include "io/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const table_column columns[] = {{.key = "name"},
                                       {.key = "count", .title = "n"},
                                       {.key = "ms", .decimals = 2},
                                       {.key = "of_peak", .title = "of peak", .scale = 100, .suffix = " %", .decimals = 1},
                                       {.key = "error", .significant = 2}};

static table *make_table(void) {
    table *t = table_create(columns, COUNT(columns));
    table_add_row(t,
                  (table_cell[]){cell_text("plain"), cell_integer(7), cell_real(1.255), cell_real(0.5), cell_real(1.23e-7)});
    table_add_row(t, (table_cell[]){cell_text("a,\"b\"|\xc2\xb5"), cell_integer(-12345), cell_real(0.1), cell_none(),
                                    cell_real(INFINITY)});
    return t;
}

static const struct rendering {
    const char *name, *text;
} renderings[] = {
    {"table", "name          n    ms  of peak    error\n"
              "plain         7  1.25   50.0 %  1.2e-07\n"
              "a,\"b\"|\xc2\xb5  -12345  0.10        -      inf\n"},
    {"csv", "name,count,ms,of_peak,error\n"
            "plain,7,1.255,0.5,1.23e-07\n"
            "\"a,\"\"b\"\"|\xc2\xb5\",-12345,0.1,,inf\n"},
    {"md", "| name | n | ms | of peak | error |\n"
           "|---|---:|---:|---:|---:|\n"
           "| plain | 7 | 1.25 | 50.0 % | 1.2e-07 |\n"
           "| a,\"b\"\\|\xc2\xb5 | -12345 | 0.10 | - | inf |\n"},
};

static void assert_prints(const table *t, const char *format_name, const char *expected) {
    char *text = NULL;
    size_t size = 0;
    table_format format;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    assert_true(table_format_named(format_name, &format));
    assert_true(table_print(t, format, stream));
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
}

static void renders(void **state) {
    const struct rendering *row = *state;
    table *t = make_table();
    assert_int_equal(table_row_count(t), 2);
    assert_prints(t, row->name, row->text);
    table_destroy(t);
}

static void renders_json(void **state) {
    (void)state;
    table *t = make_table();
    cJSON *rows = table_to_json(t);
    char *text = cJSON_PrintUnformatted(rows);
    assert_string_equal(text,
                        "[{\"name\":\"plain\",\"count\":7,\"ms\":1.255,\"of_peak\":0.5,\"error\":1.23e-07},"
                        "{\"name\":\"a,\\\"b\\\"|\xc2\xb5\",\"count\":-12345,\"ms\":0.1,\"of_peak\":null,\"error\":null}]");
    cJSON_free(text);
    cJSON_Delete(rows);
    table_destroy(t);
}

static void an_empty_table_has_a_heading(void **state) {
    (void)state;
    table *t = table_create(columns, 2);
    assert_prints(t, "table", "name  n\n");
    assert_prints(t, "csv", "name,count\n");
    assert_prints(t, "md", "| name | n |\n|---|---|\n");
    assert_prints(t, "json", "[]\n");
    table_destroy(t);
}

/* Whatever the last cells hold: nothing, or text that ends in spaces. */
static void no_space_ends_a_line(void **state) {
    (void)state;
    static const table_column both[] = {{.key = "a"}, {.key = "b"}, {.key = "c"}};
    table *t = table_create(both, COUNT(both));
    table_add_row(t, (table_cell[]){cell_text("a long first"), cell_text("x"), cell_text("")});
    table_add_row(t, (table_cell[]){cell_text("second"), cell_text(""), cell_text("")});
    table_add_row(t, (table_cell[]){cell_text("third"), cell_text("  y "), cell_text("z ")});
    table_add_row(t, (table_cell[]){cell_text(""), cell_text(""), cell_text("")});
    assert_prints(t, "table",
                  "a             b     c\n"
                  "a long first  x\n"
                  "second\n"
                  "third           y   z\n"
                  "\n");
    table_destroy(t);
}

static void knows_its_formats(void **state) {
    (void)state;
    table_format format;
    assert_false(table_format_named("xml", &format));
    assert_false(table_format_named("", &format));
}

static void grows(void **state) {
    (void)state;
    table *t = table_create(columns, 2);
    for (int i = 0; i < 1000; ++i) table_add_row(t, (table_cell[]){cell_text("x"), cell_integer(i)});
    assert_int_equal(table_row_count(t), 1000);
    table_destroy(t);
}

static void numbers_read_back(void **state) {
    (void)state;
    static const double values[] = {0, 0.1, 1.0 / 3, -1e300, 5e-324, 123456789.125, 0x1.fffffffffffffp1023};
    struct random r = {3};
    char text[NUMBER_TEXT];
    double back = 0;
    for (size_t i = 0; i < 10000 + COUNT(values); ++i) {
        const double value = i < COUNT(values) ? values[i] : ldexp(random_value(&r), (int)random_below(&r, 600) - 300);
        number_print(value, text);
        assert_true(number_real(text, &back));
        assert_memory_equal(&back, &value, sizeof value);
    }
    number_print(0.1, text);
    assert_string_equal(text, "0.1");
}

static void integers_take_suffixes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } rows[] = {{"0", true, 0},    {"16k", true, 16384}, {"-2M", true, -2097152}, {"9223372036854775807", true, INT64_MAX},
                {"", false, 0},    {"-", false, 0},      {"k", false, 0},         {"9223372036854775808", false, 0},
                {"1kk", false, 0}, {"1.5k", false, 0},   {"+1", false, 0},        {"9007199254740993k", false, 0},
                {" 1", false, 0},  {"1 ", false, 0},     {"0x10", false, 0}};
    for (size_t i = 0; i < COUNT(rows); ++i) {
        int64_t value = 0;
        assert_int_equal(number_integer(rows[i].text, strlen(rows[i].text), &value), rows[i].ok);
        if (rows[i].ok) assert_true(value == rows[i].value);
    }
}

int main(void) {
    struct CMUnitTest tests[COUNT(renderings) + 7];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(renderings); ++i) tests[count++] = test_of_row(renderings[i].name, renders, &renderings[i]);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(renders_json);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(an_empty_table_has_a_heading);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(knows_its_formats);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(no_space_ends_a_line);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(grows);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(numbers_read_back);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(integers_take_suffixes);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
