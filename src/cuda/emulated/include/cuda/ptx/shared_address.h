/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shared_address.h: addresses in shared memory, for src/cuda/ptx/shared_address.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_SHARED_ADDRESS_H
#define STROBE_CUDA_EMULATED_PTX_SHARED_ADDRESS_H

#include "cuda/emulated/machine.h"

static inline uint32_t shared_address(const void *pointer) { return emulated_shared_address(pointer); }

#endif
