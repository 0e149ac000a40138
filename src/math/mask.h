/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mask.h: who sees whom, said once. A band of keys around a diagonal serves every mask kind: causal is the band
 * (unbounded, 0). Rows ask for their range of keys, kernels ask whether a block lies outside, inside or across the band.
 *
 *      key j ->          row i sees the keys j with  -left <= j - (i + diagonal) <= right
 *   r  . . # # # .
 *   o  . . . # # #       a block is SKIPPED when none of its pairs is visible,
 *   w  . . . . # #       FULL when all are, PARTIAL otherwise
 */
#ifndef STROBE_MATH_MASK_H
#define STROBE_MATH_MASK_H

#include <stdint.h>

#include "math/inline.h"

/* Sums of two of these and any legal position stay inside int64_t. */
#define BAND_UNBOUNDED ((int64_t)1 << 61)

struct band {
    int64_t left, right; /* keys before and after the diagonal, >= 0 or negative sums of them; BAND_UNBOUNDED */
    int64_t diagonal;    /* the key that row 0 stands at */
    int64_t keys;        /* keys of the sequence */
};

enum coverage { BLOCK_SKIPPED, BLOCK_PARTIAL, BLOCK_FULL };

/* The keys that row i sees: [first, end), empty when end <= first. */
STROBE_INLINE int64_t band_first(const struct band *band, int64_t i) {
    const int64_t first = i + band->diagonal - band->left;
    return first > 0 ? first : 0;
}

STROBE_INLINE int64_t band_end(const struct band *band, int64_t i) {
    const int64_t end = i + band->diagonal + band->right + 1;
    return end < 0 ? 0 : end < band->keys ? end : band->keys;
}

/* The block of rows [i0, i1) and keys [j0, j1), both not empty, j1 <= keys. The bounds of a band grow with the row, so the
 * first row has the least and the last row the greatest. */
STROBE_INLINE enum coverage band_covers(const struct band *band, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    if (j1 <= band_first(band, i0) || j0 >= band_end(band, i1 - 1)) return BLOCK_SKIPPED;
    return j0 >= band_first(band, i1 - 1) && j1 <= band_end(band, i0) ? BLOCK_FULL : BLOCK_PARTIAL;
}

#endif
