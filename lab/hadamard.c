/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hadamard.c: incoherent processing (FA3, section 3.3): M = diag(signs) H / sqrt(d) is orthogonal, so (Q M)(K M)^T = Q K^T,
 * while each number of a row of Q M mixes all numbers of the row of Q. */
#include "fp8.h"

#include "random.h"

#include <math.h>

/* One step of the transform: pairs (a, b) at distance `half` become (a + b, a - b). */
static void butterflies(double *row, int64_t d, int64_t half) {
    for (int64_t start = 0; start < d; start += 2 * half)
        for (int64_t x = start; x < start + half; ++x) {
            const double a = row[x], b = row[x + half];
            row[x] = (double)(float)(a + b);
            row[x + half] = (double)(float)(a - b);
        }
}

void lab_hadamard_rows(lab_memory *memory, lab_tile *x, const double *signs) {
    const int64_t d = x->cols;
    int64_t steps = 0;
    while (((int64_t)1 << steps) < d) ++steps;
    if ((int64_t)1 << steps != d) {
        lab_refuse(memory, "d = %lld: the Hadamard transform takes a power of two", (long long)d);
        return;
    }
    memory->counts.others += x->rows * d * (steps + 2); /* signs, additions, 1 / sqrt(d) */
    if (memory->mode != LAB_COMPUTE) return;
    const double norm = 1 / sqrt((double)d);
    for (int64_t r = 0; r < x->rows; ++r) {
        double *row = x->at + r * d;
        for (int64_t c = 0; c < d; ++c) row[c] *= signs[c];
        for (int64_t half = 1; half < d; half *= 2) butterflies(row, d, half);
        for (int64_t c = 0; c < d; ++c) row[c] = (double)(float)(row[c] * norm);
    }
}

void lab_signs(double *signs, int64_t d, uint64_t seed) {
    lab_random random = {.state = seed};
    for (int64_t c = 0; c < d; ++c) signs[c] = lab_uniform(&random) < 0.5 ? -1 : 1;
}
