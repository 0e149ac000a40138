/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.h: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a function
 * from (key, counter) to four random words, and dropout by it: whether an element of P is kept depends on its position
 * alone. */
#ifndef STROBE_MATH_PHILOX_H
#define STROBE_MATH_PHILOX_H

#include <stdint.h>

#include "math/inline.h"

struct philox_words {
    uint32_t word[4];
};

STROBE_INLINE struct philox_words philox4x32_10(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const struct philox_words words = {{c0, c1, c2, c3}};
    return words;
}

/* The position of a problem in the whole one, for dropout; see strobe_dropout in the public header. */
struct dropout_place {
    uint64_t seed, offset;
    uint32_t threshold;         /* p * 2^32: an element of P is kept if its word is not below */
    float keep_scale;           /* 1 / (1 - p) */
    int64_t heads, rows, quads; /* of the whole problem; quads: groups of four keys, which share a counter */
    int64_t batch_start, head_start, row_start, key_start;
};

/* The counter of the first quad of row i; key j adds (key_start + j) / 4. */
STROBE_INLINE uint64_t dropout_row(const struct dropout_place *place, int64_t b, int64_t h, int64_t i) {
    const uint64_t head = (uint64_t)(place->batch_start + b) * (uint64_t)place->heads + (uint64_t)(place->head_start + h);
    return (head * (uint64_t)place->rows + (uint64_t)(place->row_start + i)) * (uint64_t)place->quads;
}

/* Whether the element of P of key j is kept; row: dropout_row() of its row. */
STROBE_INLINE int dropout_keeps(const struct dropout_place *place, uint64_t row, int64_t j) {
    const uint64_t key = (uint64_t)(place->key_start + j);
    const struct philox_words words = philox4x32_10(place->seed, place->offset, row + key / 4);
    return words.word[key % 4] >= place->threshold;
}

#endif
