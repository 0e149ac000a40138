/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_report.c: what a chart and a page are made of, and which changes between two runs count. */
#include "test.h"

#include "bench/chart.h"
#include "bench/compare_runs.h"
#include "io/html.h"
#include "io/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct verdict_row {
    const char *name;
    double speed, share, noise;
    verdict_of_times expected;
} verdicts[] = {
    {"nothing changed", 1, 1, 0.02, TIMES_SAME},
    {"within the noise", 1.019, 1.019, 0.02, TIMES_SAME},
    {"faster beyond it", 1.03, 1.03, 0.02, TIMES_FASTER},
    {"slower beyond it", 0.95, 0.95, 0.02, TIMES_SLOWER},
    {"slower by less than it", 0.985, 0.985, 0.02, TIMES_SAME},
    {"the machine was faster", 1.3, 1.01, 0.02, TIMES_MACHINE},
    {"the machine was slower, the kernel faster", 0.9, 1.1, 0.02, TIMES_MACHINE},
    {"no peak is known", 1.3, 0, 0.02, TIMES_FASTER},
    {"without noise", 1.0001, 1.0001, 0, TIMES_FASTER},
    {"a file without times", NAN, NAN, 0.1, TIMES_SAME},
};

static void judges(void **state) {
    const struct verdict_row *row = *state;
    assert_int_equal(compare_times(row->speed, row->share, row->noise), row->expected);
}

/* What a function prints; to be freed. */
static char *printed_chart(const chart *c) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    chart_print(c, stream);
    fclose(stream);
    return text;
}

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (; (text = strstr(text, part)) != NULL; ++text) ++count;
    return count;
}

static void a_chart_has_every_point_and_level(void **state) {
    (void)state;
    chart *c = chart_create("GFLOP/s");
    char *empty = printed_chart(c);
    assert_string_equal(empty, "");
    free(empty);
    chart_add_point(c, "fwd d=64 score=\"a<b\"", false, 1024, 100);
    chart_add_point(c, "fwd d=64 score=\"a<b\"", false, 512, 50); /* drawn before the other */
    chart_add_point(c, "bwd d=64", false, 512, 80);
    chart_add_point(c, "bwd d=64", true, 512, 70);
    chart_add_level(c, "peak", 187);
    char *text = printed_chart(c);
    assert_int_equal(count_of(text, "<circle "), 4);
    assert_int_equal(count_of(text, "a&lt;b&quot;"), 3); /* two points and the legend */
    assert_null(strstr(text, "a<b"));
    assert_int_equal(count_of(text, "stroke-dasharray"), 4); /* a series and a level, each with its place in the legend */
    assert_non_null(strstr(text, ">200</text>"));            /* the axis ends above the peak */
    assert_non_null(strstr(text, ", length 512: 50 GFLOP/s"));
    assert_true(strstr(text, "length 512: 50") < strstr(text, "length 1024: 100"));
    assert_int_equal(count_of(text, ">512</text>"), 1);
    free(text);
    chart_destroy(c);
}

static void points_come_from_a_document(void **state) {
    (void)state;
    static const char json[] =
        "{\"rows\":[{\"problem\":\"fwd b=1 s=512 d=64 fp32\",\"tflops\":0.1,\"gbps\":5,\"bound\":\"fma\"},"
        "{\"problem\":\"fwd b=1 s=1024 d=64 fp32\",\"tflops\":0.2,\"gbps\":6,\"bound\":\"fma\"},"
        "{\"problem\":\"fwd sq=1 sk=8192 d=64 fp32\",\"tflops\":0.01,\"gbps\":7,\"bound\":\"memory\"},"
        "{\"problem\":7}]}";
    char message[128];
    cJSON *document = json_parse(json, sizeof json - 1, message, sizeof message);
    assert_non_null(document);
    assert_string_equal(report_unit(document), "GFLOP/s");
    chart *c = chart_create("GFLOP/s");
    report_add_points(c, "GFLOP/s", document, false);
    char *text = printed_chart(c);
    assert_non_null(strstr(text, "fwd b=1 d=64 fp32, length 512: 100 GFLOP/s"));
    assert_non_null(strstr(text, "fwd b=1 d=64 fp32, length 1024: 200 GFLOP/s"));
    assert_non_null(strstr(text, "fwd d=64 fp32, length 8192: 10 GFLOP/s"));
    free(text);
    chart_destroy(c);
    cJSON_Delete(document);
}

static void memory_bounds_all_or_not(void **state) {
    (void)state;
    cJSON *document = cJSON_Parse("{\"rows\":[{\"bound\":\"memory\"},{\"bound\":\"memory\"}]}");
    assert_string_equal(report_unit(document), "GB/s");
    cJSON_Delete(document);
}

static void knows_its_formats(void **state) {
    (void)state;
    report_format format;
    assert_true(report_format_named("html", &format) && format == REPORT_HTML);
    assert_true(report_format_named("csv", &format) && format == REPORT_CSV);
    assert_true(report_format_named("md", &format) && format == REPORT_MARKDOWN);
    assert_false(report_format_named("svg", &format));
}

static void a_table_of_html(void **state) {
    (void)state;
    static const table_column columns[] = {{.key = "a<b"}, {.key = "x", .scale = 100, .suffix = " %", .decimals = 1}};
    table *t = table_create(columns, COUNT(columns));
    table_add_row(t, (table_cell[]){cell_text("\"<&>"), cell_real(0.125)});
    table_add_row(t, (table_cell[]){cell_none(), cell_real(INFINITY)});
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    table_print_html(t, stream);
    fclose(stream);
    assert_non_null(strstr(text, "<th>a&lt;b</th><th class=\"n\">x</th>"));
    assert_non_null(strstr(text, "<td data-v=\"&quot;&lt;&amp;&gt;\">&quot;&lt;&amp;&gt;</td>"
                                 "<td class=\"n\" data-v=\"0.125\">12.5 %</td>"));
    assert_non_null(strstr(text, "<td data-v=\"\">-</td><td class=\"n\" data-v=\"\">inf %</td>"));
    free(text);
    table_destroy(t);
}

int main(void) {
    struct CMUnitTest tests[COUNT(verdicts) + 5];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(verdicts); ++i) tests[count++] = test_of_row(verdicts[i].name, judges, &verdicts[i]);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(a_chart_has_every_point_and_level);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(points_come_from_a_document);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(memory_bounds_all_or_not);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(knows_its_formats);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(a_table_of_html);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
