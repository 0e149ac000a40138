/* SPDX-License-Identifier: BSD-3-Clause
 *
 * chart.c: the axes, lines and legend of a chart; see chart.h. Lengths are drawn on a scale of logarithms, speeds from 0. */
#include "bench/chart.h"

#include "io/html.h"
#include "io/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct point {
    double x, y;
} point;

typedef struct series {
    char *name;
    bool dashed, level; /* level: one point, whose y counts */
    point *points;
    size_t count;
} series;

struct chart {
    char *unit;
    series *all;
    size_t count;
};

/* The area between the axes, in the units of the picture. */
enum { LEFT = 64, TOP = 24, WIDTH = 760, HEIGHT = 330, LEGEND_LINE = 18 };

/* Okabe and Ito's colours, which can be told apart without red or green. */
static const char *const colours[] = {"#0072b2", "#e69f00", "#009e73", "#d55e00",
                                      "#cc79a7", "#56b4e9", "#999933", "#777777"};
static const char *colour_of(size_t n) { return colours[n % (sizeof colours / sizeof *colours)]; }

chart *chart_create(const char *unit) {
    chart *c = memory_zeroed(1, sizeof *c);
    c->unit = memory_text(unit);
    return c;
}

void chart_destroy(chart *c) {
    if (!c) return;
    for (size_t n = 0; n < c->count; ++n) free(c->all[n].name), free(c->all[n].points);
    free(c->all);
    free(c->unit);
    free(c);
}

static series *series_named(chart *c, const char *name, bool dashed, bool level) {
    for (size_t n = 0; n < c->count; ++n)
        if (!strcmp(c->all[n].name, name) && c->all[n].dashed == dashed && c->all[n].level == level) return &c->all[n];
    c->all = memory_resized(c->all, c->count + 1, sizeof *c->all);
    c->all[c->count] = (series){.name = memory_text(name), .dashed = dashed, .level = level};
    return &c->all[c->count++];
}

static void add(series *s, double x, double y) {
    size_t at = s->count;
    s->points = memory_resized(s->points, s->count + 1, sizeof *s->points);
    for (; at > 0 && s->points[at - 1].x > x; --at) s->points[at] = s->points[at - 1];
    s->points[at] = (point){x, y};
    ++s->count;
}

void chart_add_point(chart *c, const char *name, bool dashed, double x, double y) {
    add(series_named(c, name, dashed, false), x, y);
}

void chart_add_level(chart *c, const char *name, double y) { add(series_named(c, name, true, true), 1, y); }

/* What is to be seen. */
typedef struct extent {
    double low, high; /* of x */
    double top, step; /* of y, and of its grid */
} extent;

static extent extent_of(const chart *c) {
    extent e = {.low = INFINITY, .high = 0, .top = 0};
    for (size_t n = 0; n < c->count; ++n)
        for (size_t i = 0; i < c->all[n].count; ++i) {
            const point p = c->all[n].points[i];
            e.top = fmax(e.top, p.y);
            if (c->all[n].level) continue;
            e.low = fmin(e.low, p.x);
            e.high = fmax(e.high, p.x);
        }
    const double rough = (e.top > 0 ? e.top : 1) / 5, ten = pow(10, floor(log10(rough)));
    e.step = ten * (rough / ten > 5 ? 10 : rough / ten > 2 ? 5 : rough / ten > 1 ? 2 : 1);
    e.top = e.step * ceil(1.0001 * (e.top > 0 ? e.top : 1) / e.step);
    return e;
}

static double across(const extent *e, double x) {
    return LEFT + WIDTH * (e->high > e->low ? 0.02 + 0.96 * log(x / e->low) / log(e->high / e->low) : 0.5);
}

static double down(const extent *e, double y) { return TOP + HEIGHT * (1 - y / e->top); }

