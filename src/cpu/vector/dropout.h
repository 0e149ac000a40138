/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dropout.h: the factors of dropout for a tile and a block of keys, 0 or 1 / (1 - p), by Philox on vectors of rows.
 * math/philox.h says which word belongs to which weight. Four keys share a counter, so its ten rounds give four vectors of
 * factors.
 *
 * A round multiplies 32-bit words to 64 bits, so a vector of LANES words holds the state of LANES / 2 rows, each in the low
 * half of 64 bits; what the high halves hold does not matter. The even and the odd rows of a vector of rows have a state
 * each, which are joined when the words are compared with the threshold. */
#ifndef STROBE_CPU_DROPOUT_H
#define STROBE_CPU_DROPOUT_H

#include "cpu/vector/visible.h"

/* Four words for each of LANES / 2 rows, whose counters are `low` and first[] + quad. */
ALWAYS_INLINE void philox_vectors(vec_words word[4], uint64_t key, uint64_t low, const uint64_t first[LANES / 2],
                                  uint64_t quad) {
    const vec_words m0 = w_set(0xD2511F53u), m1 = w_set(0xCD9E8D57u);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    const vec_words position = w_add64(w_load((const uint32_t *)(const void *)first), quad);
    vec_words c0 = w_set((uint32_t)low), c1 = w_set((uint32_t)(low >> 32)), c2 = position, c3 = w_high(position);
    for (int round = 0; round < 10; ++round) {
        const vec_words product0 = w_multiply(c0, m0), product1 = w_multiply(c2, m1);
        c0 = w_xor3(w_high(product1), c1, w_set(k0));
        c1 = product1;
        c2 = w_xor3(w_high(product0), c3, w_set(k1));
        c3 = product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Writes the factors to z [keys][TILE_ROWS], or with `multiply` multiplies z by them, in the vectors of rows that see some
 * of the keys [j0, j0 + keys). */
ALWAYS_INLINE void dropout_of_block(float *z, const struct row_features *f, const struct visible_block *v,
                                    const struct dropout_place *place, int64_t j0, int64_t keys, bool multiply) {
    const uint64_t key = (uint64_t)(place->key_start + j0);
    const vec keep = v_set(place->keep_scale), zero = v_set(0);
    const vec_words threshold = w_set(place->threshold);
    for (int64_t r = v->first * LANES; r < v->end * LANES; r += LANES)
        for (int64_t j = -(int64_t)(key % 4); j < keys; j += 4) { /* the keys of a counter, some of which may lie outside */
            const uint64_t quad = (key + (uint64_t)j) / 4;
            vec_words even[4], odd[4];
            philox_vectors(even, place->seed, place->offset, f->dropout_row + r, quad);
            philox_vectors(odd, place->seed, place->offset, f->dropout_row + r + LANES / 2, quad);
            for (int64_t n = 0; n < 4; ++n) {
                if (j + n < 0 || j + n >= keys) continue;
                float *at = z + (j + n) * TILE_ROWS + r;
                const vec factor = v_select_below(w_join(even[n], odd[n]), threshold, zero, keep);
                v_store(at, multiply ? v_mul(v_load(at), factor) : factor);
            }
        }
}

static inline void dropout_factors(float *z, const struct row_features *f, const struct visible_block *v,
                                   const struct dropout_place *place, int64_t j0, int64_t keys) {
    dropout_of_block(z, f, v, place, j0, keys, false);
}

static inline void apply_dropout_factors(float *p, const struct row_features *f, const struct visible_block *v,
                                         const struct dropout_place *place, int64_t j0, int64_t keys) {
    dropout_of_block(p, f, v, place, j0, keys, true);
}

#endif
