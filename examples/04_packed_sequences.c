/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 04_packed_sequences.c: three sequences of different lengths packed one after another, without padding (flash-attn's
 * varlen): each attends to itself alone. */
#include <stdio.h>

#include <strobe/strobe.h>

enum { BATCH = 3, TOTAL = 10, LONGEST = 5, HEADS = 2, DIM = 8 };

int main(void) {
    const int32_t starts[BATCH + 1] = {0, 2, 7, TOTAL};
    float q[TOTAL][HEADS][DIM], k[TOTAL][HEADS][DIM], v[TOTAL][HEADS][DIM], out[TOTAL][HEADS][DIM];
    for (int b = 0; b < BATCH; ++b)
        for (int i = starts[b]; i < starts[b + 1]; ++i)
            for (int h = 0; h < HEADS; ++h)
                for (int x = 0; x < DIM; ++x)
                    q[i][h][x] = (float)(i % 3), k[i][h][x] = (float)(x % 4), v[i][h][x] = (float)b;

    const strobe_varlen packed = {.struct_size = sizeof packed, .cu_seqlens_q = starts, .cu_seqlens_k = starts};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = LONGEST, .seq_k = LONGEST};
    a.heads_q = HEADS, a.dim = DIM, a.varlen = &packed, a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out;
    if (strobe_forward(&a, NULL, 0, NULL) != STROBE_OK) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    int wrong = 0;
    for (int b = 0; b < BATCH; ++b)
        for (int i = starts[b]; i < starts[b + 1]; ++i) {
            printf("token %d of sequence %d: %.3f\n", i - starts[b], b, (double)out[i][0][0]);
            wrong += out[i][0][0] < (float)b - 1e-5f || out[i][0][0] > (float)b + 1e-5f; /* it saw its own values only */
        }
    return wrong > 0;
}
