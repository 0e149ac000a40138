/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peak.c: the loops of peak_kernels.c on several threads at once; see peak.h. */
#include "bench/peak.h"

#include "bench/timing.h"
#include "commands.h"
#include "portable/posix.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double measured_seconds = 0.04;        /* of each of the loops */
static const size_t read_bytes = (size_t)256 << 20; /* by all threads together */
enum { ROUNDS = 20000, WORDS = 1 << 18 };           /* between two looks at the clock */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *together;
    uint64_t *words;
    size_t count;
    peak rate;
    volatile uint64_t sink; /* keeps the loops' results, and so the loops */
} worker;

struct peak_meter {
    int threads;
    pthread_barrier_t together;
    uint64_t *words;
    worker workers[];
};

static double measure_flops(worker *w, peak_loop loop) {
    const double start = timing_now();
    double seconds = 0;
    int64_t operations = 0;
    do {
        float result = 0;
        operations += loop.run(ROUNDS, &result);
        w->sink += result > 0;
        seconds = timing_now() - start;
    } while (seconds < measured_seconds);
    return (double)operations / seconds;
}

static double measure_bytes(worker *w) {
    const double start = timing_now();
    double seconds = 0, bytes = 0;
    size_t at = 0;
    do {
        const size_t count = w->count - at < WORDS ? w->count - at : WORDS;
        w->sink += peak_read(w->words + at, count);
        bytes += (double)count * sizeof *w->words;
        at = at + count < w->count ? at + count : 0;
        seconds = timing_now() - start;
    } while (seconds < measured_seconds);
    return bytes / seconds;
}

static void *work(void *argument) {
    worker *w = argument;
    const peak_loop bf16 = peak_bf16_loop();
    pthread_barrier_wait(w->together); /* each loop runs on all threads at the same time */
    w->rate.flops = measure_flops(w, peak_fastest_loop());
    pthread_barrier_wait(w->together);
    w->rate.bf16 = bf16.run ? measure_flops(w, bf16) : 0;
    pthread_barrier_wait(w->together);
    w->rate.bytes = measure_bytes(w);
    return NULL;
}

peak_meter *peak_meter_create(int threads) {
    peak_meter *m = calloc(1, sizeof *m + (size_t)threads * sizeof *m->workers);
    uint64_t *words = aligned_alloc(4096, read_bytes);
    if (!m || !words || pthread_barrier_init(&m->together, NULL, (unsigned)threads)) {
        aligned_free(words);
        free(m);
        return NULL;
    }
    memset(words, 1, read_bytes); /* untouched pages would all be one page of zeros */
    m->threads = threads;
    m->words = words;
    for (int i = 0; i < threads; ++i) {
        const size_t count = read_bytes / sizeof *words / (size_t)threads;
        m->workers[i] = (worker){.together = &m->together, .words = words + (size_t)i * count, .count = count};
    }
    return m;
}

void peak_meter_destroy(peak_meter *m) {
    if (!m) return;
    pthread_barrier_destroy(&m->together);
    aligned_free(m->words);
    free(m);
}

peak peak_measure(peak_meter *m) {
    peak sum = {0};
    for (int i = 1; i < m->threads; ++i)
        if (pthread_create(&m->workers[i].thread, NULL, work, &m->workers[i])) {
            fputs("strobe: a thread could not be started to measure the peak\n", stderr);
            exit(EXIT_REFUSED); /* those that were started wait for this one */
        }
    work(&m->workers[0]);
    for (int i = 0; i < m->threads; ++i) {
        if (i > 0) pthread_join(m->workers[i].thread, NULL);
        sum.flops += m->workers[i].rate.flops;
        sum.bf16 += m->workers[i].rate.bf16;
        sum.bytes += m->workers[i].rate.bytes;
    }
    return sum;
}
