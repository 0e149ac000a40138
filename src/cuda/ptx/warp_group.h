/* SPDX-License-Identifier: BSD-3-Clause
 *
 * warp_group.h: what warp groups of a specialised kernel tell each other and the scheduler: registers that move from one to
 * the other (PTX ISA 9.7.19.5, setmaxnreg) and named barriers (9.7.13.1, bar). */
#ifndef STROBE_CUDA_PTX_WARP_GROUP_H
#define STROBE_CUDA_PTX_WARP_GROUP_H

/* Constants, multiples of 8; every warp of the group must come here. */
#define registers_release(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count))
#define registers_claim(count)   asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count))

/* Barrier `id` (1..15) of `threads` threads: those that wait and those that only arrive. */
static __device__ __forceinline__ void named_barrier_wait(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same value, which the compiler cannot follow: what depends on it is worked out here, not kept from before a loop. */
static __device__ __forceinline__ int unforeseen(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

#endif
