/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.c: `strobe lab report`: the papers' figures as one page that stands alone. Everything that its sliders can choose
 * is counted here and stands in the page as JSON; report.js draws it. Counts only, but for the errors in FP8. */
#include "commands.h"
#include "io/html.h"
#include "io/json.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/terminal.h"
#include "lab/device.h"
#include "lab/lab_command.h"
#include "lab/schedule.h"
#include "lab_report_script.h" /* report.js, by strobe_embed.cmake */

#include <stdio.h>
#include <string.h>
#include <strobe/strobe.h>

static const char help[] =
    "usage: strobe lab report [-o html|json] > lab.html\n"
    "\n"
    "The papers' figures as one page that needs no file and no host beside it: traffic against length and against block "
    "size, "
    "the\n"
    "roofline of three GPUs, FlashAttention-3's schedule, the errors in FP8. Sliders choose N, d and S among points that\n"
    "are counted for it (fp16), which takes some ten seconds.\n"
    "-o json: the numbers of the page.\n"
    "\n"
    "Exit code: 0 ok, 2 usage, 130 stopped by Ctrl-C: the page lacks what was not counted, and says so.\n";

/* What the sliders choose from. */
static const int64_t lengths[] = {256, 512, 1024, 2048, 4096, 8192, 16384};
static const int64_t dims[] = {64, 128, 256};
static const int64_t kibibytes[] = {32, 64, 100, 164, 228};
static const int64_t block_keys[] = {8, 16, 32, 64, 128, 256, 512};
static const char *const algorithms[] = {"standard",          "online_softmax",  "flash1",         "flash2",
                                         "standard_backward", "flash1_backward", "flash2_backward"};
static const char *const by_blocks[] = {"flash1", "flash2"};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { BLOCK_LENGTH = 4096, TILES = 3, STEPS = 16, FIRST_BLOCK = 6, BLOCKS_SHOWN = 4 };

/* One guessed second counts for each of so many points. */
static const double points_a_second = 2000, fp8_step_seconds = 1.5;

static cJSON *list_of(const int64_t *values, size_t count) {
    cJSON *list = cJSON_CreateArray();
    for (size_t n = 0; n < count; ++n) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)values[n]));
    return list;
}

/* Bytes and FLOP of the request; false where no block fits. */
static bool count_point(const lab_request *r, const lab_algorithm *a, double *bytes, double *flop) {
    char message[LAB_REFUSAL];
    lab_problem p;
    lab_result result;
    if (!lab_request_blocks(r, a, &p, message) ||
        !lab_measure(a, &p, lab_request_capacity(r), r->elements, NULL, &result, message))
        return false;
    *bytes = (double)lab_traffic_bytes(&result.counts);
    *flop = (double)lab_flop(&result.counts);
    return true;
}

/* A request in fp16 for a length, a head dim, kibibytes of fast memory and keys of a block (0: by the rule). */
static lab_request request_for(int64_t n, int64_t d, int64_t kib, int64_t bc) {
    char message[LAB_REFUSAL];
    static char fp16[] = "fp16";
    char *words[] = {fp16};
    lab_request r;
    lab_request_read(&r, 1, words, false, message);
    lab_request_set(&r, "n", n, message);
    lab_request_set(&r, "d", d, message);
    lab_request_set(&r, "sram", kib * 1024, message);
    if (bc) lab_request_set(&r, "bc", bc, message);
    return r;
}

/* [d][kib][values]: values are lengths, or keys of a block; each [bytes, FLOP], or bytes alone, or null. */
static cJSON *count_all(const lab_algorithm *a, const int64_t *values, size_t count, bool are_blocks, progress *pace) {
    cJSON *all = cJSON_CreateArray();
    for (size_t d = 0; d < COUNT(dims); ++d) {
        cJSON *of_dim = cJSON_CreateArray();
        cJSON_AddItemToArray(all, of_dim);
        for (size_t k = 0; k < COUNT(kibibytes); ++k) {
            cJSON *row = cJSON_CreateArray();
            cJSON_AddItemToArray(of_dim, row);
            for (size_t n = 0; n < count; ++n) {
                const lab_request r = are_blocks ? request_for(BLOCK_LENGTH, dims[d], kibibytes[k], values[n])
                                                 : request_for(values[n], dims[d], kibibytes[k], 0);
                double point[2];
                const bool fits = !progress_stopped() && count_point(&r, a, &point[0], &point[1]);
                cJSON_AddItemToArray(row, !fits        ? cJSON_CreateNull()
                                          : are_blocks ? cJSON_CreateNumber(point[0])
                                                       : cJSON_CreateDoubleArray(point, 2));
                progress_add(pace, 1 / points_a_second, false);
            }
        }
        progress_show(pace, "%s, d = %lld", a->name, (long long)dims[d]);
    }
    return all;
}

