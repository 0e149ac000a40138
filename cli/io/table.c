/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c: rows of typed cells and their renderings; see table.h. */
#include "io/table.h"

#include "io/html.h"
#include "io/json.h"
#include "io/memory.h"
#include "io/number.h"
#include "io/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct table {
    const table_column *columns;
    size_t count, rows, capacity;
    table_cell *cells; /* [rows][count] */
};

bool table_format_named(const char *name, table_format *format) {
    static const char *const names[] = {
        [TABLE_TEXT] = "table", [TABLE_JSON] = "json", [TABLE_CSV] = "csv", [TABLE_MARKDOWN] = "md"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (strcmp(name, names[i])) continue;
        *format = (table_format)i;
        return true;
    }
    return false;
}

table *table_create(const table_column *columns, size_t count) {
    table *t = memory_zeroed(1, sizeof *t);
    t->columns = columns;
    t->count = count;
    return t;
}

void table_destroy(table *t) {
    if (!t) return;
    for (size_t i = 0; i < t->rows * t->count; ++i) free((char *)(uintptr_t)t->cells[i].text);
    free(t->cells);
    free(t);
}

void table_add_row(table *t, const table_cell *cells) {
    if (t->rows == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 16;
        t->cells = memory_resized(t->cells, t->capacity * t->count, sizeof *t->cells);
    }
    for (size_t c = 0; c < t->count; ++c) {
        table_cell *cell = &t->cells[t->rows * t->count + c];
        *cell = cells[c];
        cell->text = cells[c].kind == CELL_TEXT ? memory_text(cells[c].text) : NULL;
    }
    ++t->rows;
}

size_t table_row_count(const table *t) { return t->rows; }

static const table_cell *cell_at(const table *t, size_t row, size_t column) { return &t->cells[row * t->count + column]; }

static const char *title_of(const table_column *column) { return column->title ? column->title : column->key; }

/* What a person reads in the cell. Numbers are printed into buffer. */
static const char *for_people(const table_column *column, const table_cell *cell, char *buffer, size_t capacity) {
    if (cell->kind == CELL_NONE) return "-";
    if (cell->kind == CELL_TEXT) return cell->text;
    const double scale = column->scale != 0 ? column->scale : 1;
    const char *suffix = column->suffix ? column->suffix : "";
    if (cell->kind == CELL_INTEGER && scale == 1)
        snprintf(buffer, capacity, "%lld%s", (long long)cell->integer, suffix);
    else {
        const double value = scale * (cell->kind == CELL_REAL ? cell->real : (double)cell->integer);
        if (column->significant)
            snprintf(buffer, capacity, "%.*g%s", column->significant, value, suffix);
        else
            snprintf(buffer, capacity, "%.*f%s", column->decimals, value, suffix);
    }
    return buffer;
}

