/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mask.h: which keys a row sees, as a band of keys around a diagonal. Every mask kind is a band: causal is (unbounded, 0).
 * Rows ask for their range of keys; kernels ask whether a block of rows and keys is skipped, full or partial (causal skip).
 *
 *      key j ->          row i sees the keys j with  -left <= j - (i + diagonal) <= right
 *   r  . . # # # .
 *   o  . . . # # #       a block is SKIPPED where none of its pairs is visible,
 *   w  . . . . # #       FULL where all are, PARTIAL otherwise
 */
#ifndef STROBE_MATH_MASK_H
#define STROBE_MATH_MASK_H

#include <stdint.h>

#include "math/inline.h"

/* Sums of two of these and any legal position stay inside int64_t. */
#define BAND_UNBOUNDED ((int64_t)1 << 61)

struct band {
    int64_t left, right; /* keys before and after the diagonal, or BAND_UNBOUNDED; negative: the band does not reach it */
    int64_t diagonal;    /* the key at which row 0 stands */
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

/* What the band covers of the block of rows [i0, i1) and keys [j0, j1), both not empty, j1 <= keys. The bounds grow with the
 * row, so the first row has the least and the last row the greatest. */
STROBE_INLINE enum coverage band_covers(const struct band *band, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    if (j1 <= band_first(band, i0) || j0 >= band_end(band, i1 - 1)) return BLOCK_SKIPPED;
    return j0 >= band_first(band, i1 - 1) && j1 <= band_end(band, i0) ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* The same band in 32 bits, for kernels whose positions are below 2^28: row i sees the keys from max(0, i + first_shift) to
 * min(keys, i + end_shift) - 1, and key j is seen by the rows from max(0, j - end_shift + 1) to min(rows, j - first_shift +
 * 1) - 1. Where nothing is seen the end is not after the first, and may be negative. */
struct band32 {
    int32_t first_shift, end_shift;
};

/* Beyond 2^29 a shift means the same as there: 2^28 more or less do not bring it back. */
STROBE_INLINE int32_t band32_clamp(int64_t shift) {
    const int64_t most = (int64_t)1 << 29;
    return (int32_t)(shift < -most ? -most : shift > most ? most : shift);
}

STROBE_INLINE struct band32 band32_of(const struct band *band) {
    const struct band32 shifts = {band32_clamp(band->diagonal - band->left), band32_clamp(band->diagonal + band->right + 1)};
    return shifts;
}

STROBE_INLINE int32_t band32_first_key(int32_t first_shift, int32_t i) { return i + first_shift > 0 ? i + first_shift : 0; }

STROBE_INLINE int32_t band32_end_key(int32_t end_shift, int32_t i, int32_t keys) {
    return i + end_shift < keys ? i + end_shift : keys;
}

STROBE_INLINE int32_t band32_first_row(int32_t end_shift, int32_t j) {
    return j - end_shift + 1 > 0 ? j - end_shift + 1 : 0;
}

STROBE_INLINE int32_t band32_end_row(int32_t first_shift, int32_t j, int32_t rows) {
    return j - first_shift + 1 < rows ? j - first_shift + 1 : rows;
}

/* band32_end_row() - 1. */
STROBE_INLINE int32_t band32_last_row(int32_t first_shift, int32_t j, int32_t rows) {
    return j - first_shift < rows ? j - first_shift : rows - 1;
}

#endif
