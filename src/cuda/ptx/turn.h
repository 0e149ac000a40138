/* SPDX-License-Identifier: BSD-3-Clause
 *
 * turn.h: a counter in global memory by which CTAs take turns (PTX ISA 9.7.9.8 "ld", 9.7.13.8 "red"): what a CTA wrote
 * before it gave the turn is seen by the one that takes it. */
#ifndef STROBE_CUDA_PTX_TURN_H
#define STROBE_CUDA_PTX_TURN_H

#include <stdint.h>

static __device__ __forceinline__ void turn_wait(const uint32_t *counter, uint32_t mine) {
    uint32_t turn;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(turn) : "l"(counter) : "memory");
    while (turn != mine);
}

static __device__ __forceinline__ void turn_give(uint32_t *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

#endif
