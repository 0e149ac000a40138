/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.h: online softmax on the accumulators of a warp (Milakov and Gimelshein, 2018), in base 2, with a lagging maximum:
 * O and l are rescaled only when a row's maximum has grown by more than 2^8 (LAGGING_MAXIMUM_LOG2). Included by forward.cu
 * alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_SOFTMAX_H
#define STROBE_CUDA_SM90_FORWARD_SOFTMAX_H

#include <math.h>

#include "cuda/device/element.h"
#include "cuda/ptx/wgmma.h"

/* What a consumer thread keeps of its two rows, l / 4 and l / 4 + 8 of its warp's sixteen. */
struct rows {
    float bound[2];  /* scores up to this do not raise the maximum; -inf before the row has seen a key */
    float shift[2];  /* m, the lagging maximum, in base 2: P = 2^(s c - shift) */
    float sum[2];    /* l, of the weights that this thread holds */
    float factor[2]; /* what rescale() multiplies O by, where `grown` */
    bool grown;      /* some maximum of the warp has grown in this block; the same for the whole warp */
};

#define NO_ROWS \
    { {-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {1, 1}, false }

/* The greatest score of both rows in this block; `offset` is added to each of them. */
INLINE void row_maxima(const float (&s)[KEYS / 2], float (&greatest)[2], const float (&offset)[2]) {
    float seen[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; /* of even and odd columns: chains of half the length */
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) seen[v % 4] = fmaxf(seen[v % 4], s[v]);
    greatest[0] = fmaxf(seen[0], seen[1]), greatest[1] = fmaxf(seen[2], seen[3]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (HAS_ROW_OFFSETS) greatest[i] += offset[i];
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int i = 0; i < 2; ++i) greatest[i] = fmaxf(greatest[i], __shfl_xor_sync(0xffffffffu, greatest[i], lanes));
}

/* Moves m and l of both rows to these maxima: where some row of the warp has a score above its bound. */
INLINE void raise_maxima(const float (&greatest)[2], struct rows *r, float c, float limit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float before = r->bound[i] == -INFINITY ? -INFINITY : r->shift[i], now = fmaxf(before, greatest[i] * c);
        const float shift = now == -INFINITY ? r->shift[i] : now;
        r->factor[i] = ex2(before - shift);
        r->shift[i] = shift;
        r->bound[i] = fmaxf(r->bound[i], greatest[i] + limit);
        r->sum[i] *= r->factor[i];
    }
}

/* S becomes P in place, and l follows. */
INLINE void exponentials(float (&s)[KEYS / 2], struct rows *r, float c, const float (&offset)[2]) {
    const float shift[2] = {HAS_ROW_OFFSETS ? fmaf(offset[0], c, -r->shift[0]) : -r->shift[0],
                            HAS_ROW_OFFSETS ? fmaf(offset[1], c, -r->shift[1]) : -r->shift[1]};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) {
        s[v] = ex2(fmaf(s[v], c, shift[v / 2 % 2]));
        r->sum[v / 2 % 2] += s[v];
    }
}

/* S becomes P in place; m and l follow. Of a row's scores `offset` is still to be added. Scores are compared with their
 * row's bound as integers, three at a time: where the bound is not negative, the order of the bits is that of the numbers.
 */
INLINE void online_softmax(float (&s)[KEYS / 2], struct rows *r, float c, float limit, const float (&offset)[2]) {
    const float bound[2] = {HAS_ROW_OFFSETS ? r->bound[0] - offset[0] : r->bound[0],
                            HAS_ROW_OFFSETS ? r->bound[1] - offset[1] : r->bound[1]};
    int most[2] = {(int)0x80000000, (int)0x80000000};
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
#pragma unroll
    for (int v = 0; v < KEYS / 2; v += 2)
        most[v / 2 % 2] = max(max(most[v / 2 % 2], __float_as_int(s[v])), __float_as_int(s[v + 1]));
    const bool above = bound[0] < 0 || bound[1] < 0 || most[0] > __float_as_int(bound[0]) ||
                       most[1] > __float_as_int(bound[1]);
    r->grown = __any_sync(0xffffffffu, above);
    if (r->grown) {
        float greatest[2];
        row_maxima(s, greatest, offset);
        raise_maxima(greatest, r, c, limit);
    }
    exponentials(s, r, c, offset);
}

/* P rounded to the element type, as the A operand of P V. */
INLINE void pack_p(uint32_t (&packed)[KEYS / 4], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; ++i) packed[i] = pack(s[2 * i], s[2 * i + 1]);
}

/* O *= 2^(m_old - m_new), where some maximum of the warp has grown. */
INLINE void rescale(float (&o)[HEAD_DIM / 2], const struct rows *r) {
    if (!r->grown) return;
#pragma unroll
    for (int v = 0; v < HEAD_DIM / 2; ++v) o[v] *= r->factor[v / 2 % 2];
}

#endif
