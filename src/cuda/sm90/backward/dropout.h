/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dropout.h (backward): which weights of a block pair dropout keeps (math/philox.h), in words of bits, one for 32
 * accumulators. With dropout alone the words of the next block are worked out while the tensor cores have dP; P is then kept
 * whole for dS, and a copy without what is left out goes into dV. */
#ifndef STROBE_CUDA_SM90_BACKWARD_DROPOUT_H
#define STROBE_CUDA_SM90_BACKWARD_DROPOUT_H

#include "cuda/device/philox.h"
#include "cuda/sm90/backward/params.h"

enum { AT_A_TIME = 8 }; /* calls of Philox that do not wait for each other */

/* The bit of accumulator v: where the word is shifted left by v / 4, it leads a byte, which one permutation of bytes makes a
 * mask of 16 bits. */
#define KEPT_BIT(v) (1u << (8 * ((v) % 4) + 7 - (v) / 4 % 8))

INLINE void add_kept(const struct sm90_backward_params *p, const struct philox_words &words, int n, uint32_t *kept) {
#pragma unroll
    for (int x = 0; x < 4; ++x)
        if (words.word[x] >= p->place.threshold) *kept |= KEPT_BIT(4 * n + x);
}

/* Of 32 accumulators, of rows from `row` on. One call of Philox serves four keys of a row, which four lanes have: each lane
 * calls it for every fourth accumulator, and three shuffles hand the bits round, a byte for each of the four. */
INLINE uint32_t kept_bits(const struct sm90_backward_params *p, int batch, int head, int key, int row) {
    const int lane = (int)threadIdx.x % 32, member = lane / 4 % 4;
    const int i = row + lane % 4 * 2 + member % 2, j = key + member / 2 * 8 + lane / 16 * 4;
    const uint64_t quad = dropout_row(&p->place, batch, head, i) + (uint64_t)(p->place.key_start + j) / 4;
    const uint32_t step = 8 * (uint32_t)p->place.quads;
    uint32_t own = 0, all = 0;
    if (p->place.quads >= 1 << 24 || low_word(quad) + 7 * step < 7 * step) {
#pragma unroll 1
        for (int n = 0; n < 8; ++n)
            add_kept(p, philox4x32_10(p->place.seed, p->place.offset, quad + n * 8 * (uint64_t)p->place.quads), n, &own);
    } else {
        const struct philox_start start = philox_start(&p->rounds, quad);
#pragma unroll
        for (int n = 0; n < 8; n += AT_A_TIME) {
            struct philox_words words[AT_A_TIME];
            philox_after<AT_A_TIME>(&p->rounds, &start, n * step, step, words);
#pragma unroll
            for (int x = 0; x < AT_A_TIME; ++x) add_kept(p, words[x], n + x, &own);
        }
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        const uint32_t theirs = __shfl_xor_sync(0xffffffffu, own, 4 * x);
        all |= (theirs >> 8 * member & 0xff) << 8 * (member ^ x);
    }
    return all;
}

/* With dropout alone: the words of a block pair. */
enum { KEPT_WORDS = FEATURE_CLASS == FEATURES_DROPOUT ? (ROWS / 2 + 31) / 32 : 1 };

struct kept {
    uint32_t word[KEPT_WORDS];
};

INLINE struct kept kept_of_pair(const struct sm90_backward_params *p, int batch, int head, int key, int row) {
    struct kept kept;
#pragma unroll
    for (int n = 0; n < KEPT_WORDS; ++n) kept.word[n] = kept_bits(p, batch, head, key, row + 64 * n);
    return kept;
}

/* P, packed in pairs, without what is left out. */
INLINE void leave_out(uint32_t (&to)[ROWS / 4], const uint32_t (&packed)[ROWS / 4], const struct kept *kept) {
#pragma unroll
    for (int i = 0; i < ROWS / 4; ++i) {
        const uint32_t word = kept->word[i / 16] << i % 16 / 2;
        to[i] = packed[i] & (i % 2 ? signs_of_bytes<2, 3>(word) : signs_of_bytes<0, 1>(word));
    }
}

INLINE bool is_kept(const struct kept *kept, int v) { return kept->word[v / 32] & KEPT_BIT(v); }

#endif
