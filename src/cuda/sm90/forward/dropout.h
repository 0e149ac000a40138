/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dropout.h: which weights of a block dropout keeps (math/philox.h), in a thread's own order of bits, and P without the
 * others. The bits do not depend on scores, so they are worked out while the tensor cores have these. Dropout's factor
 * 1 / (1 - p) is part of the division by l, and l is the sum without dropout. Included by forward.cu alone, after its -D
 * constants.
 *
 * One call of Philox serves four keys of a row, of which a thread has two: of two neighbouring lanes each calls it for one
 * row, for both. */
#ifndef STROBE_CUDA_SM90_FORWARD_DROPOUT_H
#define STROBE_CUDA_SM90_FORWARD_DROPOUT_H

#include "cuda/device/philox.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/tile.h"

/* The bits of a thread's two rows. The bit of the block's nth eight and of the first or second key there is the one that
 * KEPT_BIT names: where it is shifted left by n / 2, it leads a byte, which one permutation of bytes makes a mask of 16
 * bits. */
struct kept {
    uint32_t row[2];
};

#define KEPT_BIT(n, x) (1u << (8 * (2 * ((n) % 2) + (x)) + 7 - (n) / 2))
enum { AT_A_TIME = 8 }; /* calls of Philox that do not wait for each other */
static_assert(!HAS_DROPOUT || KEYS <= 128, "the bits of a row are one word");

INLINE void add_kept(const struct sm90_forward_params *p, const struct philox_words &words, int n, uint32_t *low,
                     uint32_t *high) {
    if (words.word[0] >= p->place.threshold) *low |= KEPT_BIT(n, 0);
    if (words.word[1] >= p->place.threshold) *low |= KEPT_BIT(n, 1);
    if (words.word[2] >= p->place.threshold) *high |= KEPT_BIT(n, 0);
    if (words.word[3] >= p->place.threshold) *high |= KEPT_BIT(n, 1);
}

INLINE struct kept kept_bits(const struct sm90_forward_params *p, const struct tile *t, int first, int key) {
    const int lane = threadIdx.x % 32, odd = lane % 2;
    const uint64_t row = dropout_row(&p->place, t->batch, t->head, t->row + first + lane / 4 + 8 * odd);
    const uint64_t quad = row + (uint64_t)(p->place.key_start + key + 4 * (lane % 4 / 2)) / 4;
    uint32_t low = 0, high = 0; /* of the first two words of a call, and of the last two */
    if (low_word(quad) + KEYS / 4 < KEYS / 4) {
#pragma unroll 1
        for (int n = 0; n < KEYS / 8; ++n)
            add_kept(p, philox4x32_10(p->place.seed, p->place.offset, quad + 2 * n), n, &low, &high);
    } else {
        const struct philox_start start = philox_start(&p->rounds, quad);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += AT_A_TIME) {
            struct philox_words words[AT_A_TIME];
            philox_after<AT_A_TIME>(&p->rounds, &start, 2 * n, 2, words);
#pragma unroll
            for (int x = 0; x < AT_A_TIME; ++x) add_kept(p, words[x], n + x, &low, &high);
        }
    }
    const uint32_t own = odd ? high : low, other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    struct kept kept = {{odd ? other : own, odd ? own : other}};
    return kept;
}

/* Sets what dropout leaves out of P to 0: of pairs of neighbouring keys, packed. */
INLINE void leave_out(uint32_t (&packed)[KEYS / 4], const struct kept *kept) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; ++i) {
        const int n = i / 2;
        const uint32_t word = kept->row[i % 2] << n / 2;
        packed[i] &= n % 2 ? signs_of_bytes<2, 3>(word) : signs_of_bytes<0, 1>(word);
    }
}

#endif
