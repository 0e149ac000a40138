/* SPDX-License-Identifier: BSD-3-Clause
 *
 * 03_decode_gqa.c: one decoding step over a K/V cache, as an inference engine would call it: bf16, 32 query heads on 8 K/V
 * heads, a batch of sequences of different lengths in one padded cache, no copy, and a workspace that the caller keeps. */
#include <stdio.h>
#include <stdlib.h>

#include <strobe/strobe.h>

enum { BATCH = 3, CAPACITY = 256, HEADS_Q = 32, HEADS_KV = 8, DIM = 96 };

static uint16_t bf16(float x) { /* truncated: good enough to make up data */
    union {
        float value;
        uint32_t bits;
    } u = {x};
    return (uint16_t)(u.bits >> 16);
}

int main(void) {
    static uint16_t q[BATCH][1][HEADS_Q][DIM], out[BATCH][1][HEADS_Q][DIM];
    static uint16_t k[BATCH][CAPACITY][HEADS_KV][DIM], v[BATCH][CAPACITY][HEADS_KV][DIM];
    const int32_t length[BATCH] = {1, 100, 256}; /* tokens in the cache; what lies behind them is never read */
    for (int b = 0; b < BATCH; ++b)
        for (int j = 0; j < length[b]; ++j)
            for (int h = 0; h < HEADS_KV; ++h)
                for (int x = 0; x < DIM; ++x) k[b][j][h][x] = bf16((float)((j + x) % 9) - 4), v[b][j][h][x] = bf16((float)b);
    for (int b = 0; b < BATCH; ++b)
        for (int h = 0; h < HEADS_Q; ++h)
            for (int x = 0; x < DIM; ++x) q[b][0][h][x] = bf16((float)((h + x) % 5) - 2);

    const strobe_varlen lengths = {.struct_size = sizeof lengths, .used_k = length};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = 1, .seq_k = CAPACITY};
    a.heads_q = HEADS_Q, a.heads_kv = HEADS_KV, a.dim = DIM, a.dtype = STROBE_BF16;
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT; /* the new token sees all of the cache */
    a.varlen = &lengths;
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out;

    size_t bytes = 0;
    const char *kernel = "";
    void *workspace = NULL;
    int status = strobe_workspace(&a, NULL, &bytes) || strobe_select(&a, NULL, &kernel);
    if (!status && bytes) status = !(workspace = aligned_alloc(64, bytes)); /* once, for many steps */
    if (status || strobe_forward(&a, workspace, bytes, NULL) != STROBE_OK) {
        fprintf(stderr, "%s\n", strobe_last_error());
        return 1;
    }
    free(workspace);
    printf("%s, %zu bytes of workspace\n", kernel, bytes);
    for (int b = 0; b < BATCH; ++b) /* all values of sequence b are b, and so is every mean of them */
        if (out[b][0][HEADS_Q - 1][0] != bf16((float)b)) return 1;
    return 0;
}
