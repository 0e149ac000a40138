/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.h (device): math/philox.h for many neighbouring counters of one key. What they share is worked out once: the keys
 * of all rounds by the host, and what all but one word of a counter decide in the first two rounds. A call is 18
 * multiplications and 19 logical operations then. */
#ifndef STROBE_CUDA_DEVICE_PHILOX_H
#define STROBE_CUDA_DEVICE_PHILOX_H

#include <stdint.h>

#include "math/philox.h"

/* Of a problem: the keys of the ten rounds, and the counter's lower half, the offset. */
struct philox_rounds {
    uint32_t key[10][2];
    uint32_t offset[2];
};

static inline struct philox_rounds philox_rounds_of(uint64_t seed, uint64_t offset) {
    struct philox_rounds r;
    for (uint32_t n = 0; n < 10; ++n) {
        r.key[n][0] = (uint32_t)seed + n * 0x9E3779B9u;
        r.key[n][1] = (uint32_t)(seed >> 32) + n * 0xBB67AE85u;
    }
    r.offset[0] = (uint32_t)offset, r.offset[1] = (uint32_t)(offset >> 32);
    return r;
}

#if defined(__CUDACC__)
#include "cuda/device/element.h"
#include "cuda/ptx/integer.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u

INLINE uint32_t low_word(uint64_t x) { return (uint32_t)x; }
INLINE uint32_t high_word(uint64_t x) { return (uint32_t)(x >> 32); }

/* What counters from `first` on share, whose lower half is the problem's offset: first word 0 and then word 2 of the four
 * are multiplied, and the words beside them become the others. */
struct philox_start {
    uint32_t low, high;      /* of the first counter */
    uint32_t c0_key, c1, c3; /* in the second round, after it, and after the first */
};

INLINE struct philox_start philox_start(const struct philox_rounds *r, uint64_t first) {
    struct philox_start s;
    const uint64_t product = full_product(r->offset[0], PHILOX_M0);
    s.low = low_word(first), s.high = high_word(first), s.c3 = low_word(product);
    const uint64_t next = full_product(high_word(product) ^ s.high ^ r->key[0][1], PHILOX_M1);
    s.c0_key = high_word(next) ^ r->key[1][0], s.c1 = low_word(next);
    return s;
}

/* The words of `count` counters from the one `step` after the first on, `stride` apart, all of which have the upper word of
 * the first. They go from round to round together: a call by itself waits for each of its products. */
template <int count>
INLINE void philox_after(const struct philox_rounds *r, const struct philox_start *s, uint32_t step, uint32_t stride,
                         struct philox_words (&words)[count]) {
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const uint64_t first = full_product(s->low + step + n * stride, PHILOX_M1);
        words[n].word[2] = high_word(first) ^ r->offset[1] ^ r->key[0][0], words[n].word[0] = s->c0_key ^ low_word(first);
    }
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const uint64_t second = full_product(words[n].word[2], PHILOX_M0);
        words[n].word[1] = s->c1;
        words[n].word[2] = high_word(second) ^ s->c3 ^ r->key[1][1], words[n].word[3] = low_word(second);
    }
#pragma unroll
    for (int round = 2; round < 10; ++round)
#pragma unroll
        for (int n = 0; n < count; ++n) {
            uint32_t *c = words[n].word;
            const uint64_t product0 = full_product(c[0], PHILOX_M0), product1 = full_product(c[2], PHILOX_M1);
            c[0] = high_word(product1) ^ c[1] ^ r->key[round][0], c[1] = low_word(product1);
            c[2] = high_word(product0) ^ c[3] ^ r->key[round][1], c[3] = low_word(product0);
        }
}
#endif
#endif
