/* SPDX-License-Identifier: BSD-3-Clause
 *
 * product_tf32.h: the products of product_mma.h on fp32 tiles, by the tensor cores' products of tf32. A number of fp32, 24
 * bits, is the sum of two of 11: the head is x rounded, the tail is what is left, rounded. A product of two is three,
 *
 *     a b = head head + head tail + tail head,     left out: tail tail, 2^-24 of it at most
 *
 * Tensor cores cut their sums off where fp32 rounds them to nearest, and what is cut off always points to zero. So a sum
 * over STEPS instructions starts from zero, small products first, and is added to the accumulators by the fp32 units.
 *
 * An infinity has no tail: head + tail is NaN. Kernels that find a result not finite work it out again by product_ffma.h. */
#ifndef STROBE_CUDA_SM80_PRODUCT_TF32_H
#define STROBE_CUDA_SM80_PRODUCT_TF32_H

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/tf32.h"
#include "cuda/sm80/load.h"

enum { STEPS = 2 }; /* of eight elements of depth each */

/* Heads and tails of an operand's registers. The head is rounded by an addition to its bits, ties away from zero: cvt.rna is
 * four instructions on Hopper. The tail has 12 bits, of which a product reads 11: where the last is 1, rounding would be off
 * by as much. Of a NaN the head may be anything, and the tail is NaN. */
INLINE void split(uint32_t *head, uint32_t *tail, const uint32_t *x, int count) {
#pragma unroll
    for (int n = 0; n < count; ++n) {
        head[n] = (x[n] + 0x1000u) & 0xffffe000u;
        tail[n] = __float_as_uint(__uint_as_float(x[n]) - __uint_as_float(head[n]));
    }
}

struct left_parts {
    uint32_t head[STEPS][4], tail[STEPS][4];
};

struct right_parts {
    uint32_t head[STEPS][2], tail[STEPS][2];
};

/* c += A B of one 16 x 8 tile over STEPS instructions of depth. */
INLINE void add_product(float c[4], const struct left_parts *a, const struct right_parts *b) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        mma_m16n8k8_tf32(sum, a->tail[s], b->head[s][0], b->head[s][1]);
        mma_m16n8k8_tf32(sum, a->head[s], b->tail[s][0], b->tail[s][1]);
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) mma_m16n8k8_tf32(sum, a->head[s], b->head[s][0], b->head[s][1]);
#pragma unroll
    for (int x = 0; x < 4; ++x) c[x] += sum[x];
}

/* c[m][n] += A B^T over `depth` columns: A rows from a_row, B rows from b_row, both tiles [.][row elements]. */
INLINE void product_rows(float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *a, int a_row,
                         const unsigned char *b, int b_row, int row_elements) {
    const int lane = (int)threadIdx.x % 32, row_bytes = 4 * row_elements, swizzle = lane & 7;
    const uint32_t a_start = shared_address(a) + (uint32_t)((a_row + lane % 16) * row_bytes) +
                             (uint32_t)((lane / 16 ^ swizzle) << 4);
    const uint32_t b_start = shared_address(b) + (uint32_t)((b_row + lane % 8) * row_bytes) +
                             (uint32_t)((lane / 8 ^ swizzle) << 4);
#pragma unroll 2
    for (int k = 0; k < depth / (8 * STEPS); ++k) {
        struct left_parts left[2];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                uint32_t x[4];
                ldmatrix_x4(x, (a_start ^ (uint32_t)(2 * (STEPS * k + s) << 4)) + (uint32_t)(m * 16 * row_bytes));
                split(left[m].head[s], left[m].tail[s], x, 4);
            }
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) {
            struct right_parts right;
            uint32_t x[2 * STEPS];
            ldmatrix_x4(x, (b_start ^ (uint32_t)(2 * STEPS * k << 4)) + (uint32_t)(n * 8 * row_bytes));
            split(right.head[0], right.tail[0], x, 2 * STEPS);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) add_product(c[m * n_tiles + n], &left[m], &right);
        }
    }
}

