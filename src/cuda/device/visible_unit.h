/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_unit.h: one unit of scores, from bits to its state, and its bits in the order in which a warp group's threads hold
 * scores (visible.h). Included by visible.cu, whose bits come from a boolean mask, and by visible_function.cu, whose bits
 * the user's function says. A block of UNIT_THREADS threads, all of them. */
#ifndef STROBE_CUDA_DEVICE_VISIBLE_UNIT_H
#define STROBE_CUDA_DEVICE_VISIBLE_UNIT_H

#include "cuda/device/visible.h"

enum { ROW_WORDS = UNIT / 32, CHUNKS = UNIT / 16, AT_A_TIME = UNIT * CHUNKS / UNIT_THREADS };

/* A row of bits has a word more than it needs, so that lanes that read a column of words meet different banks. */
struct packed_unit {
    uint16_t half[UNIT][CHUNKS + 2];
    uint32_t across[UNIT][ROW_WORDS + 1];
};

/* Which of four bytes are not zero, as four bits. */
INLINE uint32_t nonzero_bytes(uint32_t x) {
    const uint32_t high = (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080;
    return (high >> 7) * 0x01020408 >> 24;
}

INLINE uint32_t nonzero_of_sixteen(uint4 x) {
    return nonzero_bytes(x.x) | nonzero_bytes(x.y) << 4 | nonzero_bytes(x.z) << 8 | nonzero_bytes(x.w) << 12;
}

/* Sixteen scores of row i from key j on: which are visible, and which lie in the tensor. */
struct sixteen {
    uint32_t seen, there;
};

INLINE struct sixteen load_sixteen(const struct visible_pass *p, const uint8_t *mask, int i, int j) {
    struct sixteen s = {0, 0};
    if (i >= p->seq_q || j >= p->seq_k) return s;
    const uint8_t *from = mask + i * p->mask.row + j;
    const int count = p->seq_k - j;
    s.there = count >= 16 ? 0xffff : (1u << count) - 1;
    if (count >= 16 && p->mask_aligned) {
        s.seen = nonzero_of_sixteen(__ldg((const uint4 *)from));
    } else {
#pragma unroll 4
        for (int x = 0; x < 16; ++x)
            if (x < count) s.seen |= (uint32_t)(from[x] != 0) << x;
    }
    return s;
}

/* Bits 2 q, 2 q + 1, 8 + 2 q, 8 + 2 q + 1 and so on of a word, as eight neighbours. */
INLINE uint32_t pairs_of(uint32_t word, int q) { return ((word >> 2 * q) & 0x03030303) * 0x01041040u >> 24; }

/* What a thread is given of a row of 128 bits. */
INLINE uint32_t thread_bits(const uint32_t (&row)[ROW_WORDS], int q) {
    uint32_t bits = 0;
#pragma unroll
    for (int word = 0; word < ROW_WORDS; ++word) bits |= pairs_of(row[word], q) << 8 * word;
    return bits;
}

/* Transposes the unit's bits, so that a row of them goes over the query rows of a key. */
INLINE void transpose(struct packed_unit *unit) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int square = warp; square < ROW_WORDS * ROW_WORDS; square += UNIT_THREADS / 32) {
        const int rows = square / ROW_WORDS, keys = square % ROW_WORDS;
        const uint32_t word = *(const uint32_t *)&unit->half[32 * rows + lane][2 * keys];
        uint32_t mine = 0;
#pragma unroll
        for (int key = 0; key < 32; ++key) {
            const uint32_t column = __ballot_sync(0xffffffffu, word >> key & 1);
            mine = lane == key ? column : mine;
        }
        unit->across[32 * keys + lane][rows] = mine;
    }
    __syncthreads();
}

INLINE uint32_t bits_along(const struct packed_unit *unit, bool transposed, int owner, int q) {
    uint32_t row[ROW_WORDS];
#pragma unroll
    for (int word = 0; word < ROW_WORDS; ++word)
        row[word] = transposed ? unit->across[owner][word] : *(const uint32_t *)&unit->half[owner][2 * word];
    return thread_bits(row, q);
}

/* The row of a unit, and the first key of sixteen, that are a thread's nth of AT_A_TIME. */
INLINE int unit_row(int n) { return (int)threadIdx.x / CHUNKS + n * (UNIT_THREADS / CHUNKS); }
INLINE int unit_chunk(void) { return (int)threadIdx.x % CHUNKS; }

/* The unit's state, and its bits where it is partial, from all threads' scores. */
INLINE void store_unit(const struct visible_pass *p, struct packed_unit *unit, const struct sixteen (&s)[AT_A_TIME],
                       int64_t at) {
    const int lane = (int)threadIdx.x % 32;
    uint32_t seen = 0, missing = 0;
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
        unit->half[unit_row(n)][unit_chunk()] = (uint16_t)s[n].seen;
        seen |= s[n].seen, missing |= s[n].there & ~s[n].seen;
    }
    const bool some = __syncthreads_or(seen != 0), whole = !__syncthreads_or(missing != 0);
    if (threadIdx.x == 0) p->mask_states[at] = !some ? UNIT_HIDDEN : whole ? UNIT_FULL : UNIT_PARTIAL;
    if (!some || whole) return;
    if (p->transposed) transpose(unit);
    const int first = (int)threadIdx.x / 32 * 16 + lane / 4;
    ((uint2 *)p->bits)[at * UNIT_THREADS + threadIdx.x] = make_uint2(bits_along(unit, p->transposed, first, lane % 4),
                                                                     bits_along(unit, p->transposed, first + 8, lane % 4));
}

#endif