/* Four blocks of keys from the middle: spans as [unit, consumer, block, start, end]. */
static cJSON *timeline(const lab_schedule *asked, bool ping_pong, int depth) {
    lab_schedule s = *asked;
    lab_timeline line;
    s.ping_pong = ping_pong, s.depth = depth, s.n = STEPS * s.bc;
    cJSON *document = cJSON_CreateObject(), *spans = cJSON_AddArrayToObject(document, "spans");
    cJSON_AddNumberToObject(document, "consumers", s.consumers);
    if (!lab_schedule_run(&s, &line)) return document;
    const double period = line.clocks / STEPS;
    const int64_t from = (int64_t)(FIRST_BLOCK * period), to = (int64_t)((FIRST_BLOCK + BLOCKS_SHOWN) * period);
    cJSON_AddNumberToObject(document, "start", (double)from);
    cJSON_AddNumberToObject(document, "end", (double)to);
    cJSON_AddNumberToObject(document, "utilisation", line.utilisation);
    for (int n = 0; n < line.span_count; ++n) {
        const lab_span *x = &line.spans[n];
        if (x->end <= (double)from || x->start >= (double)to) continue;
        const double numbers[] = {x->unit, x->consumer, (double)x->block, (double)(int64_t)x->start,
                                  (double)(int64_t)x->end};
        cJSON_AddItemToArray(spans, cJSON_CreateDoubleArray(numbers, COUNT(numbers)));
    }
    lab_timeline_destroy(&line);
    return document;
}

static lab_schedule schedule_of(int tile) {
    lab_schedule s = {.device = lab_device_named("h100"), .elements = LAB_FP16, .n = 16384, .stages = 2};
    s.d = s.dv = 64 << tile;
    lab_schedule_tile(&s);
    return s;
}

static cJSON *schedules(void) {
    cJSON *all = cJSON_CreateArray();
    for (int tile = 0; tile < TILES; ++tile) {
        const lab_schedule s = schedule_of(tile);
        cJSON *one = cJSON_CreateObject();
        table *rows = lab_schedule_table(&s);
        cJSON_AddNumberToObject(one, "d", (double)s.d);
        if (rows) cJSON_AddItemToObject(one, "rows", table_to_json(rows));
        table_destroy(rows);
        cJSON *lines = cJSON_AddArrayToObject(one, "timelines");
        cJSON_AddItemToArray(lines, timeline(&s, false, 1));
        cJSON_AddItemToArray(lines, timeline(&s, true, 2));
        cJSON_AddItemToArray(all, one);
    }
    return all;
}

static cJSON *devices(void) {
    cJSON *all = cJSON_CreateArray();
    for (int n = 0; lab_device_at(n); ++n) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", lab_device_at(n)->name);
        cJSON_AddNumberToObject(one, "tflops", lab_device_at(n)->tflops);
        cJSON_AddNumberToObject(one, "gbps", lab_device_at(n)->gbps);
        cJSON_AddItemToArray(all, one);
    }
    return all;
}

