/* SPDX-License-Identifier: BSD-3-Clause
 *
 * traffic.c: `strobe lab traffic`: every algorithm on one head, what it counted beside what the cost model says, and
 * its error against float64. */
#include "commands.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/terminal.h"
#include "lab/cost_model.h"
#include "lab/lab_command.h"
#include "lab/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strobe lab traffic [WORD...] [--counts-only] [-o table|json|csv|md]\n"
    "\n"
    "Runs the papers' algorithms on one head over a slow memory that counts and a fast memory that refuses what does not "
    "fit.\n"
    "  reads, writes   scalars between slow and fast memory; predicted: reads + writes by the cost model (no mask)\n"
    "  MB              the same in bytes of the elements; statistics (m, l, L) are fp32\n"
    "  MFLOP           2 for a multiply-add, 1 for everything else; the softmax scale is part of the product\n"
    "  exchanged       scalars that workers of one block write for, and read from, one another\n"
    "  fast            scalars of fast memory in use; extra: slow memory beyond Q, K, V, O and gradients\n"
    "  error           max |x - float64| / max |float64|, the worst of the outputs, on N(0, 1) numbers or a file's\n"
    "Above 2^31 multiply-adds, or with --counts-only, nothing is calculated: the counts are the same.\n"
    "Exit code 1 if an error is more than rounding: twice standard attention's in the same format and a few roundings.\n"
    "\n";

static const char examples[] = "\n"
                               "examples:\n"
                               "  strobe lab traffic n=1024 d=64 sram=100KiB\n"
                               "  strobe lab traffic n=2048 d=64 S=524288 algorithms=standard,flash2\n"
                               "  strobe lab traffic n=102400 fp16 causal algorithms=standard,flash1,flash2\n"
                               "  strobe lab traffic examples/data/minilm_qkv.safetensors layer=layer5 S=8192\n";

static const table_column columns[] = {{.key = "algorithm"},
                                       {.key = "br"},
                                       {.key = "bc"},
                                       {.key = "reads"},
                                       {.key = "writes"},
                                       {.key = "predicted"},
                                       {.key = "bytes", .title = "MB", .scale = 1e-6, .decimals = 2},
                                       {.key = "flop", .title = "MFLOP", .scale = 1e-6, .decimals = 1},
                                       {.key = "exponentials", .title = "exp"},
                                       {.key = "divisions", .title = "div"},
                                       {.key = "flop_per_byte", .title = "FLOP/B", .decimals = 2},
                                       {.key = "exchanged"},
                                       {.key = "fast"},
                                       {.key = "extra_bytes", .title = "extra kB", .scale = 1e-3, .decimals = 1},
                                       {.key = "error", .significant = 2}};
enum { COLUMNS = sizeof columns / sizeof *columns, MOST_CALCULATED = INT32_MAX };

/* The heads that the algorithms run on; count 0: counts only. */
typedef struct heads {
    lab_data *items;
    int64_t count;
    double forward_error, backward_error; /* of standard attention */
} heads;

static void free_heads(heads *h) {
    for (int64_t i = 0; i < h->count; ++i) lab_data_destroy(&h->items[i]);
    free(h->items);
    *h = (heads){0};
}

static bool read_heads(lab_request *r, heads *h, char *message) {
    lab_file file;
    if (!lab_file_read(&file, r->file, r->layer, message)) return false;
    lab_problem *p = &r->problem;
    p->m = file.m, p->n = file.n, p->d = file.d, p->dv = file.dv;
    p->scale = 1 / sqrt((double)p->d);
    double *d_o = calloc((size_t)(p->m * p->dv), sizeof *d_o);
    h->items = calloc((size_t)file.heads, sizeof *h->items);
    bool ok = d_o && h->items;
    if (!ok) snprintf(message, LAB_REFUSAL, "this machine has no memory for the heads of %s", r->file);
    lab_random random = {.state = p->seed};
    if (d_o) lab_normals(&random, d_o, p->m * p->dv);
    for (int64_t i = 0; ok && i < file.heads; ++i) {
        ok = lab_data_create(&h->items[i], p, r->elements, file.q + i * p->m * p->d, file.k + i * p->n * p->d,
                             file.v + i * p->n * p->dv, d_o, message);
        h->count += ok;
    }
    free(d_o);
    lab_file_free(&file);
    return ok;
}

static bool make_heads(lab_request *r, bool counts_only, heads *h, char *message) {
    lab_problem *p = &r->problem;
    *h = (heads){0};
    p->scale = 1 / sqrt((double)p->d);
    if (r->file) return read_heads(r, h, message);
    if (counts_only || (double)p->m * (double)p->n * (double)(p->d + p->dv) > MOST_CALCULATED) return true;
    h->items = calloc(1, sizeof *h->items);
    if (!h->items) {
        snprintf(message, LAB_REFUSAL, "this machine has no memory for a head");
        return false;
    }
    h->count = lab_data_random(&h->items[0], p, r->elements, p->seed, true, message);
    return h->count == 1;
}

/* The algorithm on every head; the result has the counts of one head and the worst error of all. */
static bool measure(const lab_algorithm *a, const lab_problem *p, const lab_request *r, const heads *h, lab_result *result,
                    char *message) {
    const int64_t capacity = lab_request_capacity(r);
    if (h->count == 0) return lab_measure(a, p, capacity, r->elements, NULL, result, message);
    double worst = 0;
    for (int64_t i = 0; i < h->count; ++i) {
        if (!lab_measure(a, p, capacity, r->elements, &h->items[i], result, message)) return false;
        worst = fmax(worst, result->error);
    }
    result->error = worst;
    return true;
}

