/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax.h: online softmax on the accumulators of a warp (Milakov and Gimelshein, 2018), in base 2, with a lagging maximum:
 * O and l are rescaled only when a row's maximum has grown by more than struct lag allows. Included by forward.cu alone,
 * after its -D constants. */
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

/* Of a row that is not there, behind the sequence's last: no score passes it, as an integer or as a number, and it stays.
 * Q holds there what memory does, and a row's bits would follow from it, since a warp's maxima move together. */
#define NO_BOUND __int_as_float(0x7fffffff)

/* How far a row's maximum may lag. The greatest weight is exact where it is 1, and else rounded like any other: an error
 * that matters if the weight is a large part of its row's sum. So a weight may be as large as LARGEST_SHARE of what a block
 * of keys has added to l so far, on average; more where `least` says so. */
#define LARGEST_SHARE (KEYS > 64 ? 0.4f : 0.5f)
struct lag {
    float unit;  /* a doubling of the weight, in units of scores */
    float least; /* in doublings, see struct sm90_forward_params */
    int blocks;  /* of the tile, before this one */
};

/* For scores in natural units: always as far as any maximum may. */
#define LONGEST_LAG \
    { 1 / (float)LOG2_E, (float)LAGGING_MAXIMUM_LOG2, 1 }

/* The greatest of the thread's scores of both rows. */
INLINE void thread_maxima(const float (&s)[KEYS / 2], float (&greatest)[2]) {
    float seen[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; /* of even and odd columns: chains of half the length */
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) seen[v % 4] = fmaxf(seen[v % 4], s[v]);
    greatest[0] = fmaxf(seen[0], seen[1]), greatest[1] = fmaxf(seen[2], seen[3]);
}

/* The greatest over the four lanes that share the rows. */
INLINE void maxima_of_lanes(float (&greatest)[2]) {
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int i = 0; i < 2; ++i) greatest[i] = fmaxf(greatest[i], __shfl_xor_sync(0xffffffffu, greatest[i], lanes));
}

/* The greatest score of both rows in this block; `offset` is added to each of them. */
INLINE void row_maxima(const float (&s)[KEYS / 2], float (&greatest)[2], const float (&offset)[2]) {
    thread_maxima(s, greatest);
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (HAS_ROW_OFFSETS) greatest[i] += offset[i];
    maxima_of_lanes(greatest);
}

/* The greatest of both rows' bits, as integers, three at a time. */
INLINE void maxima_of_bits(float (&s)[KEYS / 2], int (&most)[2]) {
    most[0] = most[1] = (int)0x80000000;
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
#pragma unroll
    for (int v = 0; v < KEYS / 2; v += 2)
        most[v / 2 % 2] = max(max(most[v / 2 % 2], __float_as_int(s[v])), __float_as_int(s[v + 1]));
}

/* The same without offsets, from the maxima of the thread's scores' bits, which are those of the scores where not negative;
 * else the warp searches, all of it, since a branch that some lanes take costs more. */
INLINE void row_maxima_of_bits(const float (&s)[KEYS / 2], const int (&most)[2], float (&greatest)[2]) {
    greatest[0] = __int_as_float(most[0]), greatest[1] = __int_as_float(most[1]);
    if (__any_sync(0xffffffffu, most[0] < 0 || most[1] < 0)) thread_maxima(s, greatest);
    maxima_of_lanes(greatest);
}

/* Moves m and l of both rows to these maxima: where some row of the warp has a score above its bound. */
INLINE void raise_maxima(const float (&greatest)[2], struct rows *r, float c, const struct lag *lag) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float before = r->bound[i] == -INFINITY ? -INFINITY : r->shift[i], now = fmaxf(before, greatest[i] * c);
        const float shift = now == -INFINITY ? r->shift[i] : now;
        r->factor[i] = ex2(before - shift);
        r->shift[i] = shift;
        r->sum[i] *= r->factor[i];
        const float before_now = __fdividef(4 * r->sum[i], (float)lag->blocks); /* of a block; first of all 0 / 0 */
        const float growth = fminf(fmaxf(__log2f(LARGEST_SHARE * before_now), lag->least), LAGGING_MAXIMUM_LOG2);
        const float bound = greatest[i] + growth * lag->unit;
        r->bound[i] = r->bound[i] < bound ? bound : r->bound[i];
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
INLINE void online_softmax(float (&s)[KEYS / 2], struct rows *r, float c, const struct lag *lag, const float (&offset)[2]) {
    const float bound[2] = {HAS_ROW_OFFSETS ? r->bound[0] - offset[0] : r->bound[0],
                            HAS_ROW_OFFSETS ? r->bound[1] - offset[1] : r->bound[1]};
    int most[2];
    maxima_of_bits(s, most);
    const bool above = bound[0] < 0 || bound[1] < 0 || most[0] > __float_as_int(bound[0]) ||
                       most[1] > __float_as_int(bound[1]);
    r->grown = __any_sync(0xffffffffu, above);
    if (r->grown) {
        float greatest[2];
        if (HAS_ROW_OFFSETS) row_maxima(s, greatest, offset);
        if (!HAS_ROW_OFFSETS) row_maxima_of_bits(s, most, greatest);
        raise_maxima(greatest, r, c, lag);
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
