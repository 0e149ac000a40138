/* SPDX-License-Identifier: BSD-3-Clause
 *
 * element.h: the element type that forward.cu is compiled for, ELEMENT_BF16 or ELEMENT_FP16: its name in wgmma, two
 * of them from fp32, one of them to fp32. */
#ifndef STROBE_CUDA_SM90_FORWARD_ELEMENT_H
#define STROBE_CUDA_SM90_FORWARD_ELEMENT_H

#include "cuda/ptx/convert.h"
#include "math/float16.h"

#if defined(ELEMENT_BF16)
#define STROBE_MMA_TYPE "bf16"
#define pack16          cvt_bf16x2
#define unpack16        bf16_to_float
#else
#define STROBE_MMA_TYPE "f16"
#define pack16          cvt_f16x2
#define unpack16        f16_to_float
#endif

#endif
