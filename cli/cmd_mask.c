/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_mask.c: `strobe mask` draws who sees whom in a problem, block by block, as an SVG picture: visible, partial and hidden
 * blocks, and the share that is computed. It asks the library itself, not a copy of its rules: with the columns of a unit
 * matrix as values, an output that is not 0 is a key that the row sees. */
#include "commands.h"
#include "io/number.h"
#include "io/options.h"
#include "problem/inputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIDE = 16384, COLUMNS = 256, MOST_CELLS = 96, PICTURE = 384 };

static const char help[] =
    "usage: strobe mask [-b BLOCK] [-o FILE] PROBLEM\n"
    "\n"
    "Draws who sees whom, the rows of the first head downwards and its keys to the right: a square for each block of\n"
    "BLOCK x BLOCK scores, dark where all are visible, light where some are, empty where none is and nothing is computed.\n"
    "\n"
    "  -b, --block BLOCK   scores along a side of a block (the least of 16, 32, 64, ... that gives at most 96 squares)\n"
    "  -o, --output FILE   an SVG picture; without it only the counts are printed\n"
    "\n"
    "examples:\n"
    "  strobe mask fwd s=1k causal -o causal.svg\n"
    "  strobe mask fwd s=256 visible=\"i/16/8 == j/16/8 && abs(i%16 - j%16) <= 3\" -o picture.svg\n"
    "\n";

typedef struct picture {
    int64_t rows, keys, block, down, across; /* down and across: blocks */
    int64_t *seen;                           /* [down][across] visible pairs */
} picture;

static int64_t extent_of(int64_t size, int64_t block, int64_t at) {
    return size - at * block < block ? size - at * block : block;
}

/* Only what says who sees whom is left of the problem: terms of scores may make weights too small to be told from 0. */
static problem bare(const problem *from) {
    problem p = *from;
    p.operation = STROBE_FORWARD, p.dtype = STROBE_FP32, p.device = STROBE_CPU, p.dim = 1, p.dim_v = COLUMNS;
    p.scale = p.softcap = p.dropout = 0;
    p.kv_dtype = p.scales = p.q_scales = p.alibi = p.sinks = p.shard = p.values = p.nan = p.no_lse = 0;
    p.dlse = p.dbias = p.dsinks = p.dscore = p.deterministic = p.split_keys = 0;
    p.layout = LAYOUT_BSHD;
    memset(p.kernel, 0, sizeof p.kernel);
    if (!strstr(p.score, "inf")) memset(p.score, 0, sizeof p.score); /* it hides nothing */
    return p;
}

/* Adds what the rows see of the keys [first, first + COLUMNS). */
static bool look(inputs *in, outputs *out, picture *at, int64_t first) {
    const int64_t end = first + COLUMNS < at->keys ? first + COLUMNS : at->keys;
    for (int64_t j = 0; j < at->keys; ++j) {
        float *const row = (float *)(void *)inputs_row(in, T_V, &in->tensor[T_V], 0, j, 0);
        memset(row, 0, COLUMNS * sizeof *row);
        if (j >= first && j < end) row[j - first] = 1;
    }
    call c;
    call_prepare(&c, in, out);
    if (strobe_forward(&c.attention, NULL, 0, NULL)) return false;
    for (int64_t i = 0; i < at->rows; ++i) {
        const float *const row = (const float *)(void *)inputs_row(in, T_OUT, &out->tensor[T_OUT], 0, i, 0);
        for (int64_t j = first; j < end; ++j) at->seen[i / at->block * at->across + j / at->block] += row[j - first] != 0;
    }
    return true;
}

/* The squares of one colour, a path in units of blocks. */
static void draw_squares(FILE *file, const picture *at, bool whole, const char *colour) {
    fprintf(file, "<path fill=\"%s\" d=\"", colour);
    for (int64_t n = 0; n < at->down * at->across; ++n) {
        const int64_t i = n / at->across, j = n % at->across;
        const int64_t all = extent_of(at->rows, at->block, i) * extent_of(at->keys, at->block, j);
        if (at->seen[n] && (at->seen[n] == all) == whole)
            fprintf(file, "M%lld %lldh.94v.94h-.94z", (long long)j, (long long)i);
    }
    fputs("\"/>\n", file);
}

