/* SPDX-License-Identifier: BSD-3-Clause
 *
 * standard_openblas.c: Strobe beside standard attention done well (standard_head.h). Both run in this process, in turns, on
 * all cores, on the same random inputs; medians are compared, and the results with each other.
 *
 *     bench_standard_openblas [heads [dim [seq ...]]]          default: 16 heads, dim 128, seq 512 1024 2048 4096
 *
 * Prints a row for each length: GFLOP/s of both (4 heads seq^2 dim FLOP), the median of the ratio, its quartiles, the extra
 * memory of both, and the largest difference of their outputs. */
#define _POSIX_C_SOURCE 200809L
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <strobe/strobe.h>

#include "standard_head.h"

enum { ROUNDS = 7 };

struct problem {
    int64_t heads, seq, dim;
    float *q, *k, *v;       /* [seq][heads][dim] */
    float *ours, *standard; /* [seq][heads][dim] */
    float *scores;          /* [heads][seq][seq] */
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A head a thread, OpenBLAS on one thread in each: faster here than its own threads on one head after another. */
static void run_standard(const struct problem *p) {
    const int seq = (int)p->seq, dim = (int)p->dim, row = (int)(p->heads * p->dim);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t h = 0; h < p->heads; ++h)
        standard_head(p->q + h * dim, p->k + h * dim, p->v + h * dim, p->standard + h * dim, p->scores + h * p->seq * p->seq,
                      seq, seq, dim, row, 0);
}

static strobe_attention describe(const struct problem *p) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = p->seq, .seq_k = p->seq};
    a.heads_q = p->heads, a.dim = p->dim;
    a.q.data = p->q, a.k.data = p->k, a.v.data = p->v, a.out.data = p->ours;
    return a;
}

static void run_ours(const strobe_attention *a) {
    if (strobe_forward(a, NULL, 0, NULL) == STROBE_OK) return;
    fprintf(stderr, "strobe: %s\n", strobe_last_error());
    exit(2);
}

static float *floats(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) {
        fprintf(stderr, "%lld floats do not fit in memory\n", (long long)n);
        exit(2);
    }
    return x;
}

static float *random_floats(int64_t n, unsigned seed) {
    float *x = floats(n);
    for (int64_t i = 0; i < n; ++i) { /* sum of uniforms: close to normal, variance 1 */
        float sum = -6;
        for (int term = 0; term < 12; ++term) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-24f;
        }
        x[i] = sum;
    }
    return x;
}

static int ascending(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void compare(int64_t heads, int64_t dim, int64_t seq) {
    const int64_t n = heads * dim * seq;
    struct problem p = {.heads = heads, .seq = seq, .dim = dim, .ours = floats(n), .standard = floats(n)};
    p.q = random_floats(n, 1), p.k = random_floats(n, 2), p.v = random_floats(n, 3);
    p.scores = floats(heads * seq * seq);
    const strobe_attention a = describe(&p);
    const double flop = 4.0 * (double)heads * (double)seq * (double)seq * (double)dim;
    double ours[ROUNDS], standard[ROUNDS], ratio[ROUNDS];
    run_ours(&a), run_standard(&p); /* warm up: threads, pages */
    for (int round = 0; round < ROUNDS; ++round) {
        const double start = seconds();
        run_ours(&a);
        const double middle = seconds();
        run_standard(&p);
        ours[round] = middle - start, standard[round] = seconds() - middle;
        ratio[round] = standard[round] / ours[round];
    }
    qsort(ours, ROUNDS, sizeof *ours, ascending);
    qsort(standard, ROUNDS, sizeof *standard, ascending);
    qsort(ratio, ROUNDS, sizeof *ratio, ascending);
    float difference = 0;
    for (int64_t i = 0; i < n; ++i) difference = fmaxf(difference, fabsf(p.ours[i] - p.standard[i]));
    size_t workspace = 0;
    strobe_workspace(&a, NULL, &workspace);
    printf("%6lld %10.1f %10.1f %7.2f  %5.2f..%-5.2f %9.2f %10.1f %12.1e\n", (long long)seq, flop / ours[ROUNDS / 2] * 1e-9,
           flop / standard[ROUNDS / 2] * 1e-9, ratio[ROUNDS / 2], ratio[ROUNDS / 4], ratio[ROUNDS - 1 - ROUNDS / 4],
           (double)workspace / 1048576, (double)(heads * seq * seq) * 4 / 1048576, (double)difference);
    free(p.q), free(p.k), free(p.v), free(p.ours), free(p.standard), free(p.scores);
}

int main(int argc, char **argv) {
    const int64_t heads = argc > 1 ? atoll(argv[1]) : 16, dim = argc > 2 ? atoll(argv[2]) : 128;
    if (heads < 1 || dim < 1 || dim > 512) {
        fprintf(stderr, "heads is %lld and dim %lld; heads of at least 1 and a dim of 1 to 512 are accepted\n",
                (long long)heads, (long long)dim);
        return 2;
    }
    openblas_set_num_threads(1);
    printf("fp32 forward, %lld heads, dim %lld, %d threads; standard = OpenBLAS sgemm, softmax, sgemm\n", (long long)heads,
           (long long)dim, omp_get_max_threads());
    printf("%6s %10s %10s %7s  %12s %9s %10s %12s\n", "seq", "strobe", "standard", "ratio", "quartiles", "extra MiB", "MiB",
           "difference");
    printf("%6s %10s %10s\n", "", "GFLOP/s", "GFLOP/s");
    const int64_t lengths[] = {512, 1024, 2048, 4096};
    for (int i = 3; i < argc; ++i) compare(heads, dim, atoll(argv[i]));
    for (int i = 0; argc <= 3 && i < 4; ++i) compare(heads, dim, lengths[i]);
    return 0;
}
