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

/* Where the pass, or what stands in for it, is among plan->more. */
enum { VISIBLE_PASS = 2 };

/* Whether a unit of the block mask is visible or hidden as a whole. */
bool strobe__cuda_blocks_are_units(const struct problem *problem);

/* Whether the pass is worth a launch for kernels that can do without: where there is a whole unit of rows, or lists are
 * brought. */
bool strobe__cuda_asks_what_is_visible(const struct problem *problem);

/* Whether the pass runs before a kernel whose owners are rows. */
bool strobe__cuda_visible_is_made(const struct problem *problem);

/* Enters the pass, or that lists are brought instead, into the plan. */
void strobe__cuda_visible_choose(struct plan *plan);

/* The bytes of workspace that states and bits take, a multiple of 16; 0 without a mask, and where lists are brought. */
size_t strobe__cuda_visible_bytes(const struct problem *problem, enum owners owners);

/* Fills in what the kernel is given. Its states and bits lie in the problem's lists, or else in `memory`, aligned to 16
 * bytes, where the pass that is launched puts them. */
strobe_status strobe__cuda_visible(const struct problem *problem, enum owners owners, void *memory, struct visible *visible,
                                   void *stream);

/* The same for kernels that ask masks pair by pair and only need the bits of the user's function; nothing without one. */
size_t strobe__cuda_function_bytes(const struct problem *problem);
strobe_status strobe__cuda_function(const struct problem *problem, void *memory, struct visible *visible, void *stream);

/* Lists that a caller keeps. */
extern const struct mask_lists_maker strobe__cuda_mask_lists;

#endif
