/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.c: the matrix of kernels and of what they take; see support.h. A new feature of the library has its row here by
 * itself: the library names it. */
#include "support.h"

#include "io/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe.h>

enum { MOST_KERNELS = 64, MOST_NOTES = 64, CELL = 96 };

/* Each said once, below the tables. */
typedef struct notes {
    const char *text[MOST_NOTES];
    int count;
} notes;

static int note_number(notes *n, const char *sentence) {
    for (int i = 0; i < n->count; ++i)
        if (strcmp(n->text[i], sentence) == 0) return i + 1;
    if (n->count < MOST_NOTES) n->text[n->count++] = sentence;
    return n->count;
}

typedef struct matrix {
    strobe_kernel_info kernels[MOST_KERNELS];
    char texts[MOST_KERNELS][CELL];
    table_column columns[MOST_KERNELS + 1];
    size_t count;
    table *rows;
} matrix;

static void find_kernels(matrix *m, int32_t operation) {
    m->columns[0] = (table_column){.key = "feature"};
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; m->count < MOST_KERNELS && strobe_kernel_at(i, &info) == STROBE_OK; ++i) {
        if (info.operation != operation) continue;
        m->kernels[m->count++] = info;
        m->columns[m->count] = (table_column){.key = info.name};
    }
}

static void add_row(matrix *m, const char *feature) {
    table_cell cells[MOST_KERNELS + 1] = {cell_text(feature)};
    for (size_t k = 0; k < m->count; ++k) cells[k + 1] = cell_text(m->texts[k]);
    table_add_row(m->rows, cells);
}

/* -------------------------------------------------------------------------------------------------- dtypes and sizes -- */

/* The rows of strobe_kernel_info.dtypes. */
static const struct {
    const char *title;
    bool backward;
} tensors[] = {{"q", false},     {"k and v", false}, {"out", false},       {"lse", false}, {"bias", false},
               {"sinks", false}, {"dout", true},     {"dq, dk, dv", true}, {"dbias", true}};

static void print_dtypes(char *text, unsigned set) {
    static const char *const names[] = {"q's", "fp32", "fp16", "bf16", "fp64", "fp8 e4m3", "int8"};
    size_t length = 0;
    snprintf(text, CELL, "no");
    for (size_t d = 0; d < sizeof names / sizeof names[0]; ++d)
        if (set >> d & 1) length += (size_t)snprintf(text + length, CELL - length, "%s%s", length ? ", " : "", names[d]);
}

/* "64 to 2^28", "any". */
static void print_number(char *text, size_t capacity, int64_t number) {
    if (number == (int64_t)1 << 28)
        snprintf(text, capacity, "2^28");
    else if (number > INT32_MAX - 4096 && number <= INT32_MAX)
        snprintf(text, capacity, "2^31");
    else
        snprintf(text, capacity, "%lld", (long long)number);
}

static void print_range(char *text, const int64_t range[2]) {
    char least[32], most[32];
    print_number(least, sizeof least, range[0]), print_number(most, sizeof most, range[1]);
    if (range[1] == 0 || (range[0] == 0 && range[1] == INT64_MAX))
        snprintf(text, CELL, "any");
    else if (range[1] == INT64_MAX)
        snprintf(text, CELL, "from %s", least);
    else
        snprintf(text, CELL, "%s to %s", least, most);
}

static void add_sizes(matrix *m) {
    static const struct {
        const char *title;
        size_t at;
    } ranges[] = {
        {"seq_q", offsetof(strobe_kernel_info, seq_q)},
        {"seq_k", offsetof(strobe_kernel_info, seq_k)},
        {"query rows a K/V head", offsetof(strobe_kernel_info, rows)},
        {"of these, chosen by itself for", offsetof(strobe_kernel_info, best_rows)},
    };
    for (size_t k = 0; k < m->count; ++k) snprintf(m->texts[k], CELL, "1 to %d", m->kernels[k].dim);
    add_row(m, "dim");
    for (size_t k = 0; k < m->count; ++k) snprintf(m->texts[k], CELL, "1 to %d", m->kernels[k].dim_v);
    add_row(m, "dim_v");
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; ++r) {
        for (size_t k = 0; k < m->count; ++k) {
            int64_t range[2];
            memcpy(range, (const char *)&m->kernels[k] + ranges[r].at, sizeof range);
            print_range(m->texts[k], range);
        }
        add_row(m, ranges[r].title);
    }
}

/* ---------------------------------------------------------------------------------------------------------- features -- */

/* Whether the feature is one that backward alone has; the forward's, which backward refuses, are shown in both. */
static bool is_of_backward(int32_t bit) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    bool forward = false, backward = false;
    for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i)
        if (info.features >> bit & 1) *(info.operation == STROBE_BACKWARD ? &backward : &forward) = true;
    return backward && !forward;
}

static void fill(matrix *m, int32_t operation, notes *said) {
    const char *name;
    for (size_t t = 0; t < sizeof tensors / sizeof tensors[0]; ++t) {
        if (tensors[t].backward && operation != STROBE_BACKWARD) continue;
        for (size_t k = 0; k < m->count; ++k) print_dtypes(m->texts[k], m->kernels[k].dtypes[t]);
        add_row(m, tensors[t].title);
    }
    add_sizes(m);
    for (int32_t bit = 0; (name = strobe_feature_name(bit)) != NULL; ++bit) {
        if (operation == STROBE_FORWARD && is_of_backward(bit)) continue;
        for (size_t k = 0; k < m->count; ++k) snprintf(m->texts[k], CELL, m->kernels[k].features >> bit & 1 ? "yes" : "no");
        add_row(m, name);
    }
    for (size_t k = 0; k < m->count; ++k) {
        snprintf(m->texts[k], CELL, "none");
        if (m->kernels[k].limits) snprintf(m->texts[k], CELL, "(%d)", note_number(said, m->kernels[k].limits));
    }
    add_row(m, "further limits");
}

static bool print_operation(int32_t operation, const char *title, table_format format, notes *said) {
    matrix *m = memory_zeroed(1, sizeof *m);
    find_kernels(m, operation);
    m->rows = table_create(m->columns, m->count + 1);
    fill(m, operation, said);
    printf("%s%s\n\n", format == TABLE_MARKDOWN ? "## " : "", title);
    const bool ok = table_print(m->rows, format, stdout);
    fputs("\n", stdout);
    table_destroy(m->rows);
    free(m);
    return ok;
}

bool support_print(table_format format) {
    notes said = {0};
    if (format == TABLE_MARKDOWN)
        puts("<!-- SPDX-License-Identifier: BSD-3-Clause. Generated by `strobe info --support -o md`; not edited by hand. "
             "-->\n"
             "# What each kernel supports\n\n"
             "As the kernels' records declare it; what a kernel does not declare it refuses. Kernels stand best first; of "
             "those "
             "that take\n"
             "a problem the first one is chosen, except standard_*, which are only chosen by name. A dtype \"q's\" is that "
             "of "
             "q, whatever it is.\n");
    bool ok = print_operation(STROBE_FORWARD, "Forward", format, &said);
    ok = print_operation(STROBE_BACKWARD, "Backward", format, &said) && ok;
    for (int i = 0; i < said.count; ++i) printf(format == TABLE_MARKDOWN ? "%d. %s\n" : "(%d) %s\n", i + 1, said.text[i]);
    return ok && fflush(stdout) == 0;
}
