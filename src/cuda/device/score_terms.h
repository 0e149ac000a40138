/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_terms.h: what may be done to one score before softmax: scale, softcap, bias, ALiBi, masks (docs/numerics.md has the
 * order). Kernels differ in how their accumulators lie, and so in how they walk over the scores of a block; what happens to
 * one score is said here. */
#ifndef STROBE_CUDA_DEVICE_SCORE_TERMS_H
#define STROBE_CUDA_DEVICE_SCORE_TERMS_H

#include "cuda/device/element.h"

/* Element (batch b, head h, row i, key j) of a tensor over scores. */
INLINE int64_t score_at(const struct view *x, int b, int h, int i, int j) {
    return b * x->batch + h * x->head + i * x->row + j;
}

/* An element of a bias that is fp32 or of the element type. */
INLINE float bias_at(const struct view *bias, int64_t at) {
    return bias->dtype == CUDA_FP32 ? ((const float *)bias->data)[at] : element_to_float(((const element *)bias->data)[at]);
}

/* A bias of -inf hides its key, whatever a NaN of its K has made of the score. */
INLINE float biased(float score, float bias) { return bias == -INFINITY ? -INFINITY : score + bias; }

/* Whether the boolean mask and the block mask let row i see key j; a mask that is not there hides nothing. */
INLINE bool masks_show(const struct view *mask, const struct view *blocks, int block_q, int block_k, int b, int h, int i,
                       int j) {
    if (mask->data && !((const uint8_t *)mask->data)[score_at(mask, b, h, i, j)]) return false;
    return !blocks->data || ((const uint8_t *)blocks->data)[score_at(blocks, b, h, i / block_q, j / block_k)];
}

/* softcap tanh(x / softcap) of x = dot scale; rate is 2 log2(e) scale / softcap. tanh y = 1 - 2 / (1 + e^2y) would lose the
 * digits of a small y, which has the odd polynomial of degree 5 instead: relative error 1e-7 below 0.11. Kernels of fp32
 * tensors take tanhf. */
INLINE float softcapped(float dot, float softcap, float rate) {
    const float twice = dot * rate, y = twice * (float)(LN_2 / 2), square = y * y; /* twice: 2 y log2 e */
    const float small = y * fmaf(square, fmaf(square, 2.0f / 15, -1.0f / 3), 1);
    return softcap * (fabsf(y) < 0.11f ? small : fmaf(-2, reciprocal(1 + ex2(twice)), 1));
}

#endif
