/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.h: what `strobe bench` has measured, as a table with the peak below it, as a JSON document, or as a page that
 * stands alone. The page and the comparison of two runs (compare_runs.h) are made of the document alone. */
#ifndef STROBE_CLI_REPORT_H
#define STROBE_CLI_REPORT_H

#include "bench/chart.h"
#include "bench/cuda_clock.h"
#include "bench/peak.h"
#include "io/table.h"

typedef enum report_format { REPORT_TEXT, REPORT_JSON, REPORT_CSV, REPORT_MARKDOWN, REPORT_HTML } report_format;

/* Those of table_format_named, and html. */
bool report_format_named(const char *name, report_format *format);

typedef struct report {
    table *rows;           /* of report_columns */
    struct cJSON *refused; /* an array of {problem, reason}: rows that were not measured */
    peak best;             /* seen beside the rows */
    const char *level;     /* of the loop that did best.flops */
    int64_t device;        /* of all rows, a strobe_device; -1 before the first */
    cuda_clocks clocks;    /* of a GPU, while rows were measured */
    char stopped[96];      /* why rows are missing; "" if none is */
} report;

/* The columns of report.rows. */
enum { REPORT_COLUMNS = 12 };
extern const table_column report_columns[REPORT_COLUMNS];

report report_create(void);
void report_free(report *r);

void report_print(const report *r, report_format format, FILE *stream);

/* Adds a point for each row of a document: speed against length, in the unit of the chart, "GB/s" or "GFLOP/s". */
void report_add_points(chart *c, const char *unit, const struct cJSON *document, bool dashed);

/* The unit in which all rows of a document are bound: "GB/s" where memory bounds every one of them, else "GFLOP/s". */
const char *report_unit(const struct cJSON *document);

/* The peaks of a document, on one line. */
void report_peaks(const struct cJSON *document, char *text, size_t capacity);

/* A member that is a text, "" where there is none; one that is a number, 0 where there is none. */
const char *report_text(const struct cJSON *object, const char *key);
double report_number(const struct cJSON *object, const char *key);

#endif
