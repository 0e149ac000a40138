/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 02_backward.c: gradients, and a check of one of them by a finite difference: the loss is the sum of the output times dout,
 * so moving one element of q by a little moves the loss by that little times dq. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <strobe/strobe.h>

enum { SEQ = 32, DIM = 16, N = SEQ * DIM };

static float q[N], k[N], v[N], out[N], lse[SEQ], dout[N], dq[N], dk[N], dv[N];

static void fill(float *x) {
    for (int i = 0; i < N; ++i) x[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

static double loss(const strobe_attention *a) {
    if (strobe_forward(a, NULL, 0, NULL) != STROBE_OK) exit((fprintf(stderr, "%s\n", strobe_last_error()), 1));
    double sum = 0;
    for (int i = 0; i < N; ++i) sum += (double)out[i] * (double)dout[i];
    return sum;
}

int main(void) {
    fill(q), fill(k), fill(v), fill(dout);
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = 1, .dim = DIM};
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out, a.lse.data = lse;
    strobe_gradients g = {.struct_size = sizeof g};
    g.dout.data = dout, g.dq.data = dq, g.dk.data = dk, g.dv.data = dv;

    loss(&a); /* the forward leaves out and lse, which backward reads */
    if (strobe_backward(&a, &g, NULL, 0, NULL) != STROBE_OK) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    const float step = 1e-2f, before = q[5];
    q[5] = before + step;
    const double above = loss(&a);
    q[5] = before - step;
    const double below = loss(&a);
    const double difference = (above - below) / (2 * (double)step);
    printf("dq[5] = %.6f, by finite differences %.6f\n", (double)dq[5], difference);
    return fabs(difference - (double)dq[5]) < 1e-3 ? 0 : 1;
}
