/* SPDX-License-Identifier: BSD-3-Clause
 *
 * compare_runs.c: rows of two runs matched by problem, device and threads, with a verdict each; see compare_runs.h. */
#include "bench/compare_runs.h"

#include "io/file.h"
#include "io/html.h"
#include "io/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const table_column columns[] = {
    {.key = "problem"},
    {.key = "threads"},
    {.key = "kernel"},
    {.key = "old_ms", .title = "old ms", .decimals = 3},
    {.key = "new_ms", .title = "new ms", .decimals = 3},
    {.key = "speed", .suffix = " x", .decimals = 3},
    {.key = "noise", .scale = 100, .suffix = " %", .decimals = 1},
    {.key = "old_of_peak", .title = "old of peak", .scale = 100, .suffix = " %", .decimals = 1},
    {.key = "new_of_peak", .title = "new of peak", .scale = 100, .suffix = " %", .decimals = 1},
    {.key = "verdict"}};

static const char *const words[] = {
    [TIMES_SAME] = "same", [TIMES_FASTER] = "faster", [TIMES_SLOWER] = "slower", [TIMES_MACHINE] = "machine"};
enum { WORDS = sizeof words / sizeof words[0] };

typedef struct comparison {
    cJSON *from, *to;
    table *rows;
    int count[WORDS], only_old, only_new;
} comparison;

verdict_of_times compare_times(double speed, double share, double noise) {
    const double beyond = log1p(noise), change = log(speed);
    if (!(fabs(change) > beyond)) return TIMES_SAME;
    if (share > 0 && !(log(share) * change > 0 && fabs(log(share)) > beyond)) return TIMES_MACHINE;
    return change > 0 ? TIMES_FASTER : TIMES_SLOWER;
}

static cJSON *read_document(const char *path, char *message, size_t capacity) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    char reason[256];
    cJSON *document = NULL;
    if (file_read(path, &bytes, &size, reason, sizeof reason)) {
        document = json_parse((const char *)bytes, size, reason, sizeof reason);
        if (document && !cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(document, "rows"))) {
            snprintf(reason, sizeof reason, "it has no array of rows; what strobe bench -o json prints is accepted");
            cJSON_Delete(document);
            document = NULL;
        }
    }
    free(bytes);
    if (!document) snprintf(message, capacity, "%s: %s", path, reason);
    return document;
}

static const cJSON *rows_of_document(const cJSON *document) { return cJSON_GetObjectItemCaseSensitive(document, "rows"); }

static bool is_same_problem(const cJSON *a, const cJSON *b) {
    return !strcmp(report_text(a, "problem"), report_text(b, "problem")) &&
           !strcmp(report_text(a, "device"), report_text(b, "device")) &&
           report_number(a, "threads") == report_number(b, "threads");
}

static const cJSON *find(const cJSON *document, const cJSON *wanted) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows_of_document(document)) {
        if (is_same_problem(row, wanted)) return row;
    }
    return NULL;
}

static table_cell number_of(const cJSON *row, const char *key) {
    const double value = row ? report_number(row, key) : 0;
    return value > 0 ? cell_real(value) : cell_none();
}

/* One of both may be NULL. */
static void add_row(comparison *c, const cJSON *from, const cJSON *to) {
    const cJSON *row = to ? to : from;
    const char *old_kernel = report_text(from, "kernel"), *new_kernel = report_text(to, "kernel");
    char kernels[160];
    snprintf(kernels, sizeof kernels, "%.64s%s%.64s", old_kernel, from && to && strcmp(old_kernel, new_kernel) ? " -> " : "",
             from && !strcmp(old_kernel, new_kernel) ? "" : new_kernel);
    const double threads = report_number(row, "threads");
    table_cell speed = cell_none(), noise = cell_none();
    const char *word = to ? "only new" : "only old";
    if (from && to && report_number(to, "ms") > 0 && report_number(from, "ms") > 0) {
        const double old_share = report_number(from, "of_peak"),
                     share = old_share > 0 ? report_number(to, "of_peak") / old_share : 0;
        speed = cell_real(report_number(from, "ms") / report_number(to, "ms"));
        noise = cell_real((report_number(from, "spread") + report_number(to, "spread")) / 2);
        const verdict_of_times verdict = compare_times(speed.real, share, noise.real);
        ++c->count[verdict];
        word = words[verdict];
    } else {
        ++*(to ? &c->only_new : &c->only_old);
    }
    table_add_row(c->rows, (table_cell[]){cell_text(report_text(row, "problem")),
                                          threads >= 1 && threads < 1e9 ? cell_integer((int64_t)threads) : cell_none(),
                                          cell_text(kernels), number_of(from, "ms"), number_of(to, "ms"), speed, noise,
                                          number_of(from, "of_peak"), number_of(to, "of_peak"), cell_text(word)});
}

