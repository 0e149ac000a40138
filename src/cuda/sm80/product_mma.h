/* SPDX-License-Identifier: BSD-3-Clause
 *
 * product_mma.h: products of one warp on 16-bit tiles in shared memory (load.h), by mma.sync. Accumulators are [m][n][4]:
 * tile (m, n) is rows 16 m.. and columns 8 n.., a lane's four elements lie as ptx/mma.h says. The counterpart in fp32 is
 * product_ffma.h; the functions have the same names and meanings.
 *
 * Tiles start at multiples of their row's bytes, and rows are powers of two, so a chunk's number has bits of its own in an
 * address: the address of chunk c ^ x is that of chunk x, XOR 16 c. One register and a constant then serve all chunks of a
 * product; written with additions, the compiler kept an address for each chunk and spilled them. */
#ifndef STROBE_CUDA_SM80_PRODUCT_MMA_H
#define STROBE_CUDA_SM80_PRODUCT_MMA_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm80/load.h"

INLINE void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if defined(ELEMENT_FP16)
    mma_m16n8k16_f16(c, a, b0, b1);
#else
    mma_m16n8k16_bf16(c, a, b0, b1);
#endif
}

/* c[m][n] += A B^T over `depth` columns: A rows from a_row, B rows from b_row, both tiles [.][row elements]. */
INLINE void product_rows(float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *a, int a_row,
                         const unsigned char *b, int b_row, int row_elements) {
    const int lane = (int)threadIdx.x % 32, row_bytes = 2 * row_elements, swizzle = lane & 7;
    const uint32_t a_start = shared_address(a) + (uint32_t)((a_row + lane % 16) * row_bytes) +
                             (uint32_t)((lane / 16 ^ swizzle) << 4);
    const uint32_t b_start = shared_address(b) + (uint32_t)((b_row + lane % 8 + lane / 16 * 8) * row_bytes) +
                             (uint32_t)((lane / 8 % 2 ^ swizzle) << 4);
#pragma unroll
    for (int k = 0; k < depth / 16; ++k) {
        const uint32_t a_chunk = a_start ^ (uint32_t)(2 * k << 4), b_chunk = b_start ^ (uint32_t)(2 * k << 4);
        uint32_t left[4][4];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) ldmatrix_x4(left[m], a_chunk + (uint32_t)(m * 16 * row_bytes));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            uint32_t right[4];
            ldmatrix_x4(right, b_chunk + (uint32_t)(n * 8 * row_bytes));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma(c[m * n_tiles + n], left[m], right[0], right[1]);
                mma(c[m * n_tiles + n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* c[m][n] += X B: X in shared memory, [.][x_row_elements] from row `row` on or, transposed, [depth][x_row_elements] from
 * column `row` on; B [depth][row_elements] from `column` on. */
INLINE void product_stored(float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *x, int row,
                           int x_row_elements, bool transposed, const unsigned char *b, int column, int row_elements) {
    const int lane = (int)threadIdx.x % 32, row_bytes = 2 * row_elements, x_row_bytes = 2 * x_row_elements;
    const int swizzle = lane & 7;
    const uint32_t x_start = shared_address(x) + (transposed ? (uint32_t)((lane % 8 + lane / 16 * 8) * x_row_bytes) +
                                                                   (uint32_t)((lane / 8 % 2 ^ row / 8 ^ swizzle) << 4)
                                                             : (uint32_t)((row + lane % 16) * x_row_bytes) +
                                                                   (uint32_t)((lane / 16 ^ swizzle) << 4));
    const uint32_t b_start = shared_address(b) + (uint32_t)(lane % 16 * row_bytes) +
                             (uint32_t)((lane / 16 ^ column / 8 ^ swizzle) << 4);
#pragma unroll
    for (int k = 0; k < depth / 16; ++k) {
        uint32_t left[4][4];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            if (transposed)
                ldmatrix_x4_trans(left[m], (x_start ^ (uint32_t)(2 * m << 4)) + (uint32_t)(k * 16 * x_row_bytes));
            else
                ldmatrix_x4(left[m], (x_start ^ (uint32_t)(2 * k << 4)) + (uint32_t)(m * 16 * x_row_bytes));
        }
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            uint32_t right[4];
            ldmatrix_x4_trans(right, (b_start ^ (uint32_t)(n << 4)) + (uint32_t)(k * 16 * row_bytes));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma(c[m * n_tiles + n], left[m], right[0], right[1]);
                mma(c[m * n_tiles + n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* c[m][n] += X B: X [16 m_tiles][depth] in accumulator registers x[m][depth / 8], B rows from b_row, columns from `column`.
 */
INLINE void product_registers(float (*c)[4], int m_tiles, int n_tiles, int depth, const float (*x)[4],
                              const unsigned char *b, int b_row, int column, int row_elements) {
    const int lane = (int)threadIdx.x % 32, row_bytes = 2 * row_elements, swizzle = lane & 7;
    const uint32_t b_start = shared_address(b) + (uint32_t)((b_row + lane % 16) * row_bytes) +
                             (uint32_t)((lane / 16 ^ swizzle) << 4);
#pragma unroll
    for (int k = 0; k < depth / 16; ++k) {
        uint32_t left[4][4];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float *pair = &x[m * (depth / 8) + 2 * k + r / 2][r % 2 * 2];
                left[m][r] = pack(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            uint32_t right[4];
            ldmatrix_x4_trans(right, (b_start ^ (uint32_t)((column / 8 + n) << 4)) + (uint32_t)(k * 16 * row_bytes));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma(c[m * n_tiles + n], left[m], right[0], right[1]);
                mma(c[m * n_tiles + n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

#endif
