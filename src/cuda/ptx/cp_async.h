/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cp_async.h: copies from global to shared memory that run beside the thread, in groups. From sm_80 on. */
#ifndef STROBE_CUDA_PTX_CP_ASYNC_H
#define STROBE_CUDA_PTX_CP_ASYNC_H

#include <stdint.h>

/* 16 bytes, past L1; only `bytes` of them are read, the rest of the destination becomes 0. Both addresses are multiples
 * of 16. PTX ISA 9.7.9.25.3.1 "cp.async". */
static __device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/* Closes a group. PTX ISA 9.7.9.25.3.2 "cp.async.commit_group". */
static __device__ __forceinline__ void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `pending`, a constant, of this thread's youngest groups are on their way.
 * PTX ISA 9.7.9.25.3.3 "cp.async.wait_group". */
#define cp_async_wait(pending) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory")

#endif
