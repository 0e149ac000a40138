/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.h: the arithmetic of strobe_quantise, the same text for the CPU and the GPU, so that both store the same bytes:
 * each operation is one rounding of fp32, and every sum has one order; a transform's butterflies go from far columns to near
 * ones. And what both are given about one of q, k, v. */
#ifndef STROBE_MATH_QUANTISE_H
#define STROBE_MATH_QUANTISE_H

#include "math/fp8.h"
#include "math/rotary.h"

enum {
    MOST_HADAMARD_DIM = 256,
    MEAN_PARTS = 256, /* partial sums of a mean: part t adds rows t, t + 256, ...; then part t adds part t + 128, ... */
};

/* One of q, k, v: what is read, what is written, what happens on the way. Strides are batch, row, head, in elements. A
 * packed tensor is one batch entry of `rows` rows. */
struct quantise_tensor {
    const void *from;
    uint8_t *to;
    float *scale;
    int64_t from_stride[3], to_stride[3], scale_stride[3];
    const void *cu_seqlens, *used; /* NULL: none */
    float *mean;                   /* [sequences][heads][dim], subtracted; NULL: not */
    int64_t sequences;             /* entries of the arrays of lengths and of the means */
    int64_t batch, rows, heads, dim;
    int64_t block; /* rows that share a scale; 0: the sequence */
    int64_t start; /* the position of row 0 of a sequence, for rotary embedding */
    int32_t from_dtype, index_bits, int8;
    int32_t rotary, hadamard; /* flags */
    int32_t group;            /* heads that share a mean in lse_shift */
    float *lse_shift;         /* NULL: not wanted */
    int64_t shift_stride[3];  /* batch, row, head */
    const float *key_mean;    /* of lse_shift, [sequences][heads / group][dim]; NULL: 0 */
    float scale_of_scores;
};

/* Blocks of no rows have no scales; a sequence has one, where there is memory for it, and a mean in any case. */
STROBE_INLINE int quantise_has_scales(const struct quantise_tensor *t) { return t->rows > 0 || (t->block == 0 && t->scale); }

/* What q and k share. */
struct quantise_choices {
    const float *cos, *sin;    /* [positions][pairs]; NULL: angles are worked out */
    const uint64_t *frequency; /* [pairs]: 2^-64 circles from a position to the next; NULL: there are tables */
    int64_t positions;
    int64_t pairs; /* of columns that are turned */
    int32_t interleaved;
    uint32_t signs[MOST_HADAMARD_DIM / 32]; /* bit c % 32 of word c / 32: column c changes its sign */
};

/* The angle of a pair of columns at a position; one that the tables do not have is a NaN. */
STROBE_INLINE struct rotary_angle rotary_angle_at(const struct quantise_choices *c, int64_t position, int64_t pair) {
    if (c->frequency) return rotary_angle_of((uint64_t)position * c->frequency[pair]);
    const int there = position >= 0 && position < c->positions;
    const float nan = bits_float(0x7fc00000u);
    const struct rotary_angle angle = {there ? c->cos[position * c->pairs + pair] : nan,
                                       there ? c->sin[position * c->pairs + pair] : nan};
    return angle;
}

STROBE_INLINE int is_finite_float(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

STROBE_INLINE float with_sign_of(const struct quantise_choices *c, int64_t column, float x) {
    return c->signs[column / 32] >> column % 32 & 1 ? -x : x;
}

/* The columns of a Hadamard transform: the largest power of two that is not above dim. Where that is not dim, a second one
 * ends with the row and overlaps the first: orthogonal, for any dim. Signs change again where they overlap, or it would undo
 * it. */
STROBE_INLINE int64_t hadamard_columns(int64_t dim) {
    int64_t columns = 1;
    while (2 * columns <= dim) columns *= 2;
    return columns;
}

/* 1 / sqrt(columns), columns a power of two. */
STROBE_INLINE float hadamard_norm(int64_t columns) {
    float norm = 1;
    for (; columns >= 4; columns /= 4) norm *= 0.5f;
    return columns == 2 ? norm * 0.70710678f : norm;
}

/* The scale of rows whose largest magnitude is `largest`. It is at least 2^-40 over the largest stored number, so that its
 * inverse, and the product of two, stay inside fp32. */
STROBE_INLINE float scale_of_largest(float largest, int int8) {
    const float least = 9.094947017729282e-13f, most = int8 ? 127 : E4M3_LARGEST;
    return (largest > least ? largest : least) / most;
}

/* x over a scale, as it is stored; inverse: 1 / scale. What is not finite becomes e4m3's NaN; int8's scale says it. */
STROBE_INLINE uint8_t quantised(float x, float inverse, int int8) {
    const float level = rounded_product(x, inverse);
    if (!int8) return is_finite_float(x) ? float_to_e4m3(level) : E4M3_NAN;
    if (!(level > -127)) return (uint8_t)-127;
    if (level > 127) return 127;
    /* adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the lowest bits */
    return (uint8_t)(int8_t)(int32_t)(float_bits(rounded_sum(level, 12582912.0f)) - 0x4b400000u);
}

/* The sequence of row `row` of a tensor, and the row's number in it; false where no sequence has it. */
struct quantise_row {
    int64_t sequence, row;
};

STROBE_INLINE int64_t quantise_entry(const struct quantise_tensor *t, const void *entries, int64_t at) {
    return t->index_bits == 64 ? ((const int64_t *)entries)[at] : ((const int32_t *)entries)[at];
}

STROBE_INLINE int quantise_find(const struct quantise_tensor *t, int64_t batch, int64_t row, struct quantise_row *found) {
    int64_t sequence = batch, first = 0, rows = t->rows;
    if (t->cu_seqlens) { /* the last sequence that begins at or before the row */
        int64_t low = 0, high = t->sequences;
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            if (quantise_entry(t, t->cu_seqlens, middle) <= row)
                low = middle;
            else
                high = middle;
        }
        sequence = low, first = quantise_entry(t, t->cu_seqlens, low);
        rows = quantise_entry(t, t->cu_seqlens, low + 1) - first;
    }
    if (t->used) {
        const int64_t used = quantise_entry(t, t->used, sequence);
        rows = used < rows ? used : rows;
    }
    found->sequence = sequence, found->row = row - first;
    return row >= first && row - first < rows;
}

/* Where the scale of a row is. With whole sequences it is that of the row's sequence. */
STROBE_INLINE float *quantise_scale_at(const struct quantise_tensor *t, int64_t batch, int64_t sequence, int64_t row,
                                       int64_t head) {
    if (t->block == 0) return t->scale + sequence * t->scale_stride[0] + head * t->scale_stride[2];
    return t->scale + batch * t->scale_stride[0] + row / t->block * t->scale_stride[1] + head * t->scale_stride[2];
}

#endif
