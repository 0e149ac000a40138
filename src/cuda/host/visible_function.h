/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_function.h (host): the pass that works out the states and bits of the user's function of who sees whom,
 * device/visible_function.cu. */
#ifndef STROBE_CUDA_HOST_VISIBLE_FUNCTION_H
#define STROBE_CUDA_HOST_VISIBLE_FUNCTION_H

#include "core/kernel.h"
#include "cuda/device/visible.h"

/* NULL, or why the function's steps are too many for the device. */
const char *strobe__visible_function_reject(const struct problem *problem);

/* Whether it is the same for all batch entries, query heads, rows. */
void strobe__visible_function_repeats(const struct problem *problem, bool repeats[3]);

/* Launches it. pass: its mask, if there is one, is combined with the function. */
strobe_status strobe__visible_function(const struct problem *problem, const struct visible_pass *pass, void *stream);

#endif
