/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 05_merge.c: attention over two halves of the keys, computed apart, perhaps on two machines, and merged: the same as over
 * all of them at once. Split-KV decoding, ring attention and chunked prefill are all this. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <strobe/strobe.h>

enum { ROWS = 4, KEYS = 64, DIM = 16 };

static float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], whole[ROWS * DIM], merged[ROWS * DIM], half[2][ROWS * DIM];
static float whole_lse[ROWS], half_lse[2][ROWS];

static void attend(int first, int keys, float *out, float *lse) {
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = ROWS, .seq_k = keys, .heads_q = 1, .dim = DIM};
    a.q.data = q, a.k.data = k + first * DIM, a.v.data = v + first * DIM, a.out.data = out, a.lse.data = lse;
    if (strobe_forward(&a, NULL, 0, NULL) != STROBE_OK) exit((fprintf(stderr, "%s\n", strobe_last_error()), 1));
}

int main(void) {
    for (int i = 0; i < ROWS * DIM; ++i) q[i] = sinf((float)i);
    for (int i = 0; i < KEYS * DIM; ++i) k[i] = cosf((float)(3 * i)), v[i] = sinf((float)(7 * i));
    attend(0, KEYS, whole, whole_lse);
    attend(0, 40, half[0], half_lse[0]);
    attend(40, KEYS - 40, half[1], half_lse[1]);

    strobe_partial parts[2] = {{{.data = half[0]}, {.data = half_lse[0]}}, {{.data = half[1]}, {.data = half_lse[1]}}};
    strobe_partials m = {.struct_size = sizeof m, .batch = 1, .seq_q = ROWS, .heads_q = 1, .dim_v = DIM, .count = 2};
    m.parts = parts, m.out.data = merged;
    if (strobe_merge(&m, NULL) != STROBE_OK) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    float worst = 0;
    for (int i = 0; i < ROWS * DIM; ++i) worst = fmaxf(worst, fabsf(merged[i] - whole[i]));
    printf("40 + 24 keys merged against 64 at once: largest difference %.1e\n", (double)worst);
    return worst < 1e-6f ? 0 : 1;
}
