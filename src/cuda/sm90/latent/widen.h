/* SPDX-License-Identifier: BSD-3-Clause
 *
 * widen.h (latent): a cache of int8 or e4m3: the other warps of the producer's group make elements of the bytes of a block,
 * in its stage. The bytes lie at the end, and elements are written from the begin on, eight keys at a time: what eight keys
 * overwrite are bytes of theirs and of keys before, which all warps have read then. Included by latent.cu alone. */
#ifndef STROBE_CUDA_SM90_LATENT_WIDEN_H
#define STROBE_CUDA_SM90_LATENT_WIDEN_H

#include "cuda/device/widen.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/latent/shared.h"

#if defined(STORED_DTYPE)
enum { WIDENERS = 96, WIDEN_BARRIER = 2, CHUNKS = RAW_EIGHT / 16 / WIDENERS };
static_assert(CHUNKS * WIDENERS * 16 == RAW_EIGHT, "each thread has as much");

INLINE void widen_block(unsigned char *stage) {
    const int thread = (int)threadIdx.x - 32;
#pragma unroll 1
    for (int eight = 0; eight < EIGHTS; ++eight) {
        uint4 raw[CHUNKS];
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
            raw[n] = *(const uint4 *)(stage + RAW_AT + eight * RAW_EIGHT + (thread + n * WIDENERS) * 16);
        if ((eight + 1) * EIGHT_BYTES > RAW_AT) named_barrier_wait(WIDEN_BARRIER, WIDENERS);
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n) {
            const int at = thread + n * WIDENERS, row = at / 4 % 8, chunk = at % 4 * 2;
            unsigned char *const to = stage + eight * EIGHT_BYTES + at / 32 * SLAB_EIGHT;
            uint4 elements[2];
            widen_chunk(raw[n], STORED_DTYPE, elements);
            *(uint4 *)(to + chunk_at(row, chunk, SLAB_EIGHT)) = elements[0];
            *(uint4 *)(to + chunk_at(row, chunk + 1, SLAB_EIGHT)) = elements[1];
        }
    }
}

/* Segment after segment. A segment is known when bytes of its first block have come. */
INLINE void wideners(struct shared *shared) {
    uint32_t count = 0, keys = 0;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
        int n = 0, blocks;
        ++count; /* Q */
#pragma unroll 1
        do {
            mbarrier_wait(&shared->raw[stage_of(keys)], parity_of(keys));
            blocks = shared->segment[number % SEGMENTS].blocks;
            if (blocks == 0) return;
            widen_block(shared->stage[stage_of(count)]);
            fence_proxy_async();
            named_barrier_wait(WIDEN_BARRIER, WIDENERS);
            if (threadIdx.x == 32) mbarrier_arrive(&shared->full[stage_of(count)]);
            ++count, ++keys;
        } while (++n < blocks);
    }
}
#endif

#endif
