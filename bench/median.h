/* SPDX-License-Identifier: BSD-3-Clause
 *
 * median.h: what programs that let calls take turns share: a clock, and the middle of the times. */
#ifndef STROBE_BENCH_MEDIAN_H
#define STROBE_BENCH_MEDIAN_H

#include <stdlib.h>
#include <time.h>

/* Seconds: by CLOCK_MONOTONIC those that pass, by CLOCK_THREAD_CPUTIME_ID those that the thread computes. */
static inline double seconds_by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Sorts the values. */
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[count / 2];
}

#endif
