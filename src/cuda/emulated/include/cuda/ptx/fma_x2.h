/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fma_x2.h: for src/cuda/ptx/fma_x2.h. */
#ifndef STROBE_CUDA_EMULATED_PTX_FMA_X2_H
#define STROBE_CUDA_EMULATED_PTX_FMA_X2_H

#include "cuda/ptx/convert.h"

/* Rounded to fp32 first: a last digit may differ from the instruction, which rounds once. */
static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    return cvt_bf16x2(
        fmaf(bf16_to_float((uint16_t)a), bf16_to_float((uint16_t)b), bf16_to_float((uint16_t)c)),
        fmaf(bf16_to_float((uint16_t)(a >> 16)), bf16_to_float((uint16_t)(b >> 16)), bf16_to_float((uint16_t)(c >> 16))));
}
static inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    return cvt_f16x2(
        fmaf(fp16_to_float((uint16_t)a), fp16_to_float((uint16_t)b), fp16_to_float((uint16_t)c)),
        fmaf(fp16_to_float((uint16_t)(a >> 16)), fp16_to_float((uint16_t)(b >> 16)), fp16_to_float((uint16_t)(c >> 16))));
}

#endif