/* Everything that the page draws. *fp8: its table, NULL where memory is short. */
static cJSON *document_of(progress *pace, table **fp8) {
    char message[LAB_REFUSAL] = "";
    cJSON *document = cJSON_CreateObject(), *names = cJSON_AddArrayToObject(document, "algorithms");
    cJSON_AddStringToObject(document, "build", strobe_build_info());
    cJSON_AddStringToObject(document, "elements", "fp16");
    cJSON_AddItemToObject(document, "n", list_of(lengths, COUNT(lengths)));
    cJSON_AddItemToObject(document, "d", list_of(dims, COUNT(dims)));
    cJSON_AddItemToObject(document, "kib", list_of(kibibytes, COUNT(kibibytes)));
    cJSON_AddItemToObject(document, "devices", devices());
    cJSON_AddItemToObject(document, "schedule", schedules());
    cJSON *points = cJSON_AddObjectToObject(document, "points"), *blocks = cJSON_AddObjectToObject(document, "blocks");
    for (size_t n = 0; n < COUNT(algorithms); ++n, progress_add(pace, 0, !progress_stopped())) {
        const lab_algorithm *a = lab_algorithm_named(algorithms[n]);
        cJSON *name = cJSON_CreateObject();
        cJSON_AddStringToObject(name, "name", a->name);
        cJSON_AddStringToObject(name, "summary", a->summary);
        cJSON_AddBoolToObject(name, "backward", a->forward != NULL);
        cJSON_AddItemToArray(names, name);
        cJSON_AddItemToObject(points, a->name, count_all(a, lengths, COUNT(lengths), false, pace));
    }
    cJSON_AddNumberToObject(blocks, "n", BLOCK_LENGTH);
    cJSON_AddItemToObject(blocks, "bc", list_of(block_keys, COUNT(block_keys)));
    points = cJSON_AddObjectToObject(blocks, "points");
    for (size_t n = 0; n < COUNT(by_blocks); ++n, progress_add(pace, 0, !progress_stopped()))
        cJSON_AddItemToObject(points, by_blocks[n],
                              count_all(lab_algorithm_named(by_blocks[n]), block_keys, COUNT(block_keys), true, pace));
    *fp8 = lab_fp8_table(pace, fp8_step_seconds, message);
    cJSON_AddItemToObject(document, "fp8", *fp8 ? table_to_json(*fp8) : cJSON_CreateArray());
    terminal_progress_end();
    return document;
}

/* ------------------------------------------------------------------------------------------------------------ the page --
 */

static void print_slider(const char *id, const char *label, size_t count, size_t at) {
    printf("<label for=\"%s\">%s</label><input type=\"range\" id=\"%s\" min=\"0\" max=\"%zu\" value=\"%zu\">"
           "<output id=\"%s-is\"></output>\n",
           id, label, id, count - 1, at, id);
}

static void print_choice(const char *id, const char *label, const char *const *values, const char *const *texts, int count) {
    printf("<label for=\"%s\">%s</label><select id=\"%s\">", id, label, id);
    for (int n = 0; n < count; ++n) printf("<option value=\"%s\">%s</option>", values[n], texts[n]);
    puts("</select><span></span>");
}

/* Strings in it are the lab's own names, which hold no "<". */
static void print_data(const cJSON *document) {
    char *text = cJSON_PrintUnformatted(document);
    printf("<script type=\"application/json\" id=\"data\">%s</script>\n<script>\n", text ? text : "{}");
    fwrite(lab_report_script, 1, sizeof lab_report_script, stdout);
    puts("</script>");
    cJSON_free(text);
}

static void print_controls(void) {
    static const char *const passes[] = {"forward", "backward"};
    const char *names[8];
    int count = 0;
    while (count < 8 && lab_device_at(count)) names[count] = lab_device_at(count)->name, ++count;
    puts("<div class=\"controls\">");
    print_slider("n", "N, queries and keys", COUNT(lengths), 4);
    print_slider("d", "d, of a head", COUNT(dims), 0);
    print_slider("kib", "S, fast memory", COUNT(kibibytes), 2);
    print_choice("pass", "pass", passes, passes, 2);
    print_choice("device", "device", names, names, count);
    puts("</div>");
}

static void print_schedules(void) {
    static const char *const tiles[] = {"0", "1", "2"}, *const dims_of[] = {"64", "128", "256"};
    static const char *const overlaps[] = {"0", "1"}, *const overlap_names[] = {"neither ping-pong nor two stages",
                                                                                "both, as FlashAttention-3"};
    puts("<h2>FlashAttention-3's schedule</h2>\n<p>One SM of an H100 in a simulation of events: a producer loads K and V, "
         "warp "
         "groups multiply and calculate softmax,\nand share the units. Ping-pong: warp groups take turns at the tensor "
         "cores. Depth 2: the next scores are multiplied under the softmax.</p>\n<div class=\"controls\">");
    print_choice("tile", "d, of a head", tiles, dims_of, TILES);
    print_choice("overlap", "overlap", overlaps, overlap_names, 2);
    puts("</div>\n<div id=\"timeline\"></div>");
    for (int tile = 0; tile < TILES; ++tile) {
        const lab_schedule s = schedule_of(tile);
        table *rows = lab_schedule_table(&s);
        if (!rows) continue;
        printf("<h3>d = %lld</h3>\n", (long long)s.d);
        table_print_html(rows, stdout);
        table_destroy(rows);
    }
}

