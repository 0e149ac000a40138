/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.h: a `visible` that says no more than a causal mask or a window does. Kernels know where a band begins and ends; of
 * any other function they ask pair by pair, or have its bits packed in a pass before. */
#ifndef STROBE_CORE_SCORE_BAND_H
#define STROBE_CORE_SCORE_BAND_H

#include "core/problem.h"

/* Where the problem's `visible` and its mask are one band together, puts the mask of that band in the place of both, and
 * sets visible_is_band. The problem has been validated. */
void strobe__score_take_band(struct problem *problem);

#endif
