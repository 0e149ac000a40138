/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stored.h: how the numbers of the cache are stored that a kernel is compiled for: as elements or, with STORED_INT8 or
 * STORED_FP8_E4M3 by -D, in a byte each. Decoding widens them as operands of its products (sm80/decode_bytes.h), latent
 * attention in shared memory (sm90/latent/widen.h). */
#ifndef STROBE_CUDA_DEVICE_STORED_H
#define STROBE_CUDA_DEVICE_STORED_H

#include "cuda/device/element.h"

#if defined(STORED_INT8)
#define STORED_DTYPE CUDA_INT8
#elif defined(STORED_FP8_E4M3)
#define STORED_DTYPE CUDA_FP8
#endif

#if defined(STORED_DTYPE)
#define STORED_BYTES 1
typedef uint8_t stored;
#else
#define STORED_BYTES ELEMENT_BYTES
typedef element stored;
#endif

#endif
