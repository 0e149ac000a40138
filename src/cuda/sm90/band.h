/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.h: a problem's mask as the Hopper kernels have it. */
#ifndef STROBE_CUDA_SM90_BAND_H
#define STROBE_CUDA_SM90_BAND_H

#include "core/kernel.h"

/* Row i sees the keys i + first_shift .. i + end_shift - 1 of those there are; where `bottom_right`, keys - rows is added to
 * both shifts on the device, which alone knows the lengths of packed sequences. */
struct sm90_band {
    int32_t first_shift, end_shift, bottom_right;
};

struct sm90_band strobe__sm90_band(const struct problem *problem);
#endif
