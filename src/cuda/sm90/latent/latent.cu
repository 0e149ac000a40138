/* SPDX-License-Identifier: BSD-3-Clause
 *
 * latent.cu: decoding of multi-head latent attention on Hopper (DeepSeek-V2, 2024): one K/V head of 576 columns, of which
 * the first 512 are V, so that a block of keys is loaded once for both products. A CTA has 64 packed rows, that is heads
 * times tokens, and a share of all keys (schedule.h):
 *
 *     for each segment, the share's part of one sequence, and for each block of KEYS keys in it:
 *         S = Q K^T, mask                                               scores group (scores.h)
 *         m' = max(m, S), P = 2^(S c - m' c), l = l a + sum P           scores group, a = 2^((m - m') c)
 *         O = O a + P V                                                 values groups (values.h), 256 columns each
 *     out = O / l, lse = m + ln l; or O, m and l into the workspace, where a sequence is not the share's alone (merge.cu)
 *
 * O, 64 x 512 in fp32, takes half of all registers, and one warp group could not hold it. FlashMLA (DeepSeek, 2025) divides
 * its columns among two warp groups, which compute scores alternately. Here a third group does all scores: two thirds of Q
 * stay in its registers, so that shared memory is read less and has room for three blocks of keys; P goes through shared
 * memory to both values groups. These begin a block when the scores of the next one are done, and so run under its softmax:
 * the scores' warps cannot have both, since they wait until the tensor cores have taken their products one by one.
 *
 *     producer   | K0 | K1 | K2 |          | K3 |           | K4 |          copies into the ring (load.h)
 *     scores          | QK0 | softmax0 | QK1 | softmax1 | QK2 | softmax2
 *     values                                 | P0 V0    |     | P1 V1       each group half of the columns
 *
 * With HAS_TERMS also scale, softcap and ALiBi on S; over int8 or e4m3 (STORED_...) the producer's other warps widen blocks
 * (widen.h), and keys' scales multiply S and, behind the sum, P.
 *
 * Memory map: a ring of three stages, for K [eight keys][slab][8][64] or the first slabs of Q [slab][64][64]; P [64][64] of
 * each stage; the last slabs of Q; slabs of 64 columns, 128-byte swizzle. Registers of the scores group: Q 96, S KEYS / 2;
 * of a values group: O 128. ptxas wants 26 more than accumulators of each. Figures: docs/benchmarks.md; tuning:
 * docs/kernels/sm90_latent.md. */
#include "cuda/device/element.h"
#include "cuda/ptx/dependent.h"
#include "cuda/sm90/latent/load.h"
#include "cuda/sm90/latent/values.h"
#include "cuda/sm90/latent/widen.h"

/* Of a thread, after the launch's 128 have been divided anew: 32 + 160 + 2 * 160 = 4 * 128, or 40 + 152. */
#define PRODUCER_REGISTERS (IS_RAW ? 40 : 32)
#define SCORES_REGISTERS   (IS_RAW ? 152 : 160)
#define VALUES_REGISTERS   160

extern "C" __global__ void __launch_bounds__(LATENT_THREADS, 1) KERNEL(const __grid_constant__ struct latent_params d) {
    extern __shared__ __align__(1024) unsigned char memory[];
    struct shared *shared = (struct shared *)memory;
    if (threadIdx.x == 0) {
        tma_prefetch_map(&d.q), tma_prefetch_map(&d.k);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared->full[stage], 1), mbarrier_init(&shared->raw[stage], 1);
            mbarrier_init(&shared->empty[stage], 4 * VALUE_GROUPS * ARRIVALS);
            mbarrier_init(&shared->weights[stage], 4 * ARRIVALS), mbarrier_init(&shared->next[stage], 4 * ARRIVALS);
        }
        mbarrier_init_fence();
    }
    if (threadIdx.x / 32 == 0) find_share(&shared->walk, &d);
    __syncthreads();
    let_next_start(); /* merge.cu, which waits for all CTAs to end */
    const int group = (int)threadIdx.x / 128;
    if (group == 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x < 32) producer(&d, shared);
#if defined(STORED_DTYPE)
        if (threadIdx.x >= 32) wideners(shared);
#endif
    } else if (group == 1) {
        registers_claim(SCORES_REGISTERS);
        scores_group(&d, shared);
    } else {
        registers_claim(VALUES_REGISTERS);
        values_group(&d, shared, group - 2);
    }
}