static void print_page(const cJSON *document, const table *fp8, bool stopped) {
    html_begin("strobe lab", stdout);
    puts("<style>\n.controls { display: grid; grid-template-columns: max-content minmax(8rem, 22rem) 1fr; gap: .4rem 1rem; "
         "align-items: center; margin: 1rem 0; }\n.grid { stroke: var(--line); stroke-width: .6; } .mark { stroke: "
         "currentColor; "
         "stroke-dasharray: 4 3; }\n</style>");
    puts("<p>FlashAttention's claim is about memory traffic. Every point here was counted on a machine of two memories: a "
         "slow "
         "one\nwhose every read and write is counted, and a fast one of S scalars that refuses what does not fit. One head "
         "in "
         "fp16;\nblocks by FlashAttention-1's formula at the largest S that fits.</p>\n<noscript><p>The figures are drawn "
         "by a "
         "script in this page; without it the tables below are what there is.</p></noscript>");
    if (stopped) puts("<p><strong>Stopped by Ctrl-C: what is missing was not counted.</strong></p>");
    puts("<dl>");
    html_fact("build", strobe_build_info(), stdout);
    puts("</dl>");
    print_controls();
    puts("<h2>Traffic against length</h2>\n<div id=\"traffic\"></div>\n<p>At the chosen N:</p>\n<div class=\"scroll\">"
         "<table><thead><tr><th>algorithm</th><th class=\"n\">traffic</th><th class=\"n\">of standard</th><th "
         "class=\"n\">FLOP/B"
         "</th><th class=\"n\">least time a head</th></tr></thead><tbody id=\"numbers\"></tbody></table></div>");
    puts("<h2>Traffic against the size of a key block</h2>\n<p>FlashAttention-1 has the keys outside, and rereads Q and O "
         "for "
         "each block: large blocks are few. FlashAttention-2 has\nthe queries outside, and small blocks leave it more "
         "rows.</p>\n<div id=\"blocks\"></div>");
    puts("<h2>Roofline</h2>\n<p>What the device could reach at most at each algorithm's FLOP a byte.</p>\n<div "
         "id=\"roofline\"></div>");
    print_schedules();
    puts("<h2>Errors in FP8</h2>\n<p>Root mean square error against float64 on the FlashAttention-3 paper's distribution "
         "with "
         "outliers, 4,096 keys, d = 128;\nmarks are the paper's own.</p>\n<div id=\"errors\"></div>");
    if (fp8) table_print_html(fp8, stdout);
    print_data(document);
    html_end(stdout);
}

int lab_report(int argc, char **argv) {
    static const struct option options[] = {{"output", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'}, {0}};
    bool json = false;
    for (int option; (option = next_option("lab report", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option != 'o') return EXIT_REFUSED;
        json = !strcmp(optarg, "json");
        if (!json && strcmp(optarg, "html") != 0) {
            char message[LAB_REFUSAL];
            snprintf(message, sizeof message, "-o is %.64s; html or json is accepted", optarg);
            return lab_complain("report", message);
        }
    }
    if (optind < argc) return lab_complain("report", "no word is accepted: the page's sliders choose the problem");
    const double cells = (double)(COUNT(dims) * COUNT(kibibytes));
    const double points = cells * (double)(COUNT(algorithms) * COUNT(lengths) + COUNT(by_blocks) * COUNT(block_keys));
    const int parts = (int)(COUNT(algorithms) + COUNT(by_blocks)), steps = lab_fp8_steps();
    progress pace = progress_begin(parts + steps, points / points_a_second + steps * fp8_step_seconds);
    table *fp8 = NULL;
    cJSON *document = document_of(&pace, &fp8);
    bool printed = true;
    if (json)
        printed = json_print(document, stdout);
    else
        print_page(document, fp8, progress_stopped());
    cJSON_Delete(document);
    table_destroy(fp8);
    return progress_code(&pace, "parts", printed ? EXIT_OK : EXIT_REFUSED);
}
