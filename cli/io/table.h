/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.h: rows of typed cells, printed as an aligned table, JSON, CSV or Markdown. For people (text, Markdown) a number is
 * scaled, rounded and given its suffix as the column says; for programs (JSON, CSV) it keeps its full value, under the
 * column's key.
 *
 *     static const table_column columns[] = {
 *         {.key = "problem"}, {.key = "ms", .decimals = 3}, {.key = "of_peak", .scale = 100, .suffix = " %"}};
 *     table *t = table_create(columns, 3);
 *     table_add_row(t, (table_cell[]){cell_text("fwd"), cell_real(1.25), cell_real(0.63)});
 *     table_print(t, TABLE_TEXT, stdout);
 *     table_destroy(t); */
#ifndef STROBE_CLI_TABLE_H
#define STROBE_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum table_format { TABLE_TEXT, TABLE_JSON, TABLE_CSV, TABLE_MARKDOWN } table_format;

/* The names of -o: table, json, csv, md. False if the name is none of them. */
bool table_format_named(const char *name, table_format *format);

typedef struct table_column {
    const char *key;    /* JSON member, CSV heading */
    const char *title;  /* heading for people; default key */
    const char *suffix; /* for people, after a number, such as " %"; default none */
    double scale;       /* for people, numbers are multiplied by it; default 1 */
    int decimals;       /* for people, digits of a real after the point */
    int significant;    /* instead, significant digits (for errors and ratios); 0: decimals count */
} table_column;

typedef enum cell_kind { CELL_NONE, CELL_TEXT, CELL_INTEGER, CELL_REAL } cell_kind;

typedef struct table_cell {
    cell_kind kind;
    const char *text;
    int64_t integer;
    double real;
} table_cell;

static inline table_cell cell_none(void) { return (table_cell){.kind = CELL_NONE}; }
static inline table_cell cell_text(const char *text) { return (table_cell){.kind = CELL_TEXT, .text = text}; }
static inline table_cell cell_integer(int64_t integer) { return (table_cell){.kind = CELL_INTEGER, .integer = integer}; }
static inline table_cell cell_real(double real) { return (table_cell){.kind = CELL_REAL, .real = real}; }

typedef struct table table;

/* A table of count columns. columns must live as long as the table. */
table *table_create(const table_column *columns, size_t count);
void table_destroy(table *t);

/* Appends a row of as many cells as there are columns. Texts are copied. */
void table_add_row(table *t, const table_cell *cells);

size_t table_row_count(const table *t);

/* Prints the whole table. False if the stream reports an error. JSON is one array of objects. */
bool table_print(const table *t, table_format format, FILE *stream);

/* Prints it as an HTML table of a page of html.h, as for people, with what a cell sorts by in data-v. */
void table_print_html(const table *t, FILE *stream);

/* The same array as a cJSON value, for documents that hold a table; the caller deletes it. */
struct cJSON *table_to_json(const table *t);

#endif
