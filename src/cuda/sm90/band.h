/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.h: a problem's mask as the Hopper kernels are given it: struct band32 of math/mask.h, whose functions they ask. */
#ifndef STROBE_CUDA_SM90_BAND_H
#define STROBE_CUDA_SM90_BAND_H

#include "core/kernel.h"

/* The shifts of struct band32. Where `bottom_right`, the device adds keys - rows to both, since it alone knows the lengths
 * of packed sequences. */
struct sm90_band {
    int32_t first_shift, end_shift, bottom_right;
};

struct sm90_band strobe__sm90_band(const struct problem *problem);
#endif
