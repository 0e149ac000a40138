/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scratch.h: a worker's memory is laid out by one function that both counts and hands out, so that the two cannot differ. */
#ifndef STROBE_CPU_SCRATCH_H
#define STROBE_CPU_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* The next piece of `floats` floats, 64-byte aligned like the base; with base NULL it only counts. */
static inline float *take(float *base, size_t *used, int64_t floats) {
    float *piece = base ? base + *used : NULL;
    *used += ((size_t)floats + 15) / 16 * 16;
    return piece;
}

#endif
