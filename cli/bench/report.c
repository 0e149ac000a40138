/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.c: the renderings of what was measured; see report.h. */
#include "bench/report.h"

#include "io/html.h"
#include "io/json.h"
#include "io/number.h"

#include <string.h>
#include <strobe/strobe.h>
#include <time.h>

const table_column report_columns[REPORT_COLUMNS] = {
    {.key = "problem"},
    {.key = "device"},
    {.key = "kernel"},
    {.key = "threads"},
    {.key = "ms", .decimals = 3},
    {.key = "spread", .scale = 100, .suffix = " %", .decimals = 1},
    {.key = "tflops", .title = "GFLOP/s", .scale = 1000, .decimals = 1},
    {.key = "gbps", .title = "GB/s", .decimals = 1},
    {.key = "of_peak", .title = "of peak", .scale = 100, .suffix = " %", .decimals = 1},
    {.key = "bound"},
    {.key = "check"},
    {.key = "samples"}};

bool report_format_named(const char *name, report_format *format) {
    table_format plain;
    const bool html = !strcmp(name, "html");
    if (!html && !table_format_named(name, &plain)) return false;
    *format = html ? REPORT_HTML : (report_format)plain;
    return true;
}

report report_create(void) {
    return (report){.rows = table_create(report_columns, REPORT_COLUMNS), .refused = cJSON_CreateArray(), .device = -1};
}

void report_free(report *r) {
    table_destroy(r->rows);
    cJSON_Delete(r->refused);
}

const char *report_text(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

double report_number(const cJSON *object, const char *key) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

static cJSON *document_of(const report *r) {
    cJSON *document = cJSON_CreateObject(), *peak_object = cJSON_CreateObject();
    strobe_device_info device = {.struct_size = sizeof device};
    char reasons[128], when[32] = "";
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    strobe_device_at(r->device == STROBE_CUDA ? STROBE_CUDA : STROBE_CPU, 0, &device);
    cJSON_AddStringToObject(document, "device", device.name ? device.name : "");
    cJSON_AddStringToObject(document, "build", strobe_build_info());
    cJSON_AddStringToObject(document, "time", when);
    if (r->stopped[0]) cJSON_AddStringToObject(document, "stopped", r->stopped);
    cJSON_AddNumberToObject(peak_object, "tflops", 1e-12 * r->best.flops);
    cJSON_AddNumberToObject(peak_object, "bf16_tflops", 1e-12 * r->best.bf16);
    cJSON_AddNumberToObject(peak_object, "gbps", 1e-9 * r->best.bytes);
    cJSON_AddStringToObject(peak_object, "level", r->level ? r->level : "");
    cJSON_AddItemToObject(document, "peak", peak_object);
    if (r->device == STROBE_CUDA) {
        cJSON *clocks = cJSON_AddObjectToObject(document, "clocks");
        cJSON_AddNumberToObject(clocks, "low_mhz", r->clocks.low_mhz);
        cJSON_AddNumberToObject(clocks, "high_mhz", r->clocks.high_mhz);
        cJSON_AddNumberToObject(clocks, "most_mhz", r->clocks.most_mhz);
        cJSON_AddStringToObject(clocks, "held_back_by", cuda_clock_reasons(&r->clocks, reasons, sizeof reasons));
    }
    cJSON_AddItemToObject(document, "rows", table_to_json(r->rows));
    cJSON_AddItemToObject(document, "refused", cJSON_Duplicate(r->refused, true));
    return document;
}

static void print_clocks(const cuda_clocks *c, FILE *stream) {
    char reasons[128];
    if (c->low_mhz)
        fprintf(stream, "clocks while measured: %u to %u MHz, the card's most is %u MHz; held back by %s\n", c->low_mhz,
                c->high_mhz, c->most_mhz, cuda_clock_reasons(c, reasons, sizeof reasons));
    else
        fprintf(stream, "clocks are not known without NVML; the card's most is %u MHz\n", c->most_mhz);
}

static void print_peak(const report *r, FILE *stream) {
    const bool gpu = r->device == STROBE_CUDA;
    fprintf(stream, "\npeak measured beside the rows, at best: %.0f GFLOP/s %s(%s), ", 1e-9 * r->best.flops,
            gpu ? "" : "fp32 ", r->level);
    if (r->best.bf16 > 0) fprintf(stream, "%.0f GFLOP/s bf16, ", 1e-9 * r->best.bf16);
    fprintf(stream, "%.1f GB/s %s memory\n", 1e-9 * r->best.bytes, gpu ? "copied in" : "read from");
    if (gpu) print_clocks(&r->clocks, stream);
}

void report_peaks(const cJSON *document, char *text, size_t capacity) {
    const cJSON *peaks = cJSON_GetObjectItemCaseSensitive(document, "peak");
    const double bf16 = report_number(peaks, "bf16_tflops");
    char products[64] = "";
    if (bf16 > 0) snprintf(products, sizeof products, "%.0f GFLOP/s bf16, ", 1e3 * bf16);
    snprintf(text, capacity, "%.0f GFLOP/s (%s), %s%.1f GB/s", 1e3 * report_number(peaks, "tflops"),
             report_text(peaks, "level"), products, report_number(peaks, "gbps"));
}

const char *report_unit(const cJSON *document) {
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(document, "rows")) {
        if (strcmp(report_text(row, "bound"), "memory")) return "GFLOP/s";
    }
    return "GB/s";
}

