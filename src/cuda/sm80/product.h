/* SPDX-License-Identifier: BSD-3-Clause
 *
 * product.h: the products of the element type that a kernel is compiled for. Those of tf32 parts have no infinities: what is
 * worked out again because a result was not finite has products of true fp32. */
#ifndef STROBE_CUDA_SM80_PRODUCT_H
#define STROBE_CUDA_SM80_PRODUCT_H

#include "cuda/device/element.h"

#if defined(TF32X3)
#include "cuda/sm80/product_ffma.h"
#include "cuda/sm80/product_tf32.h"
#elif defined(ELEMENT_FP32)
#include "cuda/sm80/product_ffma.h"
#define product_rows      product_rows_ffma
#define product_registers product_registers_ffma
#else
#include "cuda/sm80/product_mma.h"
#endif

/* product_rows in a pass that may be one of working out again. */
INLINE void product_rows_in_pass(bool again, float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *a,
                                 int a_row, const unsigned char *b, int b_row, int row_elements) {
#if defined(TF32X3)
    if (again) {
        product_rows_ffma(c, m_tiles, n_tiles, depth, a, a_row, b, b_row, row_elements);
        return;
    }
#endif
    (void)again;
    product_rows(c, m_tiles, n_tiles, depth, a, a_row, b, b_row, row_elements);
}

/* Likewise product_registers. */
INLINE void product_registers_in_pass(bool again, float (*c)[4], int m_tiles, int n_tiles, int depth, const float (*x)[4],
                                      const unsigned char *b, int b_row, int column, int row_elements) {
#if defined(TF32X3)
    if (again) {
        product_registers_ffma(c, m_tiles, n_tiles, depth, x, b, b_row, column, row_elements);
        return;
    }
#endif
    (void)again;
    product_registers(c, m_tiles, n_tiles, depth, x, b, b_row, column, row_elements);
}

#endif
