/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nonfinite.h: O += P V must not bring 0 * NaN to a row from a key that it does not see. Looking for such keys costs time,
 * so kernels first run as if there were none. A block of threads whose result is not finite then repeats its loop over keys
 * with V rewritten in shared memory, so that the products themselves are the same code:
 *
 *     FINITE      elements that are not finite are 0: the finite part of O, and NaN where a score is one
 *     POSITIVE    +inf and NaN are 1, all else is 0, and weights alike: O > 0 where +inf is a part of the sum
 *     NEGATIVE    likewise for -inf and NaN: O > 0 where -inf is; where both are, the sum is NaN */
#ifndef STROBE_CUDA_SM80_NONFINITE_H
#define STROBE_CUDA_SM80_NONFINITE_H

#include "cuda/sm80/load.h"
#include "cuda/sm80/scores.h"

enum pass { AS_IT_IS, FINITE, POSITIVE, NEGATIVE, NOTHING = FINITE + 4 }; /* NOTHING: zeros, for a tile of scores */

/* What an element is, as bits: 0 finite, 1 +inf, 2 -inf, 3 NaN, which counts as both. Pass FINITE + kind looks for a kind.
 */
INLINE int kinds_of(float x) { return x - x == 0 ? 0 : x > 0 ? 1 : x < 0 ? 2 : 3; }

/* Rewrites a tile for the pass, and notes in *found, in shared memory or NULL, which kinds its elements are. Every thread of
 * the block calls it; the barriers inside order it after their reads of the old tile and before those of the new one. */
INLINE void rewrite_tile(unsigned char *tile, int elements, int pass, int *found, int threads) {
    __syncthreads();
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < elements; at += threads) {
        element *x = (element *)tile + at;
        const int kinds = kinds_of(element_to_float(*x));
        if (kinds && found) atomicOr(found, kinds);
        if (pass != FINITE)
            *x = kinds & (pass - FINITE) ? ELEMENT_ONE : (element)0;
        else if (kinds)
            *x = 0;
    }
    __syncthreads();
}

/* Whether the pass is needed, once the passes before it have completed `found`. */
INLINE bool pass_is_needed(int pass, int found) { return pass <= FINITE || (found & (pass - FINITE)) != 0; }

#endif
