/* SPDX-License-Identifier: BSD-3-Clause
 *
 * thread.h: for src/cuda/ptx/thread.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_THREAD_H
#define STROBE_CUDA_EMULATED_PTX_THREAD_H

static inline int thread_anew(void) { return (int)threadIdx.x; }

#endif
