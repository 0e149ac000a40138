/* SPDX-License-Identifier: BSD-3-Clause
 *
 * red.h: for src/cuda/ptx/red.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_RED_H
#define STROBE_CUDA_EMULATED_PTX_RED_H

static inline void red_add_4(float *run, int lane, const float c[4]) {
    for (int x = 0; x < 4; ++x) atomicAdd(run + 4 * lane + x, c[x]);
}
static inline float4 red_read_4(const float *run, int lane) { return *(const float4 *)(run + 4 * lane); }

#endif
