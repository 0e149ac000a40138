/* SPDX-License-Identifier: BSD-3-Clause
 *
 * consumer.c: a program of somebody else's, which has the installed header and library and nothing more. It runs every
 * forward kernel that takes a causal grouped-query problem and compares with the definition, written as a loop. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strobe/strobe.h>

enum { SEQ = 37, HEADS = 4, HEADS_KV = 2, DIM = 24 };

static float q[SEQ][HEADS][DIM], k[SEQ][HEADS_KV][DIM], v[SEQ][HEADS_KV][DIM], out[SEQ][HEADS][DIM];

static double score(int i, int j, int h) {
    double dot = 0;
    for (int x = 0; x < DIM; ++x) dot += (double)q[i][h][x] * (double)k[j][h / 2][x];
    return dot / sqrt((double)DIM);
}

/* The largest difference of out from softmax(scale * Q K^T) V with keys up to the row's own. */
static double worst_error(void) {
    double worst = 0;
    for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < SEQ; ++i)
            for (int x = 0; x < DIM; ++x) {
                double sum = 0, weights = 0;
                for (int j = 0; j <= i; ++j) {
                    const double weight = exp(score(i, j, h));
                    weights += weight;
                    sum += weight * (double)v[j][h / 2][x];
                }
                worst = fmax(worst, fabs(sum / weights - (double)out[i][h][x]));
            }
    return worst;
}

/* Numbers in [-1, 1), the same everywhere. */
static void fill(float *numbers, size_t count, unsigned seed) {
    for (size_t n = 0; n < count; ++n) {
        seed = seed * 1664525u + 1013904223u;
        numbers[n] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void) {
    fill(&q[0][0][0], sizeof q / sizeof(float), 1);
    fill(&k[0][0][0], sizeof k / sizeof(float), 2);
    fill(&v[0][0][0], sizeof v / sizeof(float), 3);
    strobe_attention a = {sizeof a};
    a.batch = 1, a.seq_q = SEQ, a.seq_k = SEQ, a.heads_q = HEADS, a.heads_kv = HEADS_KV, a.dim = DIM;
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out;

    int ran = 0, wrong = 0;
    strobe_kernel_info info = {sizeof info};
    for (int32_t index = 0; strobe_kernel_at(index, &info) == STROBE_OK; ++index) {
        if (info.operation != STROBE_FORWARD || info.unavailable) continue;
        const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = info.name};
        a.tuning = &tuning;
        memset(out, 0xff, sizeof out); /* NaN */
        const strobe_status status = strobe_forward(&a, NULL, 0, NULL);
        if (status == STROBE_UNSUPPORTED) continue; /* a kernel for other problems than this one */
        const double error = status ? NAN : worst_error();
        printf("%-24s %s, worst error %.1e\n", info.name, status ? strobe_last_error() : "ran", error);
        ++ran;
        if (!(error < 1e-5)) ++wrong;
    }
    printf("%s: %d kernels, %d wrong\n", strobe_build_info(), ran, wrong);
    return ran == 0 || wrong > 0;
}