static bool draw(const picture *at, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    const double side = (double)PICTURE / (double)(at->down > at->across ? at->down : at->across);
    const long long across = at->across, down = at->down;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"-.1 -.1 %lld.2 %lld.2\">\n"
            "<path fill=\"#f4f4f4\" stroke=\"#888\" stroke-width=\".05\" d=\"M-.06-.06H%lldV%lldH-.06z\"/>\n",
            side * (double)across, side * (double)down, across, down, across, down);
    draw_squares(file, at, true, "#1f4e79");
    draw_squares(file, at, false, "#8db4d9");
    fputs("</svg>\n", file);
    const bool written = !ferror(file);
    return fclose(file) == 0 && written;
}

static void print_counts(const picture *at) {
    int64_t visible = 0, partial = 0, hidden = 0, pairs = 0;
    for (int64_t n = 0; n < at->down * at->across; ++n) {
        const int64_t all = extent_of(at->rows, at->block, n / at->across) * extent_of(at->keys, at->block, n % at->across);
        pairs += at->seen[n];
        *(at->seen[n] == 0 ? &hidden : at->seen[n] == all ? &visible : &partial) += 1;
    }
    const double blocks = (double)(visible + partial + hidden);
    printf("%lld x %lld blocks of %lld: %lld visible, %lld partial, %lld skipped\n", (long long)at->down,
           (long long)at->across, (long long)at->block, (long long)visible, (long long)partial, (long long)hidden);
    printf("%.1f %% of the blocks are computed, %.1f %% of the scores are visible\n",
           100 * (double)(visible + partial) / blocks, 100 * (double)pairs / ((double)at->rows * (double)at->keys));
}

static int show(const problem *from, int64_t block, const char *path, char *message, size_t capacity) {
    const problem p = bare(from);
    inputs in = {0};
    outputs out = {{{0}}};
    picture at = {0};
    bool ok = inputs_create(&in, &p, message, capacity) && outputs_create(&out, &in, message, capacity);
    if (ok && p.batch > 0) at.rows = in.sequences[0].rows, at.keys = in.sequences[0].keys;
    if (ok && (at.rows < 1 || at.keys < 1 || at.rows > MOST_SIDE || at.keys > MOST_SIDE)) {
        snprintf(message, capacity, "the first sequence has %lld rows and %lld keys; 1 to %d are accepted",
                 (long long)at.rows, (long long)at.keys, MOST_SIDE);
        ok = false;
    }
    const int64_t longest = at.rows > at.keys ? at.rows : at.keys;
    for (at.block = block ? block : 16; !block && longest > at.block * MOST_CELLS;) at.block *= 2;
    at.down = (at.rows + at.block - 1) / at.block, at.across = (at.keys + at.block - 1) / at.block;
    at.seen = calloc((size_t)(at.down * at.across) + 1, sizeof *at.seen);
    for (int64_t first = 0; ok && first < at.keys; first += COLUMNS)
        if (!look(&in, &out, &at, first)) ok = (snprintf(message, capacity, "%s", strobe_last_error()), false);
    if (ok && path && !draw(&at, path))
        ok = (snprintf(message, capacity, "%s could not be written: %s", path, strerror(errno)), false);
    if (ok) print_counts(&at);
    free(at.seen);
    outputs_free(&out);
    inputs_free(&in);
    return ok ? EXIT_OK : EXIT_REFUSED;
}

int cmd_mask(int argc, char **argv) {
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"block", required_argument, NULL, 'b'},
                                            {"output", required_argument, NULL, 'o'},
                                            {0}};
    const char *path = NULL;
    int64_t block = 0;
    for (int option; (option = next_option("mask", argc, argv, "hb:o:", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), problem_print_help(stdout), EXIT_OK;
        if (option == 'o') path = optarg;
        if (option == 'b' && (!number_integer(optarg, strlen(optarg), &block) || block < 1 || block > MOST_SIDE))
            return fprintf(stderr, "strobe mask: block is %s; 1 to %d is accepted\n", optarg, MOST_SIDE), EXIT_REFUSED;
        if (option != 'o' && option != 'b') return EXIT_REFUSED;
    }
    char message[PROBLEM_MESSAGE] = "no problem is given; strobe mask --help shows how";
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (optind < argc && problem_list_read(&list, argc - optind, argv + optind, message, sizeof message) &&
        problem_list_is_of_one_process(&list, message, sizeof message)) {
        if (list.count == 1)
            code = show(&list.items[0], block, path, message, sizeof message);
        else
            snprintf(message, sizeof message, "%zu problems are given; one is accepted", list.count);
    }
    if (code) fprintf(stderr, "strobe mask: %s\n", message);
    problem_list_free(&list);
    return code;
}
