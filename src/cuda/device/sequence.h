/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sequence.h: reads the arrays that a varlen problem has in device memory: cumulative lengths of packed tensors, and used
 * lengths. */
#ifndef STROBE_CUDA_DEVICE_SEQUENCE_H
#define STROBE_CUDA_DEVICE_SEQUENCE_H

#include "cuda/device/element.h"

/* A row's number in a packed tensor. An includer whose tensors have less than 2^31 rows defines POSITIONS_32: then the low
 * half of a 64-bit entry will do, which saves instructions. */
#if defined(POSITIONS_32)
typedef int32_t position;
#else
typedef int64_t position;
#endif

/* Cuts x to 0..most. The host cannot read the lengths of sequences: those beyond the stated bounds are cut to these, so that
 * nothing is written out of place. */
INLINE int clamp(position x, int most) { return (int)(x < 0 ? 0 : x < most ? x : most); }

/* Entry `at` of an array of 32-bit or 64-bit integers. */
INLINE position entry(const void *entries, int index64, position at) {
#if defined(POSITIONS_32)
    return ((const int32_t *)entries)[index64 ? 2 * at : at];
#else
    return index64 ? ((const int64_t *)entries)[at] : ((const int32_t *)entries)[at];
#endif
}

#endif