/* Where a lane finds B's numbers for a step of depth, relative to its rows and column: of rows 2t and 2t + 1, which are k =
 * t and t + 4 of an instruction, column g of a tile. Its neighbours' lie in other banks. */
struct right_place {
    const unsigned char *rows;
    uint32_t start[2];
    int row_bytes;
};

INLINE struct right_place place_right(const unsigned char *b, int b_row, int column, int row_elements) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    struct right_place place;
    place.row_bytes = 4 * row_elements;
    place.rows = b + b_row * place.row_bytes + column / 32 * 128;
#pragma unroll
    for (int e = 0; e < 2; ++e)
        place.start[e] = chunk_at(place.row_bytes, 2 * t + e, column % 32 / 4 + g / 4) + (uint32_t)(g % 4 * 4);
    return place;
}

/* c[m][n] += X B over STEPS instructions from step `step` on. */
INLINE void add_products(float (*c)[4], int m_tiles, int n_tiles, const struct left_parts *left,
                         const struct right_place *place, int step) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        struct right_parts right;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            uint32_t x[2];
#pragma unroll
            for (int e = 0; e < 2; ++e)
                x[e] = *(const uint32_t *)(place->rows + 8 * (step + s) * place->row_bytes + n / 4 * 128 +
                                           (place->start[e] ^ (uint32_t)(n % 4 << 5)));
            split(right.head[s], right.tail[s], x, 2);
        }
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) add_product(c[m * n_tiles + n], &left[m], &right);
    }
}

/* c[m][n] += X B: X [16 m_tiles][depth] in accumulator registers x[m][depth / 8], B rows from b_row, columns from `column`.
 */
INLINE void product_registers(float (*c)[4], int m_tiles, int n_tiles, int depth, const float (*x)[4],
                              const unsigned char *b, int b_row, int column, int row_elements) {
    const struct right_place place = place_right(b, b_row, column, row_elements);
#pragma unroll
    for (int k = 0; k < depth / 8; k += STEPS) {
        struct left_parts left[2];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const float *from = x[m * (depth / 8) + k + s]; /* columns 2t, 2t + 1 of two rows */
                const uint32_t ordered[4] = {__float_as_uint(from[0]), __float_as_uint(from[2]), __float_as_uint(from[1]),
                                             __float_as_uint(from[3])};
                split(left[m].head[s], left[m].tail[s], ordered, 4);
            }
        add_products(c, m_tiles, n_tiles, left, &place, k);
    }
}

/* c[m][n] += X B: X in shared memory, [.][x_row_elements] from row `row` on or, transposed, [depth][x_row_elements] from
 * column `row` on; B [depth][row_elements] from `column` on. */
INLINE void product_stored(float (*c)[4], int m_tiles, int n_tiles, int depth, const unsigned char *x, int row,
                           int x_row_elements, bool transposed, const unsigned char *b, int column, int row_elements) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, x_row_bytes = 4 * x_row_elements;
    const struct right_place place = place_right(b, 0, column, row_elements);
#pragma unroll 2
    for (int k = 0; k < depth / 8; k += STEPS) {
        struct left_parts left[2];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int depth_at = 8 * (k + s) + 2 * t, row_at = row + 16 * m + g; /* columns 2t, 2t + 1 of two rows */
                uint32_t ordered[4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int at = row_at + 8 * half;
                    if (transposed) {
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            ordered[half + 2 * e] = *(const uint32_t *)(x + chunk_at(x_row_bytes, depth_at + e, at / 4) +
                                                                        (uint32_t)(at % 4 * 4));
                    } else {
                        const uint2 two = *(const uint2 *)(x + chunk_at(x_row_bytes, at, depth_at / 4) +
                                                           (uint32_t)(depth_at % 4 * 4));
                        ordered[half] = two.x, ordered[half + 2] = two.y;
                    }
                }
                split(left[m].head[s], left[m].tail[s], ordered, 4);
            }
        add_products(c, m_tiles, n_tiles, left, &place, k);
    }
}

#endif
