/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.c: `strobe lab schedule`: FlashAttention-3's pipeline with and without its two kinds of overlap, and a
 * timeline to look at. */
#include "lab/schedule.h"
#include "commands.h"
#include "io/json.h"
#include "io/options.h"
#include "lab/lab_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: strobe lab schedule [d=128] [n=16k] [dv=] [br=] [bc=] [consumers=] [stages=2] [fp16|bf16|e4m3]\n"
    "                           [--device h100|h200] [--load BYTES] [--width COLUMNS] [--spans] [-o table|json|csv|md]\n"
    "\n"
    "Simulates FlashAttention-3's forward pass on one SM: a producer fills a ring of K and V blocks, consumer warp groups\n"
    "multiply and calculate softmax, and share the tensor cores, the exponential unit and the other arithmetic.\n"
    "  ping-pong   warp groups take turns at the tensor cores\n"
    "  depth       products in flight inside a warp group: 1 no overlap, 2 FA3's two stages, 3 three stages\n"
    "  busy        of the tensor cores; TFLOP/s at the nominal clock, and at the clock that 700 W leave\n"
    "  registers   a thread of a consumer needs, of how many it can have\n"
    "Defaults of br, bc, consumers: FlashAttention-3's for d = 64, 128, 256. --load: bytes a clock from L2 into an SM.\n"
    "--spans: JSON with every piece of work of the two cases that the figure shows.\n"
    "\n"
    "examples:\n"
    "  strobe lab schedule d=128\n"
    "  strobe lab schedule d=64 --load 48 --width 150\n"
    "  strobe lab schedule d=128 e4m3 -o md\n";

