/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cp_async_word.h: a copy of four bytes from global to shared memory that runs beside the thread. From sm_80 on. */
#ifndef STROBE_CUDA_PTX_CP_ASYNC_WORD_H
#define STROBE_CUDA_PTX_CP_ASYNC_WORD_H

#include <stdint.h>

/* Both addresses are multiples of 4. It belongs to a group as the copies of cp_async.h do. PTX ISA 9.7.9.25.3.1 "cp.async".
 */
static __device__ __forceinline__ void cp_async_4(uint32_t shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

#endif
