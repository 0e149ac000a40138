/* SPDX-License-Identifier: BSD-3-Clause
 *
 * product.h: the products of the element type that a kernel is compiled for. */
#ifndef STROBE_CUDA_SM80_PRODUCT_H
#define STROBE_CUDA_SM80_PRODUCT_H

#if defined(ELEMENT_FP32)
#include "cuda/sm80/product_ffma.h"
#else
#include "cuda/sm80/product_mma.h"
#endif

#endif