static void compare_rows(comparison *c) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows_of_document(c->to)) add_row(c, find(c->from, row), row);
    cJSON_ArrayForEach(row, rows_of_document(c->from)) {
        if (!find(c->to, row)) add_row(c, row, NULL);
    }
}

static void describe_run(const cJSON *document, char *text, size_t capacity) {
    char peaks[256];
    report_peaks(document, peaks, sizeof peaks);
    snprintf(text, capacity, "%s, %s; %s; peak %s", report_text(document, "device"), report_text(document, "time"),
             report_text(document, "build"), peaks);
}

static void summarise(const comparison *c, char *text, size_t capacity) {
    snprintf(text, capacity, "%d faster, %d slower, %d same, %d as the machine's peak, %d only new, %d only old",
             c->count[TIMES_FASTER], c->count[TIMES_SLOWER], c->count[TIMES_SAME], c->count[TIMES_MACHINE], c->only_new,
             c->only_old);
}

static void print_page(const comparison *c, const char *const texts[3], FILE *stream) {
    const char *const unit = report_unit(c->to);
    chart *picture = chart_create(unit);
    report_add_points(picture, unit, c->to, false);
    report_add_points(picture, unit, c->from, true);
    html_begin("strobe bench: two runs compared", stream);
    fputs("<dl>\n", stream);
    html_fact("old, dashed", texts[0], stream);
    html_fact("new", texts[1], stream);
    html_fact("changes beyond noise", texts[2], stream);
    fputs("</dl>\n", stream);
    chart_print(picture, stream);
    chart_destroy(picture);
    fputs("<p>Noise is half of both spreads together. A row is faster or slower where its time and its share of the peak "
          "beside it\n"
          "have both changed by more; \"machine\" where the peak has changed as the time did. A click on a heading "
          "sorts.</p>\n",
          stream);
    table_print_html(c->rows, stream);
    html_end(stream);
}

static void print_json(const comparison *c, FILE *stream) {
    cJSON *document = cJSON_CreateObject();
    static const char *const kept[] = {"device", "build", "time", "peak"};
    for (int n = 0; n < 2; ++n) {
        cJSON *run = cJSON_AddObjectToObject(document, n ? "new" : "old");
        for (size_t k = 0; k < sizeof kept / sizeof kept[0]; ++k) {
            const cJSON *item = cJSON_GetObjectItemCaseSensitive(n ? c->to : c->from, kept[k]);
            if (item) cJSON_AddItemToObject(run, kept[k], cJSON_Duplicate(item, true));
        }
    }
    cJSON_AddItemToObject(document, "rows", table_to_json(c->rows));
    json_print(document, stream);
    cJSON_Delete(document);
}

static void print(const comparison *c, report_format format) {
    char texts[3][512];
    describe_run(c->from, texts[0], sizeof texts[0]);
    describe_run(c->to, texts[1], sizeof texts[1]);
    summarise(c, texts[2], sizeof texts[2]);
    if (format == REPORT_HTML)
        print_page(c, (const char *const[]){texts[0], texts[1], texts[2]}, stdout);
    else if (format == REPORT_JSON)
        print_json(c, stdout);
    else
        table_print(c->rows, (table_format)format, stdout);
    if (format == REPORT_TEXT) printf("\nold: %s\nnew: %s\n%s\n", texts[0], texts[1], texts[2]);
}

bool compare_files(const char *old_path, const char *new_path, report_format format, char *message, size_t capacity) {
    comparison c = {.from = read_document(old_path, message, capacity)};
    if (c.from) c.to = read_document(new_path, message, capacity);
    const bool ok = c.to != NULL;
    if (ok) {
        c.rows = table_create(columns, sizeof columns / sizeof columns[0]);
        compare_rows(&c);
        print(&c, format);
        table_destroy(c.rows);
    }
    cJSON_Delete(c.from);
    cJSON_Delete(c.to);
    return ok;
}