static void add_row(table *t, const lab_algorithm *a, const lab_problem *p, const lab_result *result, bool has_error) {
    const lab_counts *c = &result->counts;
    const int64_t bytes = lab_traffic_bytes(c);
    table_add_row(
        t,
        (table_cell[COLUMNS]){
            cell_text(a->name), lab_block_cell(a, p->br), lab_block_cell(a, p->bc), cell_integer(c->reads),
            cell_integer(c->writes),
            p->mask == STROBE_MASK_NONE ? cell_integer(result->prediction.reads + result->prediction.writes) : cell_none(),
            cell_integer(bytes), cell_integer(lab_flop(c)), cell_integer(c->exponentials), cell_integer(c->divisions),
            cell_real((double)lab_flop(c) / (double)bytes), cell_integer(c->exchanged), cell_integer(c->fast_peak),
            cell_integer(c->extra_bytes), has_error ? cell_real(result->error) : cell_none()});
}

/* The error of standard attention, or of its backward, with no limit on S: by it the others are judged. Under dropout, which
 * it does not take, a hundred roundings. */
static double yardstick(const lab_request *r, const heads *h, const char *name) {
    char message[LAB_REFUSAL];
    lab_problem p;
    lab_result result;
    lab_request ample = *r;
    ample.sram_bytes = ample.br = ample.bc = 0;
    ample.scalars = (int64_t)1 << 40;
    const lab_algorithm *standard = lab_algorithm_named(name);
    const bool measured = r->problem.dropout == 0 && lab_request_blocks(&ample, standard, &p, message) &&
                          measure(standard, &p, &ample, h, &result, message);
    return measured ? result.error : 100 * lab_type_roundoff(r->elements);
}

/* Whether the error is one of rounding. */
static bool judge(const lab_request *r, const heads *h, const lab_algorithm *a, const lab_problem *p, double error) {
    const double allowed = lab_allowed_error(a, p, r->elements, a->forward ? h->backward_error : h->forward_error);
    if (error <= allowed) return true;
    terminal_progress_end();
    fprintf(stderr, "strobe lab traffic: %s is WRONG: its error is %.2e, %.2e is allowed\n", a->name, error, allowed);
    return false;
}

/* What a person should know beside the table. */
static void print_notes(const lab_request *r, const heads *h) {
    lab_problem paper = r->problem;
    const int64_t capacity = lab_request_capacity(r), scores = paper.m * paper.n, element = lab_type_bytes(r->elements);
    lab_paper_blocks(&paper, capacity);
    const lab_algorithm *flash1 = lab_algorithm_named("flash1");
    printf("\nS = %lld scalars of %s. FlashAttention-1's formula at S: Bc = %lld, Br = %lld, which needs %lld scalars in "
           "flash1.\n",
           (long long)capacity, lab_type_name(r->elements), (long long)paper.bc, (long long)paper.br,
           (long long)lab_fast_need(flash1, &paper));
    const double flop = (double)lab_textbook_flop(&paper);
    printf("Standard attention with a fast memory that holds all of K: %lld scalars, %.2f FLOP/B; its matrix of scores: "
           "%.1f MB.\n",
           (long long)lab_textbook_accesses(&paper), flop / (double)(element * lab_textbook_accesses(&paper)),
           (double)(element * scores) / 1e6);
    if (h->count > 1) printf("Counts are of one head; the error is the worst of %lld heads.\n", (long long)h->count);
    if (h->count == 0) puts("Counts only: nothing was calculated.");
}

static int report(lab_request *r, bool counts_only, table_format format) {
    char message[LAB_REFUSAL] = "";
    heads h;
    bool ok = make_heads(r, counts_only, &h, message), printed = true, right = true;
    if (ok && h.count > 0) {
        h.forward_error = yardstick(r, &h, "standard");
        h.backward_error = yardstick(r, &h, "standard_backward");
    }
    table *t = table_create(columns, COLUMNS);
    progress pace = progress_begin(r->algorithm_count, r->algorithm_count);
    for (int i = 0; ok && i < r->algorithm_count && !progress_stopped(); ++i, progress_add(&pace, 1, true)) {
        lab_problem p;
        lab_result result;
        const lab_algorithm *a = r->algorithms[i];
        if (!r->has_algorithms && !lab_request_takes(r, a)) continue;
        progress_show(&pace, "%s", a->name);
        ok = lab_request_blocks(r, a, &p, message) && measure(a, &p, r, &h, &result, message);
        if (ok) add_row(t, a, &p, &result, h.count > 0);
        if (ok && h.count > 0) right = judge(r, &h, a, &p, result.error) && right;
    }
    terminal_progress_end();
    if (ok) printed = format == TABLE_JSON ? lab_print_document(r, NULL, t) : table_print(t, format, stdout);
    if (ok && format == TABLE_TEXT) print_notes(r, &h);
    table_destroy(t);
    free_heads(&h);
    if (!ok) return lab_complain("traffic", message);
    return progress_code(&pace, "algorithms", !right ? EXIT_WRONG : printed ? EXIT_OK : EXIT_REFUSED);
}

int lab_traffic(int argc, char **argv) {
    enum { COUNTS_ONLY = 1 };
    static const struct option options[] = {{"counts-only", no_argument, NULL, COUNTS_ONLY},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    table_format format = TABLE_TEXT;
    bool counts_only = false;
    for (int option; (option = next_option("lab traffic", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), fputs(lab_words_help, stdout), fputs(examples, stdout), EXIT_OK;
        if (option == COUNTS_ONLY)
            counts_only = true;
        else if (option != 'o' || !lab_format("traffic", optarg, &format))
            return EXIT_REFUSED;
    }
    char message[LAB_REFUSAL] = "";
    lab_request request;
    if (!lab_request_read(&request, argc - optind, argv + optind, false, message)) return lab_complain("traffic", message);
    return report(&request, counts_only, format);
}
