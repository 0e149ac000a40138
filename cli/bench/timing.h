/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timing.h: wall-clock time, and what is said of many measurements of one thing. */
#ifndef STROBE_CLI_TIMING_H
#define STROBE_CLI_TIMING_H

#include <stddef.h>

/* Seconds since some moment. */
double timing_now(void);

typedef struct timing {
    double median;
    double spread; /* (third quartile - first quartile) / median */
    size_t samples;
} timing;

/* Sorts the samples. All zero for none. */
timing timing_of(double *samples, size_t count);

/* Seconds that one call of work takes: one call to warm up, then samples until `budget` seconds are spent, at least 5 and at
 * most 1000. Calls shorter than a millisecond are timed several together. */
timing timing_measure(void (*work)(void *context), void *context, double budget);

#endif
