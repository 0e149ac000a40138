/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.h (host): the pass before a kernel that has a boolean mask, a block mask or the user's function of who sees whom,
 * see device/visible.h. */
#ifndef STROBE_CUDA_HOST_VISIBLE_H
#define STROBE_CUDA_HOST_VISIBLE_H

#include "core/kernel.h"
#include "cuda/device/visible.h"

/* What the pass is for. */
#define VISIBLE_FEATURES (MASK_FEATURES | FEATURE(VISIBLE))

/* Which axis of the scores a kernel's owners lie along. */
enum owners { OWNERS_ARE_ROWS, OWNERS_ARE_KEYS };

/* Whether a unit of the block mask is visible or hidden as a whole. */
bool strobe__cuda_blocks_are_units(const struct problem *problem);

/* The bytes of workspace that states and bits take, a multiple of 16; 0 without a mask. */
size_t strobe__cuda_visible_bytes(const struct problem *problem, enum owners owners);

/* Fills in what the kernel is given, whose states and bits lie in `memory`, aligned to 16 bytes; and launches the pass. */
strobe_status strobe__cuda_visible(const struct problem *problem, enum owners owners, void *memory, struct visible *visible,
                                   void *stream);

/* The same for kernels that ask masks pair by pair and only need the bits of the user's function; nothing without one. */
size_t strobe__cuda_function_bytes(const struct problem *problem);
strobe_status strobe__cuda_function(const struct problem *problem, void *memory, struct visible *visible, void *stream);

#endif
