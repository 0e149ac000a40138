/* SPDX-License-Identifier: BSD-3-Clause
 *
 * scratch.h: the layout of a worker's memory. One function of each kernel both counts the bytes and hands out the pieces, so
 * that the two cannot differ. */
#ifndef STROBE_CPU_SCRATCH_H
#define STROBE_CPU_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* The memory of a worker: `bytes` each, one after the other from the start of the workspace. */
static inline float *worker_memory(char *workspace, size_t bytes, int32_t worker) {
    return (float *)(void *)(workspace + (size_t)worker * bytes);
}

/* Takes the next piece, of `floats` floats and 64-byte aligned like the base; with base NULL only counts. */
static inline float *take(float *base, size_t *used, int64_t floats) {
    float *piece = base ? base + *used : NULL;
    *used += ((size_t)floats + 15) / 16 * 16;
    return piece;
}

#endif
