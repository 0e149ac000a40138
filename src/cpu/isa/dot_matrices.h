/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dot_matrices.h: tile products of ARM's BFMMLA, which multiplies 2 rows of A, 4 elements each, by 2 columns of B: a tile
 * product is 512 of them. Registers hold 8 rows x 8 columns of sums as 16 squares of 2 x 2. Both operands lie in memory as
 * tiles do: two rows of A, 8 elements each, become two operands, the first and the second 4 of both, and so do 4 columns of
 * two rows of B, whose pairs of elements follow each other. A is laid out so once for all columns, B for each 8 rows,
 * between the products. */
#ifndef STROBE_CPU_ISA_DOT_MATRICES_H
#define STROBE_CPU_ISA_DOT_MATRICES_H

#include "cpu/isa/neon.h"

enum {
    DOT_COLUMNS = 8,
    DOT_SQUARES = 4,           /* of 2 x 2 sums, in a row or column of squares */
    DOT_DEPTHS = DOT_ROWS / 2, /* of 4 elements, in the rows of a tile */
};

static inline uint32x4_t dot_load_16(const char *at) { return vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)at)); }
static inline float32x4_t dot_load_sums(const char *at) { return vreinterpretq_f32_u32(dot_load_16(at)); }

/* Sums of two rows and four columns as two squares, and back. */
static inline void dot_squares(float32x4_t square[2], float32x4_t row, float32x4_t below) {
    const uint64x2_t a = vreinterpretq_u64_f32(row), b = vreinterpretq_u64_f32(below);
    square[0] = vreinterpretq_f32_u64(vzip1q_u64(a, b));
    square[1] = vreinterpretq_f32_u64(vzip2q_u64(a, b));
}

/* Eight rows of A as operands. */
static inline void dot_lay_out(bfloat16x8_t to[DOT_DEPTHS][DOT_SQUARES], const char *a, size_t row) {
    for (size_t m = 0; m < DOT_SQUARES; ++m, a += 2 * row)
        for (size_t k = 0; k < DOT_DEPTHS; k += 2) {
            const uint64x2_t upper = vreinterpretq_u64_u32(dot_load_16(a + 8 * k));
            const uint64x2_t lower = vreinterpretq_u64_u32(dot_load_16(a + 8 * k + row));
            to[k][m] = vreinterpretq_bf16_u64(vzip1q_u64(upper, lower));
            to[k + 1][m] = vreinterpretq_bf16_u64(vzip2q_u64(upper, lower));
        }
}

/* Four elements of each row of A, and two rows of B. */
static inline __attribute__((always_inline)) void
dot_step(float32x4_t sum[DOT_SQUARES][DOT_SQUARES], const bfloat16x8_t rows[DOT_SQUARES], const char *b, size_t b_row) {
    bfloat16x8_t columns[DOT_SQUARES];
#pragma GCC unroll 2
    for (size_t n = 0; n < DOT_SQUARES / 2; ++n) {
        const uint32x4_t upper = dot_load_16(b + 16 * n), lower = dot_load_16(b + b_row + 16 * n);
        columns[2 * n] = vreinterpretq_bf16_u32(vzip1q_u32(upper, lower));
        columns[2 * n + 1] = vreinterpretq_bf16_u32(vzip2q_u32(upper, lower));
    }
#pragma GCC unroll 4
    for (size_t m = 0; m < DOT_SQUARES; ++m)
#pragma GCC unroll 4
        for (size_t n = 0; n < DOT_SQUARES; ++n) sum[m][n] = vbfmmlaq_f32(sum[m][n], rows[m], columns[n]);
}

/* 8 columns from `column` on of 8 rows of sums: c + the products of a chain, rows[n] b[n]. */
static inline void dot_block(float (*sums)[LANES], struct dot_rows c, bfloat16x8_t (*rows)[DOT_DEPTHS][DOT_SQUARES],
                             const struct dot_rows *b, int count, size_t column) {
    float32x4_t sum[DOT_SQUARES][DOT_SQUARES];
#pragma GCC unroll 4
    for (size_t m = 0; m < DOT_SQUARES; ++m)
#pragma GCC unroll 2
        for (size_t n = 0; n < DOT_SQUARES; n += 2) {
            const char *at = c.at + 2 * m * c.row + (column + 2 * n) * sizeof(float);
            dot_squares(&sum[m][n], dot_load_sums(at), dot_load_sums(at + c.row));
        }
    for (int n = 0; n < count; ++n) {
        const char *at = b[n].at + column * sizeof(float);
#pragma GCC unroll 1 /* more would be interleaved, and does not fit the registers */
        for (size_t k = 0; k < DOT_DEPTHS; ++k, at += 2 * b[n].row) dot_step(sum, rows[n][k], at, b[n].row);
    }
#pragma GCC unroll 4
    for (size_t m = 0; m < DOT_SQUARES; ++m)
#pragma GCC unroll 2
        for (size_t n = 0; n < DOT_SQUARES; n += 2) {
            float32x4_t row[2];
            dot_squares(row, sum[m][n], sum[m][n + 1]);
            vst1q_f32(&sums[2 * m][column + 2 * n], row[0]);
            vst1q_f32(&sums[2 * m + 1][column + 2 * n], row[1]);
        }
}

/* Half of the rows of one or two tiles of sums: += the products of a chain, a[n] b[n] (and a[n] more[n]), from row `first`
 * on. */
static inline void dot_half(float (*sums)[LANES], float (*others)[LANES], struct dot_rows c, struct dot_rows other,
                            const struct dot_rows *a, const struct dot_rows *b, const struct dot_rows *more, int count,
                            size_t first, bool two) {
    bfloat16x8_t rows[MOST_WAITING][DOT_DEPTHS][DOT_SQUARES];
    for (int n = 0; n < count; ++n) dot_lay_out(rows[n], a[n].at + first * a[n].row, a[n].row);
    c.at += first * c.row;
    other.at += first * other.row;
    for (size_t column = 0; column < LANES; column += DOT_COLUMNS) {
        dot_block(sums + first, c, rows, b, count, column);
        if (two) dot_block(others + first, other, rows, more, count, column);
    }
}

#endif