/* A row's problem without its lengths, into name; the number of keys, else of rows, else the default. */
static double split_problem(const char *problem, char *name, size_t capacity) {
    int64_t both = 128, keys = 0, *value;
    size_t at = 0;
    for (const char *word = problem; *word; word += strspn(word, " ")) {
        const size_t length = strcspn(word, " ");
        const size_t skip = !strncmp(word, "s=", 2) ? 2 : !strncmp(word, "sk=", 3) || !strncmp(word, "sq=", 3) ? 3 : 0;
        value = skip == 3 && word[1] == 'k' ? &keys : &both;
        if (!skip || !number_integer(word + skip, length - skip, value)) {
            if (at + length + 2 > capacity) break;
            if (at) name[at++] = ' ';
            memcpy(name + at, word, length);
            at += length;
        }
        word += length;
    }
    name[at] = 0;
    return (double)(keys > 0 ? keys : both > 0 ? both : 1);
}

void report_add_points(chart *c, const char *unit, const cJSON *document, bool dashed) {
    const bool bytes = !strcmp(unit, "GB/s");
    const cJSON *row;
    char name[512];
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(document, "rows")) {
        const double length = split_problem(report_text(row, "problem"), name, sizeof name);
        chart_add_point(c, name, dashed, length, bytes ? report_number(row, "gbps") : 1e3 * report_number(row, "tflops"));
    }
}

/* The peaks by which rows are bound. */
static void add_levels(chart *c, const char *unit, const cJSON *document) {
    const cJSON *peaks = cJSON_GetObjectItemCaseSensitive(document, "peak"), *row;
    bool bf16 = false, products = false;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(document, "rows")) {
        const char *bound = report_text(row, "bound");
        bf16 |= !strcmp(bound, "bf16");
        products |= !strcmp(bound, "fma") || !strcmp(bound, "mma");
    }
    if (!strcmp(unit, "GB/s")) chart_add_level(c, "peak: memory", report_number(peaks, "gbps"));
    if (products) chart_add_level(c, "peak: multiply-adds", 1e3 * report_number(peaks, "tflops"));
    if (bf16) chart_add_level(c, "peak: products of bf16", 1e3 * report_number(peaks, "bf16_tflops"));
}

static void print_refused(const cJSON *refused, FILE *stream) {
    const cJSON *one;
    if (cJSON_GetArraySize(refused) == 0) return;
    fputs("<h2>Not measured</h2>\n<dl>\n", stream);
    cJSON_ArrayForEach(one, refused) html_fact(report_text(one, "problem"), report_text(one, "reason"), stream);
    fputs("</dl>\n", stream);
}

static void print_page(const report *r, const cJSON *document, FILE *stream) {
    const char *const unit = report_unit(document);
    char text[256];
    chart *c = chart_create(unit);
    report_add_points(c, unit, document, false);
    add_levels(c, unit, document);
    html_begin("strobe bench", stream);
    fputs("<dl>\n", stream);
    html_fact("device", report_text(document, "device"), stream);
    html_fact("build", report_text(document, "build"), stream);
    html_fact("measured", report_text(document, "time"), stream);
    if (r->stopped[0]) html_fact("stopped", r->stopped, stream);
    report_peaks(document, text, sizeof text);
    html_fact("peak beside the rows, at best", text, stream);
    const cJSON *clocks = cJSON_GetObjectItemCaseSensitive(document, "clocks");
    if (clocks) {
        snprintf(text, sizeof text, "%.0f to %.0f MHz of at most %.0f; held back by %s", report_number(clocks, "low_mhz"),
                 report_number(clocks, "high_mhz"), report_number(clocks, "most_mhz"), report_text(clocks, "held_back_by"));
        html_fact("clocks", text, stream);
    }
    fputs("</dl>\n", stream);
    chart_print(c, stream);
    chart_destroy(c);
    fputs("<p>Each row was compared with a float64 reference before it was measured; \"check\" says whether the whole "
          "result was,\n"
          "or windows of rows. A wrong result has no row. \"spread\" is the distance of the quartiles over the median, \"of "
          "peak\"\n"
          "the share of what this machine did just before and after. A click on a heading sorts.</p>\n",
          stream);
    table_print_html(r->rows, stream);
    print_refused(r->refused, stream);
    html_end(stream);
}

void report_print(const report *r, report_format format, FILE *stream) {
    if (format == REPORT_JSON || format == REPORT_HTML) {
        cJSON *document = document_of(r);
        if (format == REPORT_JSON)
            json_print(document, stream);
        else
            print_page(r, document, stream);
        cJSON_Delete(document);
        return;
    }
    if (table_row_count(r->rows)) table_print(r->rows, (table_format)format, stream);
    if (format == REPORT_TEXT && table_row_count(r->rows)) print_peak(r, stream);
}
