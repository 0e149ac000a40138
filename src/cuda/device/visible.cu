/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.cu: the pass before a kernel that has a boolean mask or a block mask: the states of all units, and the boolean
 * mask in bits (visible.h). It is bound by memory: the mask is read once, sixteen bytes at a time where its rows allow it.
 * Scores outside of the tensor count neither as visible nor as hidden. */
#include "cuda/device/visible_unit.h"
#include "cuda/ptx/dependent.h"

/* One unit of the boolean mask: its state, and its bits where it is partial. */
INLINE void pack_unit(const struct visible_pass *p, struct packed_unit *unit, const uint8_t *mask, int owner, int other,
                      int64_t at) {
    const int first_row = (p->transposed ? other : owner) * UNIT, first_key = (p->transposed ? owner : other) * UNIT;
    struct sixteen s[AT_A_TIME];
#pragma unroll
    for (int n = 0; n < AT_A_TIME; ++n)
        s[n] = load_sixteen(p, mask, first_row + unit_row(n), first_key + 16 * unit_chunk());
    store_unit(p, unit, s, at);
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
