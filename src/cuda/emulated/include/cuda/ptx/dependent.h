/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dependent.h: for src/cuda/ptx/dependent.h: kernels run one after the other. */
#ifndef STROBE_CUDA_EMULATED_PTX_DEPENDENT_H
#define STROBE_CUDA_EMULATED_PTX_DEPENDENT_H

static inline void let_next_start(void) {}
static inline void wait_for_previous(void) {}

#endif
