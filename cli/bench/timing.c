/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timing.c: medians of wall-clock times; see timing.h. */
#include "bench/timing.h"

#include "io/progress.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { LEAST_SAMPLES = 5, MOST_SAMPLES = 1000 };
static const double shortest_sample = 1e-3; /* the clock and its call cost about 5e-8 */

double timing_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *left, const void *right) {
    const double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

/* Linear interpolation between the samples around the place. */
static double quantile(const double *sorted, size_t count, double share) {
    const double place = share * (double)(count - 1);
    const size_t below = (size_t)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

timing timing_of(double *samples, size_t count) {
    if (count == 0) return (timing){0};
    qsort(samples, count, sizeof *samples, ascending);
    timing t = {.median = quantile(samples, count, 0.5), .samples = count};
    if (t.median > 0) t.spread = (quantile(samples, count, 0.75) - quantile(samples, count, 0.25)) / t.median;
    return t;
}

timing timing_measure(void (*work)(void *context), void *context, double budget) {
    double samples[MOST_SAMPLES];
    size_t count = 0;
    work(context); /* caches, pages, threads */
    const double start = timing_now();
    work(context);
    const double once = timing_now() - start;
    const int together = once < shortest_sample ? (int)fmin(ceil(shortest_sample / fmax(once, 1e-7)), 10000) : 1;
    while (count < MOST_SAMPLES && (count < LEAST_SAMPLES || (timing_now() - start < budget && !progress_stopped()))) {
        const double before = timing_now();
        for (int i = 0; i < together; ++i) work(context);
        samples[count++] = (timing_now() - before) / together;
    }
    return timing_of(samples, count);
}