static const table_column columns[] = {{.key = "ping_pong", .title = "ping-pong"},
                                       {.key = "depth"},
                                       {.key = "clocks", .title = "clocks a block", .decimals = 0},
                                       {.key = "utilisation", .title = "busy", .scale = 100, .decimals = 1, .suffix = " %"},
                                       {.key = "tflops", .title = "TFLOP/s nominal", .decimals = 0},
                                       {.key = "clock", .title = "GHz in 700 W", .decimals = 2},
                                       {.key = "tflops_power", .title = "TFLOP/s in 700 W", .decimals = 0},
                                       {.key = "published"},
                                       {.key = "registers"},
                                       {.key = "register_limit", .title = "of"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* FA3's Table 2 and section 3.1, TFLOP/s at d = 128, full mask, 16k. */
static const char *published(const lab_schedule *s) {
    if (s->d != 128 || s->elements == LAB_E4M3 || s->n != 16384) return NULL;
    if (s->ping_pong) return s->depth == 1 ? "582, 620-640" : s->depth == 2 ? "661" : NULL;
    return s->depth == 1 ? "570" : NULL;
}

static bool add_row(table *t, const lab_schedule *s) {
    lab_timeline line;
    if (!lab_schedule_run(s, &line)) return false;
    const double blocks = ceil((double)s->n / (double)s->bc);
    table_add_row(t, (table_cell[COLUMNS]){cell_text(s->ping_pong ? "yes" : "no"), cell_integer(s->depth),
                                           cell_real(line.clocks / blocks), cell_real(line.utilisation),
                                           cell_real(line.tflops), cell_real(line.clock), cell_real(line.tflops_power),
                                           published(s) ? cell_text(published(s)) : cell_none(),
                                           cell_integer(line.registers), cell_integer(line.register_limit)});
    lab_timeline_destroy(&line);
    return true;
}

/* ---------------------------------------------------------------------------------------------- the drawing in text -- */

enum { MOST_WIDTH = 240 };

/* One row of the drawing: consumer -1 is the producer. */
static void draw_row(const lab_timeline *line, const char *title, int consumer, bool products, double from, double scale,
                     int width) {
    static const char letters[LAB_UNITS] = {[LAB_LOAD_K] = 'k', [LAB_LOAD_V] = 'v',  [LAB_QK] = 'Q',  [LAB_PV] = 'P',
                                            [LAB_MAX] = 'm',    [LAB_SHUFFLE] = '.', [LAB_EXP] = 'e', [LAB_RESCALE] = 'r'};
    char row[MOST_WIDTH + 1];
    memset(row, ' ', sizeof row);
    for (int i = 0; i < line->span_count; ++i) {
        const lab_span *span = &line->spans[i];
        const bool is_product = span->unit == LAB_QK || span->unit == LAB_PV;
        if (span->consumer != consumer || (consumer >= 0 && is_product != products)) continue;
        const double start = (span->start - from) * scale, end = (span->end - from) * scale;
        for (int x = start < 0 ? 0 : (int)start; x < width && x < (int)end; ++x) row[x] = letters[span->unit];
    }
    row[width] = 0;
    printf("  %-16s|%s|\n", title, row);
}

/* A few blocks from the middle, where the pipeline has settled. */
static bool draw(const lab_schedule *s, int width) {
    lab_timeline line;
    lab_schedule few = *s;
    few.n = 16 * s->bc;
    if (!lab_schedule_run(&few, &line)) return false;
    const double period = line.clocks / 16, from = 6 * period, span = 4 * period;
    printf("\n%s ping-pong, depth %d: %.0f clocks from the middle (k, v load; Q = Q K^T; P = P V; m max, . shuffle, e exp, "
           "r rescale)\n",
           s->ping_pong ? "with" : "without", s->depth, span);
    draw_row(&line, "load", -1, false, from, width / span, width);
    for (int c = 0; c < s->consumers; ++c) {
        char title[32];
        snprintf(title, sizeof title, "group %d tensor", c + 1);
        draw_row(&line, title, c, true, from, width / span, width);
        snprintf(title, sizeof title, "        softmax");
        draw_row(&line, title, c, false, from, width / span, width);
    }
    lab_timeline_destroy(&line);
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- documents --
 */

static cJSON *spans_json(const lab_schedule *s) {
    lab_timeline line;
    lab_schedule few = *s;
    few.n = 16 * s->bc;
    cJSON *document = cJSON_CreateObject(), *spans = cJSON_AddArrayToObject(document, "spans");
    cJSON_AddBoolToObject(document, "ping_pong", s->ping_pong);
    cJSON_AddNumberToObject(document, "depth", s->depth);
    cJSON_AddNumberToObject(document, "consumers", s->consumers);
    if (!lab_schedule_run(&few, &line)) return document;
    cJSON_AddNumberToObject(document, "period", line.clocks / 16);
    cJSON_AddNumberToObject(document, "utilisation", line.utilisation);
    for (int i = 0; i < line.span_count; ++i) {
        const lab_span *span = &line.spans[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "unit", lab_unit_name(span->unit));
        cJSON_AddNumberToObject(item, "consumer", span->consumer);
        cJSON_AddNumberToObject(item, "block", (double)span->block);
        cJSON_AddNumberToObject(item, "start", span->start);
        cJSON_AddNumberToObject(item, "end", span->end);
        cJSON_AddItemToArray(spans, item);
    }
    lab_timeline_destroy(&line);
    return document;
}

static bool print_document(const lab_schedule *s, const table *t, bool spans) {
    cJSON *document = cJSON_CreateObject(), *problem = cJSON_AddObjectToObject(document, "problem");
    cJSON_AddStringToObject(problem, "device", s->device->name);
    cJSON_AddStringToObject(problem, "elements", lab_type_name(s->elements));
    cJSON_AddNumberToObject(problem, "n", (double)s->n);
    cJSON_AddNumberToObject(problem, "d", (double)s->d);
    cJSON_AddNumberToObject(problem, "br", (double)s->br);
    cJSON_AddNumberToObject(problem, "bc", (double)s->bc);
    cJSON_AddNumberToObject(problem, "consumers", s->consumers);
    cJSON_AddNumberToObject(problem, "stages", s->stages);
    cJSON_AddNumberToObject(problem, "load", s->device->load);
    cJSON_AddItemToObject(document, "rows", table_to_json(t));
    if (spans) {
        cJSON *lines = cJSON_AddArrayToObject(document, "timelines");
        lab_schedule one = *s;
        one.ping_pong = false;
        one.depth = 1;
        cJSON_AddItemToArray(lines, spans_json(&one));
        one.ping_pong = true;
        one.depth = 2;
        cJSON_AddItemToArray(lines, spans_json(&one));
    }
    const bool printed = json_print(document, stdout);
    cJSON_Delete(document);
    return printed;
}

table *lab_schedule_table(const lab_schedule *asked) {
    table *t = table_create(columns, COLUMNS);
    bool ok = true;
    lab_schedule s = *asked;
    for (int ping_pong = 0; ok && ping_pong < 2; ++ping_pong)
        for (s.depth = 1; ok && s.depth <= 3; ++s.depth) {
            s.ping_pong = ping_pong;
            ok = add_row(t, &s);
        }
    if (ok) return t;
    table_destroy(t);
    return NULL;
}

static int report(const lab_schedule *asked, int width, bool spans, table_format format) {
    table *t = lab_schedule_table(asked);
    lab_schedule s = *asked;
    bool ok = t != NULL;
    if (!ok) return lab_complain("schedule", "this machine has no memory for the timeline");
    if (format == TABLE_TEXT)
        printf("%s, %s, d = %lld, n = %lld: a tile of %lld queries on %d warp groups, blocks of %lld keys, %d stages, %g "
               "bytes a clock from L2\n\n",
               s.device->name, lab_type_name(s.elements), (long long)s.d, (long long)s.n, (long long)s.br, s.consumers,
               (long long)s.bc, s.stages, s.device->load);
    const bool printed = format == TABLE_JSON ? print_document(asked, t, spans) : table_print(t, format, stdout);
    for (int both = 0; ok && format == TABLE_TEXT && both < 2; ++both) {
        s.ping_pong = both;
        s.depth = 1 + both;
        ok = draw(&s, width);
    }
    table_destroy(t);
    if (!ok) return lab_complain("schedule", "this machine has no memory for the timeline");
    return printed ? EXIT_OK : EXIT_REFUSED;
}

/* -------------------------------------------------------------------------------------------------------- what was asked --
 */

typedef struct given {
    int64_t n, d, dv, br, bc, consumers, stages;
} given;

static bool read_word(given *g, lab_type *elements, const char *word, char *message) {
    static const lab_field fields[] = {
        {"n", offsetof(given, n), 1, 1 << 22},    {"d", offsetof(given, d), 1, 512},
        {"dv", offsetof(given, dv), 1, 512},      {"consumers", offsetof(given, consumers), 1, LAB_MOST_CONSUMERS},
        {"br", offsetof(given, br), 64, 1024},    {"bc", offsetof(given, bc), 8, 512},
        {"stages", offsetof(given, stages), 2, 8}};
    if (!lab_type_named(word, elements)) return lab_read_field(g, fields, sizeof fields / sizeof *fields, word, message);
    if (lab_type_bytes(*elements) <= 2) return true;
    snprintf(message, LAB_REFUSAL, "%s: the tensor cores' fp16, bf16 or e4m3 is accepted", word);
    return false;
}

static bool make_schedule(const given *g, lab_schedule *s, char *message) {
    s->n = g->n;
    s->d = g->d;
    s->dv = g->dv ? g->dv : g->d;
    s->stages = 2;
    if (!lab_schedule_tile(s) && !(g->br && g->bc && g->consumers)) {
        snprintf(message, LAB_REFUSAL, "d = %lld: give br, bc and consumers too; only 64, 128 and 256 have FA3's",
                 (long long)g->d);
        return false;
    }
    if (g->br) s->br = g->br;
    if (g->bc) s->bc = g->bc;
    if (g->consumers) s->consumers = (int)g->consumers;
    if (g->stages) s->stages = (int)g->stages;
    if (s->br % (64 * s->consumers)) {
        snprintf(message, LAB_REFUSAL, "br = %lld on %d consumers: a multiple of 64 rows for each is accepted",
                 (long long)s->br, s->consumers);
        return false;
    }
    const double bytes = (double)lab_type_bytes(s->elements);
    const double need = bytes * (double)(s->br * s->d + s->stages * s->bc * (s->d + s->dv));
    if (need <= s->device->fast_bytes) return true;
    snprintf(message, LAB_REFUSAL, "Q and %d stages of K and V take %.0f bytes; an SM of the %s has %.0f", s->stages, need,
             s->device->name, s->device->fast_bytes);
    return false;
}

static bool read_within(const char *option, const char *text, int64_t least, int64_t most, int64_t *value, char *message) {
    if (lab_size(text, strlen(text), value) && *value >= least && *value <= most) return true;
    snprintf(message, LAB_REFUSAL, "%s is %.64s; %lld to %lld is accepted", option, text, (long long)least, (long long)most);
    return false;
}

int lab_schedule_command(int argc, char **argv) {
    enum { DEVICE = 1, LOAD, WIDTH, SPANS };
    static const struct option options[] = {{"device", required_argument, NULL, DEVICE},
                                            {"load", required_argument, NULL, LOAD},
                                            {"width", required_argument, NULL, WIDTH},
                                            {"spans", no_argument, NULL, SPANS},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    table_format format = TABLE_TEXT;
    lab_device device = *lab_device_named("h100");
    int64_t width = 110, load = 0;
    bool spans = false;
    char message[LAB_REFUSAL] = "";
    for (int option; (option = next_option("lab schedule", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        if (option == SPANS) spans = true;
        if (option == 'o' && !lab_format("schedule", optarg, &format)) return EXIT_REFUSED;
        if (option == DEVICE) {
            if (!lab_device_named(optarg) || !lab_device_named(optarg)->has_schedule) {
                snprintf(message, sizeof message, "--device is %.64s; h100 or h200 is accepted", optarg);
                return lab_complain("schedule", message);
            }
            device = *lab_device_named(optarg);
        }
        if (option == WIDTH && !read_within("--width", optarg, 40, MOST_WIDTH, &width, message))
            return lab_complain("schedule", message);
        if (option == LOAD && !read_within("--load", optarg, 1, 1024, &load, message))
            return lab_complain("schedule", message);
    }
    if (load) device.load = (double)load;
    given g = {.n = 16384, .d = 128};
    lab_schedule s = {.device = &device, .elements = LAB_FP16};
    for (int i = optind; i < argc; ++i)
        if (!read_word(&g, &s.elements, argv[i], message)) return lab_complain("schedule", message);
    if (!make_schedule(&g, &s, message)) return lab_complain("schedule", message);
    return report(&s, (int)width, spans, format);
}
