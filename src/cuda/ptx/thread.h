/* SPDX-License-Identifier: BSD-3-Clause
 *
 * thread.h: the thread's number. */
#ifndef STROBE_CUDA_PTX_THREAD_H
#define STROBE_CUDA_PTX_THREAD_H

/* No instruction, but the compiler takes the number for news: what is worked out from it where results are stored is worked
 * out there, and not in front of a loop, to be kept in registers that the loop needs. */
static __device__ __forceinline__ int thread_anew(void) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

#endif
