/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cp_async_word.h: for src/cuda/ptx/cp_async_word.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_CP_ASYNC_WORD_H
#define STROBE_CUDA_EMULATED_PTX_CP_ASYNC_WORD_H

#include "cuda/ptx/cp_async.h"

static inline void cp_async_4(uint32_t shared, const void *global) { emulated_start_cp_async(shared, global, 4, 4); }

#endif