static void print_grid(const chart *c, const extent *e, FILE *stream) {
    for (int n = 0; n * e->step <= 1.0001 * e->top; ++n) {
        const double y = down(e, n * e->step);
        fprintf(stream,
                "<path d=\"M%d %.1fH%d\" stroke=\"#8884\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                LEFT, y, LEFT + WIDTH, LEFT - 8, y + 4, n * e->step);
    }
    fprintf(stream, "<text x=\"%d\" y=\"14\" text-anchor=\"end\">", LEFT - 8);
    html_text(c->unit, stream);
    fprintf(stream, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">length</text>\n", LEFT + WIDTH / 2,
            TOP + HEIGHT + 36);
}

/* A label below each x, of which those too near to the one before are left out. */
static void print_lengths(const chart *c, const extent *e, FILE *stream) {
    for (double last = 0, x = 0, at = -100;; last = x) {
        x = INFINITY;
        for (size_t n = 0; n < c->count; ++n)
            for (size_t i = 0; i < c->all[n].count && !c->all[n].level; ++i)
                if (c->all[n].points[i].x > last) x = fmin(x, c->all[n].points[i].x);
        if (isinf(x)) return;
        if (across(e, x) < at + 44) continue;
        at = across(e, x);
        fprintf(
            stream,
            "<path d=\"M%.1f %dv4\" stroke=\"currentColor\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
            at, TOP + HEIGHT, at, TOP + HEIGHT + 18, x);
    }
}

static void print_series(const series *s, const char *colour, const char *unit, const extent *e, FILE *stream) {
    const char *const dashes = s->dashed ? " stroke-dasharray=\"6 4\"" : "";
    fprintf(stream, "<g stroke=\"%s\" fill=\"none\" stroke-width=\"2\"><path%s d=\"", colour, dashes);
    const double level = down(e, s->points[0].y);
    if (s->level) fprintf(stream, "M%d %.1fH%d", LEFT, level, LEFT + WIDTH);
    for (size_t i = 0; i < s->count && !s->level; ++i)
        fprintf(stream, "%c%.1f %.1f", i ? 'L' : 'M', across(e, s->points[i].x), down(e, s->points[i].y));
    fputs("\"/>", stream);
    for (size_t i = 0; i < s->count && !s->level; ++i) {
        fprintf(stream, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>", across(e, s->points[i].x),
                down(e, s->points[i].y), colour);
        html_text(s->name, stream);
        fprintf(stream, ", length %.0f: %.4g ", s->points[i].x, s->points[i].y);
        html_text(unit, stream);
        fputs("</title></circle>", stream);
    }
    fputs("</g>\n", stream);
    if (!s->level) return;
    fprintf(stream, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT + WIDTH, level - 5);
    html_text(s->name, stream);
    fputs("</text>\n", stream);
}

/* Solid and dashed lines of one name have one colour; levels have that of the text. */
static size_t colour_index(const chart *c, size_t of) {
    size_t index = 0;
    for (size_t n = 0; n < of; ++n) {
        if (c->all[n].level) continue;
        if (!strcmp(c->all[n].name, c->all[of].name)) return colour_index(c, n);
        ++index;
    }
    return index;
}

void chart_print(const chart *c, FILE *stream) {
    const extent e = extent_of(c);
    if (isinf(e.low)) return;
    fprintf(stream, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
            LEFT + WIDTH + 16, TOP + HEIGHT + 52 + LEGEND_LINE * (int)c->count);
    html_text(c->unit, stream);
    fputs(" against length</title>\n", stream);
    print_grid(c, &e, stream);
    print_lengths(c, &e, stream);
    for (size_t n = 0; n < c->count; ++n) {
        const series *s = &c->all[n];
        const char *colour = s->level ? "currentColor" : colour_of(colour_index(c, n));
        const int y = TOP + HEIGHT + 52 + LEGEND_LINE * (int)n;
        print_series(s, colour, c->unit, &e, stream);
        fprintf(stream, "<path d=\"M%d %dh26\" stroke=\"%s\" stroke-width=\"2\"%s/><text x=\"%d\" y=\"%d\">", LEFT, y,
                colour, s->dashed ? " stroke-dasharray=\"6 4\"" : "", LEFT + 34, y + 4);
        html_text(s->name, stream);
        fputs("</text>\n", stream);
    }
    fputs("</svg>\n", stream);
}
