/* SPDX-License-Identifier: BSD-3-Clause
 *
 * chart.h: speed against length as SVG: a line a series of points, and level lines for peaks. */
#ifndef STROBE_CLI_CHART_H
#define STROBE_CLI_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct chart chart;

/* The unit of the vertical axis, such as "GFLOP/s". */
chart *chart_create(const char *unit);
void chart_destroy(chart *c);

/* A point of a series of that name, which is made when it is new. Series are drawn in the order of their names' first
 * points, points in the order of x, which must be positive. */
void chart_add_point(chart *c, const char *series, bool dashed, double x, double y);

/* A level line across the chart. */
void chart_add_level(chart *c, const char *name, double y);

/* Prints an <svg> element, with a legend below the axes; nothing without a point. */
void chart_print(const chart *c, FILE *stream);

#endif
