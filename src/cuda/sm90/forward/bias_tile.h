/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bias_tile.h: a bias of the elements' type, which a producer thread copies to shared memory, 64 rows and a block of keys
 * for each group, in variants that have a bias alone. A warp loads it as matrices whose elements lie as its scores do. A
 * bias of -inf needs no care here: where a NaN of a hidden key has met it, O is not finite, and exact_row.h computes the row
 * again. Included by forward.cu alone, after its -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_BIAS_TILE_H
#define STROBE_CUDA_SM90_FORWARD_BIAS_TILE_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/shared.h"

/* One thread: the bias of every block, tile after tile. */
INLINE void producer_bias(const struct sm90_forward_params *p, struct shared *s) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t tiles = 0;; ++tiles) {
        const struct tile *t = &s->tile[slot_of(tiles)];
        mbarrier_wait(&s->tile_full[slot_of(tiles)], slot_parity(tiles));
        if (t->number == NO_TILE) break;
        const int head = p->bias.head ? t->head : 0, batch = p->bias.batch ? t->batch : 0;
#pragma unroll 1
        for (int n = t->end_block - 1; n >= t->first_block; --n, ++count) {
            const uint32_t stage = bias_stage_of(count);
#pragma unroll 1
            for (int group = 0; group < GROUPS; ++group) {
                uint64_t *full = &s->bias_full[stage][group];
                mbarrier_wait(&s->bias_empty[stage][group], bias_parity(count) ^ 1);
                mbarrier_expect(full, BIAS_BYTES);
#pragma unroll 1
                for (int slab = 0; slab < KEYS / 64; ++slab)
                    tma_load_4d(s->bias[stage][group] + slab * Q_SLAB, &p->bias_map, full, n * KEYS + slab * 64,
                                t->row + 64 * group, head, batch, TMA_EVICT_FIRST);
            }
        }
        mbarrier_arrive(&s->tile_empty[slot_of(tiles)]);
    }
}

/* Scale and bias. In a bias tile lane l gives the address of row l % 8 of four matrices of 8 x 8: of the warp's first and
 * last eight rows, in two neighbouring eights of keys. */
INLINE void add_bias_tile(const struct sm90_forward_params *p, struct shared *shared, float (&s)[KEYS / 2], int group,
                          uint32_t count) {
    const uint32_t stage = bias_stage_of(count);
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x % 128 / 32 * 16 + lane % 16;
    const uint32_t from = shared_address(shared->bias[stage][group]) + row * ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
    mbarrier_wait(&shared->bias_full[stage][group], bias_parity(count));
#pragma unroll
    for (int v = 0; v < KEYS / 2; ++v) wgmma_keep(s[v]);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
        uint32_t pairs[4];
        ldmatrix_x4(pairs, (from ^ n % 8 * 16) + n / 8 * Q_SLAB);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            s[4 * n + 2 * x] = fmaf(s[4 * n + 2 * x], p->scale, element_to_float((element)pairs[x]));
            s[4 * n + 2 * x + 1] = fmaf(s[4 * n + 2 * x + 1], p->scale, element_to_float((element)(pairs[x] >> 16)));
        }
    }
    arrive_as_warp(&shared->bias_empty[stage][group]);
}

#endif