/* Columns that the text takes: UTF-8 continuation bytes take none. */
static size_t width_of(const char *text) {
    size_t width = 0;
    for (; *text; ++text) width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

/* A line on its way: spaces are printed when something follows them, so that none stand at its end. */
typedef struct line {
    FILE *stream;
    size_t spaces;
} line;

static void print_on(line *l, const char *text) {
    for (; *text; ++text) {
        if (*text == ' ') {
            ++l->spaces;
            continue;
        }
        for (; l->spaces; --l->spaces) fputc(' ', l->stream);
        fputc(*text, l->stream);
    }
}

/* Text stands at the left, numbers at the right; a heading stands as the column's first cell. */
static void print_aligned(line *l, size_t column, bool right, const char *text, size_t width) {
    const size_t spaces = width - width_of(text);
    if (column) l->spaces += 2;
    if (right) l->spaces += spaces;
    print_on(l, text);
    if (!right) l->spaces += spaces;
}

static bool is_number(const table_cell *cell) { return cell->kind == CELL_INTEGER || cell->kind == CELL_REAL; }

/* A column of numbers, some of which may be missing. */
static bool is_numeric(const table *t, size_t column) {
    for (size_t r = 0; r < t->rows; ++r)
        if (cell_at(t, r, column)->kind != CELL_NONE) return is_number(cell_at(t, r, column));
    return false;
}

static void print_text(const table *t, FILE *stream) {
    char buffer[64];
    size_t *width = memory_zeroed(t->count, sizeof *width);
    bool *numeric = memory_zeroed(t->count, sizeof *numeric);
    for (size_t c = 0; c < t->count; ++c) {
        width[c] = width_of(title_of(&t->columns[c]));
        numeric[c] = is_numeric(t, c);
        for (size_t r = 0; r < t->rows; ++r) {
            const size_t w = width_of(for_people(&t->columns[c], cell_at(t, r, c), buffer, sizeof buffer));
            if (w > width[c]) width[c] = w;
        }
    }
    const bool emphasis = terminal_emphasis(stream);
    if (emphasis) fputs("\033[1m", stream);
    line heading = {stream, 0};
    for (size_t c = 0; c < t->count; ++c) print_aligned(&heading, c, numeric[c], title_of(&t->columns[c]), width[c]);
    fputs(emphasis ? "\033[0m\n" : "\n", stream);
    for (size_t r = 0; r < t->rows; ++r) {
        line row = {stream, 0};
        for (size_t c = 0; c < t->count; ++c)
            print_aligned(&row, c, numeric[c], for_people(&t->columns[c], cell_at(t, r, c), buffer, sizeof buffer),
                          width[c]);
        fputc('\n', stream);
    }
    free(width);
    free(numeric);
}

/* A pipe inside a cell would end it. */
static void print_markdown_cell(const char *text, FILE *stream) {
    fputs(" ", stream);
    for (; *text; ++text) {
        if (*text == '|') fputc('\\', stream);
        fputc(*text == '\n' ? ' ' : *text, stream);
    }
    fputs(" |", stream);
}

static void print_markdown(const table *t, FILE *stream) {
    char buffer[64];
    fputc('|', stream);
    for (size_t c = 0; c < t->count; ++c) print_markdown_cell(title_of(&t->columns[c]), stream);
    fputs("\n|", stream);
    for (size_t c = 0; c < t->count; ++c) fputs(is_numeric(t, c) ? "---:|" : "---|", stream);
    fputc('\n', stream);
    for (size_t r = 0; r < t->rows; ++r) {
        fputc('|', stream);
        for (size_t c = 0; c < t->count; ++c)
            print_markdown_cell(for_people(&t->columns[c], cell_at(t, r, c), buffer, sizeof buffer), stream);
        fputc('\n', stream);
    }
}

/* RFC 4180: fields with a comma, a quote or a line end are quoted, quotes inside are doubled. */
static void print_csv_field(const char *text, FILE *stream) {
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stream);
        return;
    }
    fputc('"', stream);
    for (; *text; ++text) {
        if (*text == '"') fputc('"', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

static void print_csv(const table *t, FILE *stream) {
    char number[NUMBER_TEXT];
    for (size_t c = 0; c < t->count; ++c) {
        if (c) fputc(',', stream);
        print_csv_field(t->columns[c].key, stream);
    }
    fputc('\n', stream);
    for (size_t r = 0; r < t->rows; ++r) {
        for (size_t c = 0; c < t->count; ++c) {
            const table_cell *cell = cell_at(t, r, c);
            if (c) fputc(',', stream);
            if (cell->kind == CELL_TEXT) print_csv_field(cell->text, stream);
            if (cell->kind == CELL_INTEGER) fprintf(stream, "%lld", (long long)cell->integer);
            if (cell->kind == CELL_REAL) {
                number_print(cell->real, number);
                fputs(number, stream);
            }
        }
        fputc('\n', stream);
    }
}

/* What a cell sorts by: a number, a text, or nothing. */
static void print_html_value(const table_cell *cell, FILE *stream) {
    char number[NUMBER_TEXT];
    if (cell->kind == CELL_TEXT) html_text(cell->text, stream);
    if (cell->kind == CELL_INTEGER) fprintf(stream, "%lld", (long long)cell->integer);
    if (cell->kind == CELL_REAL && isfinite(cell->real)) {
        number_print(cell->real, number);
        fputs(number, stream);
    }
}

void table_print_html(const table *t, FILE *stream) {
    char buffer[64];
    fputs("<div class=\"scroll\"><table>\n<thead><tr>", stream);
    for (size_t c = 0; c < t->count; ++c) {
        fputs(is_numeric(t, c) ? "<th class=\"n\">" : "<th>", stream);
        html_text(title_of(&t->columns[c]), stream);
        fputs("</th>", stream);
    }
    fputs("</tr></thead>\n<tbody>\n", stream);
    for (size_t r = 0; r < t->rows; ++r) {
        fputs("<tr>", stream);
        for (size_t c = 0; c < t->count; ++c) {
            fputs(is_numeric(t, c) ? "<td class=\"n\" data-v=\"" : "<td data-v=\"", stream);
            print_html_value(cell_at(t, r, c), stream);
            fputs("\">", stream);
            html_text(for_people(&t->columns[c], cell_at(t, r, c), buffer, sizeof buffer), stream);
            fputs("</td>", stream);
        }
        fputs("</tr>\n", stream);
    }
    fputs("</tbody>\n</table></div>\n", stream);
}

static cJSON *cell_to_json(const table_cell *cell) {
    if (cell->kind == CELL_TEXT) return cJSON_CreateString(cell->text);
    if (cell->kind == CELL_INTEGER) return cJSON_CreateNumber((double)cell->integer);
    if (cell->kind == CELL_REAL && isfinite(cell->real)) return cJSON_CreateNumber(cell->real);
    return cJSON_CreateNull(); /* JSON has no infinity */
}

cJSON *table_to_json(const table *t) {
    cJSON *rows = cJSON_CreateArray();
    for (size_t r = 0; r < t->rows; ++r) {
        cJSON *row = cJSON_CreateObject();
        for (size_t c = 0; c < t->count; ++c) cJSON_AddItemToObject(row, t->columns[c].key, cell_to_json(cell_at(t, r, c)));
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

static void print_json(const table *t, FILE *stream) {
    cJSON *rows = table_to_json(t);
    json_print(rows, stream);
    cJSON_Delete(rows);
}

bool table_print(const table *t, table_format format, FILE *stream) {
    static void (*const print[])(const table *, FILE *) = {
        [TABLE_TEXT] = print_text, [TABLE_JSON] = print_json, [TABLE_CSV] = print_csv, [TABLE_MARKDOWN] = print_markdown};
    print[format](t, stream);
    return fflush(stream) == 0 && !ferror(stream);
}
