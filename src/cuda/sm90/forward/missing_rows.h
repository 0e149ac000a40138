/* SPDX-License-Identifier: BSD-3-Clause
 *
 * missing_rows.h: a sequence's last tile has rows behind the last. They have no say in what the others become: what Q holds
 * there is another sequence's, or nobody's, and a row's bits depend on its own sequence alone. */
#ifndef STROBE_CUDA_SM90_FORWARD_MISSING_ROWS_H
#define STROBE_CUDA_SM90_FORWARD_MISSING_ROWS_H

#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/forward/tile.h"

/* What a warp's rows begin a tile with; first: of the warp in the tile. */
INLINE struct rows rows_of_tile(const struct tile *t, int first) {
    struct rows r = NO_ROWS;
    const int left = t->rows - t->row - first - (int)threadIdx.x % 32 / 4; /* rows from the lane's first one on */
    if (left <= 0) r.bound[0] = NO_BOUND;
    if (left <= 8) r.bound[1] = NO_BOUND;
    return r;
}

/* Whether all of the warp's rows that are there are finite; nothing: sums of 0 x over the thread's O, 0 unless some x is an
 * infinity or a NaN: two of its first row, two of the second. */
INLINE bool are_finite(const struct tile *t, int first, const float (&nothing)[4]) {
    const int row = t->row + first + (int)threadIdx.x % 32 / 4;
    const bool spoilt = (row < t->rows && nothing[0] + nothing[1] != 0) ||
                        (row + 8 < t->rows && nothing[2] + nothing[3] != 0);
    return !__any_sync(0xffffffffu, spoilt);
}

#endif
