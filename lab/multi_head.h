/* SPDX-License-Identifier: BSD-3-Clause
 *
 * multi_head.h: multi-head attention with its four projections, forward and backward, on the library's attention:
 *
 *     Q = X W_Q, K = Y W_K, V = Y W_V        head_h = Attention(Q_h, K_h, V_h)        out = Concat(head_1 .. head_H) W_O
 *
 * Queries come from X, keys and values from Y; X = Y in self-attention. A projection writes its heads next to each other in
 * every row, which is the library's layout [batch, seq, heads, dim]: nothing is split, transposed or concatenated. */
#ifndef STROBE_LAB_MULTI_HEAD_H
#define STROBE_LAB_MULTI_HEAD_H

#include <stdbool.h>
#include <stdint.h>
#include <strobe/strobe.h>

typedef struct lab_multi_head {
    int64_t batch, seq_q, seq_k, width, heads, dim;
    strobe_mask_kind mask;
    strobe_dtype dtype;              /* of the attention: STROBE_FP64 or STROBE_FP32; the projections are in fp64 */
    const double *x;                 /* [batch][seq_q][width] */
    const double *y;                 /* [batch][seq_k][width]; the same pointer as x: self-attention */
    const double *w_q, *w_k, *w_v;   /* [width][heads * dim] */
    const double *w_o;               /* [heads * dim][width] */
    const strobe_parallel *parallel; /* of the attention; NULL: the library's threads */
} lab_multi_head;

/* What forward leaves for backward. q, context: [batch][seq_q][heads * dim]; k, v: [batch][seq_k][heads * dim], in the
 * attention's dtype; lse: [batch][heads][seq_q]. */
typedef struct lab_multi_head_saved {
    void *q, *k, *v, *context, *lse;
} lab_multi_head_saved;

typedef struct lab_multi_head_gradients {
    double *dx, *dy; /* the same pointer in self-attention: the two parts are added */
    double *dw_q, *dw_k, *dw_v, *dw_o;
} lab_multi_head_gradients;

/* out: [batch][seq_q][width]. STROBE_OUT_OF_MEMORY, or what strobe_forward says. lab_multi_head_free frees saved. */
strobe_status lab_multi_head_forward(const lab_multi_head *layer, double *out, lab_multi_head_saved *saved);

/* dout: as out. Gradients are written, not added to. */
strobe_status lab_multi_head_backward(const lab_multi_head *layer, const lab_multi_head_saved *saved, const double *dout,
                                      const lab_multi_head_gradients *gradients);

void lab_multi_head_free(lab_multi_head_saved *saved);

#endif
