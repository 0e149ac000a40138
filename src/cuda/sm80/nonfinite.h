/* SPDX-License-Identifier: BSD-3-Clause
 *
 * nonfinite.h: O += P V must not bring 0 * NaN to a row from a key that it does not see. Looking for such keys costs time,
 * so kernels first run as if there were none. A block of threads whose result is not finite then goes over its keys again,
 * with another matrix in V's place, written over it in shared memory, so that the products themselves know nothing of it:
 *
 *     FINITE      elements that are not finite are 0: the finite part of O, and NaN where a score is one
 *     POSITIVE    +inf and NaN are 1, all else is 0, and weights alike: O > 0 where +inf is a part of the sum
 *     NEGATIVE    likewise for -inf and NaN: O > 0 where -inf is; where both are, the sum is NaN */
#ifndef STROBE_CUDA_TILE_NONFINITE_H
#define STROBE_CUDA_TILE_NONFINITE_H

#include "cuda/device/load.h"
#include "cuda/device/scores.h"

enum pass { AS_IT_IS, FINITE, POSITIVE, NEGATIVE, NOTHING = FINITE + 4 }; /* NOTHING: zeros, for a tile of scores */

/* The kinds that an element belongs to, as bits; the passes that look for them are FINITE + kind. 0: it is finite. */
INLINE int kinds_of(float x) { return x - x == 0 ? 0 : x > 0 ? 1 : x < 0 ? 2 : 3; }

/* Writes over a tile for the pass, and notes in *found, in shared memory or NULL, of which kinds elements are. Every thread
 * of the block calls it; all of them are done with the tile as it was, and see what it has become. */
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

/* Whether the pass is needed, after the others: *found is complete. */
INLINE bool pass_is_needed(int pass, int found) { return pass <= FINITE || (found & (pass - FINITE)) != 0; }

#endif
