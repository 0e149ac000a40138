/* SPDX-License-Identifier: BSD-3-Clause
 *
 * consumer.h: what the consumers of forward.cu and of plain.cu share: who a thread is, ping-pong, and what they wait for.
 * Included by these alone, after their -D constants. */
#ifndef STROBE_CUDA_SM90_FORWARD_CONSUMER_H
#define STROBE_CUDA_SM90_FORWARD_CONSUMER_H

#include "cuda/ptx/warp_group.h"
#include "cuda/sm90/arrivals.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/shared.h"
#include "cuda/sm90/forward/softmax.h"
#include "cuda/sm90/trace.h"
#if defined(CTA_PAIRS)
#include "cuda/ptx/cluster.h"
#endif

INLINE int group_index(void) { return threadIdx.x / 128 - 1; }

/* What the first lane has. All lanes have it, but ptxas knows that after a shuffle alone: it then keeps in uniform
 * registers, and not in each lane's, what follows from it, such as the descriptors of Q. */
INLINE int of_all_lanes(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/* The first of the warp's sixteen rows in a tile. */
INLINE int warp_row(void) { return (threadIdx.x / 32 - 4) * 16; }

/* The warp is done with what the barrier guards. */
INLINE void release(uint64_t *empty) { arrive_together(empty); }

/* The same of a stage of K or V, which with CTA_PAIRS is the copies' to both CTAs when the consumers of both are done with
 * it: the warp arrives at the barrier of each. */
INLINE void release_block(uint64_t *empty) {
#if defined(CTA_PAIRS)
    const int lane = (int)threadIdx.x % 32;
    if (lane >= PAIR * ARRIVALS) return;
    mbarrier_arrive_at(cluster_address(empty, lane % PAIR));
    if (ARRIVALS == 32) mbarrier_arrive_at(cluster_address(empty, (lane + 1) % PAIR));
#else
    release(empty);
#endif
}

/* Ping-pong: the group waits until it may issue its products of block `count`, then lets the next group do so. */
INLINE void ping_pong_wait(struct tracer *tracer, uint32_t count) {
    trace(tracer, STROBE_TRACE_WAIT_PING_PONG, count);
    if (GROUPS > 1) named_barrier_wait(PING_PONG_BARRIER + group_index(), 256);
}

INLINE void ping_pong_arrive(void) {
    if (GROUPS > 1) named_barrier_arrive(PING_PONG_BARRIER + (group_index() + 1) % GROUPS, 256);
}

/* The last group lets the first one begin. */
INLINE void ping_pong_begin(int index) {
    if (GROUPS > 1 && index == GROUPS - 1) named_barrier_arrive(PING_PONG_BARRIER, 256);
}

/* phase: what the wait is in a trace, of block `count`. */
INLINE void wait_full(struct tracer *tracer, uint64_t *full, uint32_t parity, uint32_t phase, uint32_t count) {
    trace(tracer, phase, count);
    mbarrier_wait(full, parity);
}

/* blocks: of the tile, before the one in hand. Where the loop over blocks begins at the diagonal, their numbers do not count
 * them: there the maximum may lag by 2^8. */
INLINE struct lag lag_of(const struct sm90_forward_params *p, int blocks) {
    const struct lag lag = {HAS_SCORE_TERMS ? 1 / (float)LOG2_E : p->lag_unit,
                            HAS_ROW_OFFSETS ? (float)LAGGING_MAXIMUM_LOG2 : p->least_lag, blocks};
    return lag;
}

#endif
