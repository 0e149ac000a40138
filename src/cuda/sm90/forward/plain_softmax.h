/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain_softmax.h: softmax.h and tile.h's mask where there are no features, with fewer clocks from the scores to P, for
 * which the tensor cores wait. Results are the same, bit for bit. Included by plain.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_PLAIN_SOFTMAX_H
#define STROBE_CUDA_SM90_FORWARD_PLAIN_SOFTMAX_H

#include "cuda/sm90/forward/first_block.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/tile.h"

enum { HALVES = 2, HALF = KEYS / HALVES };

/* mask_band(): one branch in a block that hides nothing, and of a block at the rows' end the halves alone that hide
 * something.
 */
INLINE void mask_plain_band(const struct tile *t, struct keys shown, float (&s)[KEYS / 2], int first, int key) {
    if (key + KEYS <= shown.end && key >= shown.begin) return;
    const int lane = threadIdx.x % 32, row = t->row + first + lane / 4, origin = key + 2 * (lane % 4);
    const int end[2] = {end_key_of(t, row) - origin, end_key_of(t, row + 8) - origin};
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
        if (key + HALF * (half + 1) > shown.end) {
#pragma unroll
            for (int v = HALF / 2 * half; v < HALF / 2 * (half + 1); ++v)
                if (8 * (v / 4) + v % 2 >= end[v / 2 % 2]) s[v] = -INFINITY;
        }
    if (key < shown.begin) mask_before(t, s, first, key);
}

/* Whether no row of the warp sees a key of the block's second half, as under a causal mask in every second tile's first
 * block. */
INLINE bool has_hidden_half(const struct tile *t, int first, int key) {
    return key + HALF >= end_key_of(t, t->row + first + 15);
}

/* The greatest of both rows' bits, as integers, three at a time. Four chains: an instruction waits five clocks for the one
 * before in its chain, and the pipe takes one every second clock. */
INLINE void maxima_in_chains(float (&s)[KEYS / 2], int (&most)[2]) {
    int seen[4]; /* of rows 0, 0, 1, 1 */
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
#pragma unroll
    for (int chain = 0; chain < 4; ++chain) {
        const int from = chain / 2 * 2 + chain % 2 * 4;
        seen[chain] = max(__float_as_int(s[from]), __float_as_int(s[from + 1]));
    }
#pragma unroll
    for (int v = 8; v < KEYS / 2; v += 2) {
        const int chain = v / 2 % 2 * 2 + v / 4 % 2;
        seen[chain] = max(max(seen[chain], __float_as_int(s[v])), __float_as_int(s[v + 1]));
    }
    most[0] = max(seen[0], seen[1]), most[1] = max(seen[2], seen[3]);
}

/* Whether some score of the warp passes its row's bound; most: the thread's greatest, as bits. */
INLINE bool passes_bounds(float (&s)[KEYS / 2], const struct rows *r, int (&most)[2]) {
    maxima_in_chains(s, most);
    const bool above = r->bound[0] < 0 || r->bound[1] < 0 || most[0] > __float_as_int(r->bound[0]) ||
                       most[1] > __float_as_int(r->bound[1]);
    return __any_sync(0xffffffffu, above);
}

/* Where some score does. */
INLINE void grow_maxima(const float (&s)[KEYS / 2], struct rows *r, const int (&most)[2], float c, const struct lag *lag) {
    float greatest[2];
    row_maxima_of_bits(s, most, greatest);
    raise_maxima(greatest, r, c, lag);
    r->grown = true;
}

/* online_softmax(). */
INLINE void plain_softmax(float (&s)[KEYS / 2], struct rows *r, float c, const struct lag *lag) {
    int most[2];
    r->grown = false;
    if (passes_bounds(s, r, most)) grow_maxima(s, r, most, c, lag);
    const float nothing[2] = {0, 0};
    exponentials(s, r, c, nothing);
}

/* Some of the first block's S become P, rounded, in `packed`; l follows. */
INLINE void first_exponentials(const float (&s)[KEYS / 2], uint32_t (&packed)[KEYS / 4], struct rows *r, float c, int from,
                               int end) {
#pragma unroll
    for (int v = from; v < end; v += 2) {
        const int i = v / 2 % 2;
        const float even = ex2(fmaf(s[v], c, -r->shift[i])), odd = ex2(fmaf(s[v + 1], c, -r->shift[i]));
        r->sum[i] += even;
        r->sum[i] += odd;
        packed[v / 2] = pack(even, odd);
    }
}

/* first_softmax(). half: all of the second half is hidden. */
INLINE void first_plain_softmax(float (&s)[KEYS / 2], uint32_t (&packed)[KEYS / 4], struct rows *r, float c,
                                const struct lag *lag, bool half) {
    int most[2];
    float greatest[2];
    maxima_in_chains(s, most);
    row_maxima_of_bits(s, most, greatest);
    begin_maxima(greatest, r, c, lag);
    first_exponentials(s, packed, r, c, 0, KEYS / 4);
    if (half) {
#pragma unroll
        for (int i = KEYS / 8; i < KEYS / 4; ++i) packed[i] = 0;
        return;
    }
    first_exponentials(s, packed, r, c, KEYS / 4, KEYS / 2);
}

#endif
