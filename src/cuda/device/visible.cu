/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.cu: the pass before a kernel that has a boolean mask or a block mask: the states of all units, and the boolean
 * mask in bits (visible.h). It is bound by memory: the mask is read once, sixteen bytes at a time where its rows allow it.
 * Scores outside of the tensor count neither as visible nor as hidden. */
#include "cuda/device/visible.h"
#include "cuda/ptx/dependent.h"

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

/* One unit of the boolean mask: its state, and its bits where it is partial. */
INLINE void pack_unit(const struct visible_pass *p, struct packed_unit *unit, const uint8_t *mask, int owner, int other,
                      int64_t at) {
    const int first_row = (p->transposed ? other : owner) * UNIT, first_key = (p->transposed ? owner : other) * UNIT;
    const int chunk = (int)threadIdx.x % CHUNKS, lane = (int)threadIdx.x % 32;
    struct sixteen s[AT_A_TIME];
    uint32_t seen = 0, missing = 0;
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
        const int row = (int)threadIdx.x / CHUNKS + n * (UNIT_THREADS / CHUNKS);
        s[n] = load_sixteen(p, mask, first_row + row, first_key + 16 * chunk);
    }
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n) {
        const int row = (int)threadIdx.x / CHUNKS + n * (UNIT_THREADS / CHUNKS);
        unit->half[row][chunk] = (uint16_t)s[n].seen;
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

/* Some units of one owner, a block of threads. */
INLINE void pack_units(const struct visible_pass *p, struct packed_unit *unit, unsigned index) {
    const unsigned cuts = (unsigned)((p->others + p->per_block - 1) / p->per_block);
    const int other = (int)(index % cuts) * p->per_block, owner = (int)(index / cuts % (unsigned)p->owners[0]);
    const unsigned entry = index / cuts / (unsigned)p->owners[0]; /* batch and head, those that do not repeat */
    const int head = (int)(entry % (unsigned)p->heads[0]), batch = (int)(entry / (unsigned)p->heads[0]);
    const uint8_t *mask = (const uint8_t *)p->mask.data + batch * p->mask.batch + head * p->mask.head;
    const int64_t at = ((int64_t)entry * p->owners[0] + owner) * p->states;
    const int end = other + p->per_block < p->others ? other + p->per_block : p->others;
#pragma unroll 1
    for (int u = other; u < end; ++u) {
        pack_unit(p, unit, mask, owner, u, at + u);
        __syncthreads();
    }
    if (end == p->others && threadIdx.x < p->states - p->others) p->mask_states[at + end + threadIdx.x] = UNIT_HIDDEN;
}

/* The state of a unit of the block mask: of the blocks that it meets; outside of the tensor it meets none. */
INLINE uint8_t state_of_blocks(const struct visible_pass *p, const uint8_t *blocks, int row, int key) {
    if (row >= p->seq_q || key >= p->seq_k) return UNIT_HIDDEN;
    const int last_row = min(row + UNIT, p->seq_q) - 1, last_key = min(key + UNIT, p->seq_k) - 1;
    bool some = false, whole = true;
#pragma unroll 1
    for (int i = row / p->block_q; i <= last_row / p->block_q; ++i)
#pragma unroll 1
        for (int j = key / p->block_k; j <= last_key / p->block_k; ++j) {
            const bool seen = blocks[i * p->blocks.row + j] != 0;
            some = some || seen, whole = whole && seen;
        }
    return !some ? UNIT_HIDDEN : whole ? UNIT_FULL : UNIT_PARTIAL;
}

/* One thread: a unit of the block mask. */
INLINE void look_at_blocks(const struct visible_pass *p, int64_t index) {
    if (index >= p->block_units) return;
    const int other = (int)(index % p->states);
    const int64_t owners = index / p->states, entry = owners / p->owners[1];
    const int owner = (int)(owners % p->owners[1]), head = (int)(entry % p->heads[1]), batch = (int)(entry / p->heads[1]);
    const uint8_t *blocks = (const uint8_t *)p->blocks.data + batch * p->blocks.batch + head * p->blocks.head;
    p->block_states[index] = p->transposed ? state_of_blocks(p, blocks, other * UNIT, owner * UNIT)
                                           : state_of_blocks(p, blocks, owner * UNIT, other * UNIT);
}

extern "C" __global__ void __launch_bounds__(UNIT_THREADS) KERNEL(const __grid_constant__ struct visible_pass p) {
    __shared__ struct packed_unit unit;
#if __CUDA_ARCH__ >= 900
    let_next_start();
#endif
    if (blockIdx.x < p.mask_blocks)
        pack_units(&p, &unit, blockIdx.x);
    else
        look_at_blocks(&p, (blockIdx.x - p.mask_blocks) * UNIT_THREADS + threadIdx.x);
}
