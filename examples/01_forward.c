/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 01_forward.c: causal attention over one sequence, and which kernel the library chose for it and why.
 *
 *     cc 01_forward.c $(pkg-config --cflags --libs strobe) && ./a.out */
#include <stdio.h>

#include <strobe/strobe.h>

enum { SEQ = 6, HEADS = 2, DIM = 4 };

int main(void) {
    float q[SEQ][HEADS][DIM], k[SEQ][HEADS][DIM], v[SEQ][HEADS][DIM], out[SEQ][HEADS][DIM], lse[HEADS][SEQ];
    for (int i = 0; i < SEQ; ++i)
        for (int h = 0; h < HEADS; ++h)
            for (int x = 0; x < DIM; ++x) {
                q[i][h][x] = (float)((i + 2 * h + 3 * x) % 5) - 2;
                k[i][h][x] = (float)((2 * i + h + x) % 7) - 3;
                v[i][h][x] = (float)(10 * h + i);
            }

    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = SEQ, .seq_k = SEQ, .heads_q = HEADS, .dim = DIM};
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out, a.lse.data = lse;
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;

    char reasons[4096];
    if (strobe_explain(&a, NULL, reasons, sizeof reasons, NULL) != STROBE_OK ||
        strobe_forward(&a, NULL, 0, NULL) != STROBE_OK) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    fputs(reasons, stdout);
    /* Row i sees the values 0..i, all alike within a row of V: out is their weighted mean. */
    for (int i = 0; i < SEQ; ++i)
        printf("row %d: head 0 %.4f, head 1 %.4f\n", i, (double)out[i][0][0], (double)out[i][1][0]);
    return out[0][0][0] == 0 && out[0][1][0] == 10 ? 0 : 1;
}
