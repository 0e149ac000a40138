/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sweep.c: `strobe lab sweep`: traffic of some algorithms over n, d, S or a block size, and the exponent with which
 * it grows. Counts only: lengths of 100k cost milliseconds. */
#include "commands.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/terminal.h"
#include "lab/cost_model.h"
#include "lab/lab_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] = "usage: strobe lab sweep WORD=VALUES [WORD...] [-o table|json|csv|md]\n"
                           "\n"
                           "Counts traffic while one word takes several values: 1k..64k*2, 64..512+64 or 16,32,64. Without "
                           "algorithms= for standard,\n"
                           "flash1, flash2 and flash1_backward. order: traffic over N^2 d^2 / S, FlashAttention's order of "
                           "growth. What does not fit\n"
                           "has a note and no numbers. Below the table: the slope of ln(traffic) over ln(value).\n"
                           "\n";

static const char examples[] = "\n"
                               "examples:\n"
                               "  strobe lab sweep n=512..64k*2 fp16 sram=100KiB\n"
                               "  strobe lab sweep S=8k..512k*2 n=64k fp16 algorithms=flash1\n"
                               "  strobe lab sweep bc=16..2k*2 n=4k fp16 algorithms=flash1,flash2\n";

static const table_column columns[] = {{.key = "value"},
                                       {.key = "algorithm"},
                                       {.key = "br"},
                                       {.key = "bc"},
                                       {.key = "accesses", .title = "reads+writes"},
                                       {.key = "bytes", .title = "MB", .scale = 1e-6, .decimals = 2},
                                       {.key = "flop", .title = "MFLOP", .scale = 1e-6, .decimals = 1},
                                       {.key = "flop_per_byte", .title = "FLOP/B", .decimals = 2},
                                       {.key = "order", .decimals = 2},
                                       {.key = "note"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* Traffic of the values at which the algorithm fits. */
typedef struct curve {
    double x[LAB_MOST_VALUES], y[LAB_MOST_VALUES];
    int count;
} curve;

static void add_point(table *t, const lab_request *r, int64_t value, const lab_algorithm *a, curve *c) {
    char message[LAB_REFUSAL] = "";
    lab_problem p;
    lab_result result;
    const int64_t capacity = lab_request_capacity(r);
    if (!lab_request_blocks(r, a, &p, message) || !lab_measure(a, &p, capacity, r->elements, NULL, &result, message)) {
        table_add_row(t,
                      (table_cell[COLUMNS]){cell_integer(value), cell_text(a->name), cell_none(), cell_none(), cell_none(),
                                            cell_none(), cell_none(), cell_none(), cell_none(), cell_text(message)});
        return;
    }
    const int64_t accesses = lab_accesses(&result.counts), bytes = lab_traffic_bytes(&result.counts);
    const int64_t flop = lab_flop(&result.counts);
    c->x[c->count] = (double)value;
    c->y[c->count++] = (double)accesses;
    table_add_row(t, (table_cell[COLUMNS]){cell_integer(value), cell_text(a->name), lab_block_cell(a, p.br),
                                           lab_block_cell(a, p.bc), cell_integer(accesses), cell_integer(bytes),
                                           cell_integer(flop), cell_real((double)flop / (double)bytes),
                                           cell_real((double)accesses / lab_flash_order(&p, capacity)), cell_none()});
}

static const table_column slope_columns[] = {{.key = "algorithm"}, {.key = "slope", .decimals = 3}};

static int report(const lab_request *asked, table_format format) {
    char message[LAB_REFUSAL] = "";
    const int points = asked->algorithm_count * asked->value_count;
    progress pace = progress_begin(points, points);
    table *t = table_create(columns, COLUMNS), *slopes = table_create(slope_columns, 2);
    for (int i = 0; i < asked->algorithm_count; ++i) {
        const lab_algorithm *a = asked->algorithms[i];
        curve c = {.count = 0};
        for (int v = 0; v < asked->value_count && !progress_stopped(); ++v, progress_add(&pace, 1, true)) {
            progress_show(&pace, "%s, %s = %lld", a->name, asked->swept, (long long)asked->values[v]);
            lab_request r = *asked;
            lab_request_set(&r, r.swept, r.values[v], message); /* every value was checked when it was read */
            add_point(t, &r, r.values[v], a, &c);
        }
        const bool has_slope = c.count > 1;
        table_add_row(slopes, (table_cell[]){cell_text(a->name),
                                             has_slope ? cell_real(lab_log_slope(c.x, c.y, c.count)) : cell_none()});
    }
    terminal_progress_end();
    bool printed = true;
    if (format == TABLE_JSON) {
        cJSON *more = cJSON_CreateObject();
        cJSON_AddItemToObject(more, "slopes", table_to_json(slopes));
        printed = lab_print_document(asked, more, t);
    } else {
        printed = table_print(t, format, stdout);
        if (format != TABLE_CSV) {
            printf("\nslope of ln(reads+writes) over ln(%s):\n", asked->swept);
            printed = table_print(slopes, format, stdout) && printed;
        }
    }
    table_destroy(t);
    table_destroy(slopes);
    return progress_code(&pace, "points", printed ? EXIT_OK : EXIT_REFUSED);
}

static void default_algorithms(lab_request *r) {
    static const char *const names[] = {"standard", "flash1", "flash2", "flash1_backward"};
    r->algorithm_count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        r->algorithms[r->algorithm_count++] = lab_algorithm_named(names[i]);
}

int lab_sweep(int argc, char **argv) {
    static const struct option options[] = {{"output", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'}, {0}};
    table_format format = TABLE_TEXT;
    for (int option; (option = next_option("lab sweep", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), fputs(lab_words_help, stdout), fputs(examples, stdout), EXIT_OK;
        if (option != 'o' || !lab_format("sweep", optarg, &format)) return EXIT_REFUSED;
    }
    char message[LAB_REFUSAL] = "";
    lab_request request;
    if (!lab_request_read(&request, argc - optind, argv + optind, true, message)) return lab_complain("sweep", message);
    if (!request.swept[0]) return lab_complain("sweep", "one word has to have several values, as in n=512..64k*2");
    if (request.file) return lab_complain("sweep", "counts only: a file's numbers are not needed");
    if (!request.has_algorithms) default_algorithms(&request);
    return report(&request, format);
}
