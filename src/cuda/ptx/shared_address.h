/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shared_address.h: the address in shared memory that the instructions of this folder take. PTX ISA 9.7.9.21 "cvta". */
#ifndef STROBE_CUDA_PTX_SHARED_ADDRESS_H
#define STROBE_CUDA_PTX_SHARED_ADDRESS_H

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

#endif
