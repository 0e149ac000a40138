/* SPDX-License-Identifier: BSD-3-Clause
 *
 * first_block.h: the softmax of a tile's first block where there are no features and no function of a score: no bound is
 * asked, and weights are rounded as they come. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_FIRST_BLOCK_H
#define STROBE_CUDA_SM90_FORWARD_FIRST_BLOCK_H

#include "cuda/sm90/forward/softmax.h"

/* m of both rows, where no score was seen before; as raise_maxima() has it. */
INLINE void begin_maxima(const float (&greatest)[2], struct rows *r, float c, const struct lag *lag) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float now = fmaxf(-INFINITY, greatest[i] * c);
        r->shift[i] = now == -INFINITY ? 0 : now;
        const float bound = greatest[i] + fminf(lag->least, LAGGING_MAXIMUM_LOG2) * lag->unit;
        r->bound[i] = r->bound[i] == -INFINITY ? bound : NO_BOUND;
    }
}

/* S becomes P, rounded, in `packed`; m and l begin. */
INLINE void first_softmax(float (&s)[KEYS / 2], uint32_t (&packed)[KEYS / 4], struct rows *r, float c,
                          const struct lag *lag) {
    int most[2];
    float greatest[2];
    maxima_of_bits(s, most);
    row_maxima_of_bits(s, most, greatest);
    begin_maxima(greatest, r, c, lag);
#pragma unroll
    for (int v = 0; v < KEYS / 2; v += 2) {
        const int i = v / 2 % 2;
        const float even = ex2(fmaf(s[v], c, -r->shift[i])), odd = ex2(fmaf(s[v + 1], c, -r->shift[i]));
        r->sum[i] += even;
        r->sum[i] += odd;
        packed[v / 2] = pack(even, odd);
    }
}

#endif
