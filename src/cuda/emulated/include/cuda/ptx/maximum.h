/* SPDX-License-Identifier: BSD-3-Clause
 *
 * maximum.h: for src/cuda/ptx/maximum.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_MAXIMUM_H
#define STROBE_CUDA_EMULATED_PTX_MAXIMUM_H

static inline float larger_or_nan(float a, float b) { return a != a ? a : a < b || b != b ? b : a; }

#endif
