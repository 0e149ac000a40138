/* SPDX-License-Identifier: BSD-3-Clause
 *
 * standard_head.h: standard attention of one head in fp32, done well: two OpenBLAS matrix products and a vectorised softmax
 * between them, the whole matrix of scores in memory. Compiled with -ffast-math expf becomes libmvec's vector function. */
#ifndef STROBE_BENCH_STANDARD_HEAD_H
#define STROBE_BENCH_STANDARD_HEAD_H

#include <cblas.h>
#include <math.h>

/* Keys [0, n) of a row of scores; those past them get no weight. */
static void softmax_row(float *s, int n, int keys, float scale) {
    float maximum = s[0], sum = 0;
    for (int j = 1; j < n; ++j) maximum = s[j] > maximum ? s[j] : maximum;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < n; ++j) sum += s[j] = expf((s[j] - maximum) * scale);
    for (int j = 0; j < n; ++j) s[j] *= 1 / sum;
    for (int j = n; j < keys; ++j) s[j] = 0;
}

/* q, out [rows][dim] and k, v [keys][dim], rows `stride` apart; s [rows][keys]. causal: row i sees the keys up to i. */
static void standard_head(const float *q, const float *k, const float *v, float *out, float *s, int rows, int keys, int dim,
                          int stride, int causal) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, dim, 1, q, stride, k, stride, 0, s, keys);
    for (long i = 0; i < rows; ++i)
        softmax_row(s + i * keys, causal && i < keys ? (int)i + 1 : keys, keys, 1 / sqrtf((float)dim));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, keys, 1, s, keys, v, stride, 0, out, stride);
}

#endif
