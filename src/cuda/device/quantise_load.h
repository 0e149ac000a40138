/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_load.h: eight columns of a row as strobe_quantise finds them: widened, and turned by rotary embedding. Columns
 * past the end of the row are 0. PLAIN, by -D: sources are of 16 bits and aligned, pairs are those of halves, in eights; x
 * is 0 before. Other ways are left out then, since eight rows of all of them would not fit the instruction cache. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_LOAD_H
#define STROBE_CUDA_DEVICE_QUANTISE_LOAD_H

#include "cuda/device/element.h"
#include "cuda/device/quantise.h"

INLINE void load_sixteen_bits(const struct quantise_tensor *t, int64_t at, float (&x)[8]) {
    const uint4 from = *(const uint4 *)((const uint16_t *)t->from + at);
    const uint32_t two[4] = {from.x, from.y, from.z, from.w};
    if (t->from_dtype == CUDA_BF16) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
            x[2 * n] = __uint_as_float(two[n] << 16), x[2 * n + 1] = __uint_as_float(two[n] & 0xffff0000u);
    } else {
#pragma unroll
        for (int n = 0; n < 4; ++n)
            x[2 * n] = f16_to_float((uint16_t)two[n]), x[2 * n + 1] = f16_to_float((uint16_t)(two[n] >> 16));
    }
}

/* Columns [column, column + 8) of the row at element `at`. */
INLINE void load_eight(const struct quantise_params *p, int64_t at, int column, float (&x)[8]) {
    const struct quantise_tensor *t = &p->t;
    if (PLAIN && column >= t->dim) return;
    if (PLAIN || (p->from_aligned && column < t->dim && t->from_dtype != CUDA_FP32)) {
        load_sixteen_bits(t, at + column, x);
    } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) x[n] = column + n < t->dim ? load_any(t->from, t->from_dtype, at + column + n) : 0;
    }
}

/* The pair of any column: where its first and second element stand. */
INLINE float rotated_column(const struct quantise_params *p, int64_t at, int64_t position, int column) {
    const struct quantise_tensor *t = &p->t;
    const int pairs = (int)p->c.pairs, pair = p->c.interleaved ? column / 2 : column % pairs;
    const bool second = p->c.interleaved ? column % 2 : column >= pairs;
    const float a = load_any(t->from, t->from_dtype, at + (p->c.interleaved ? 2 * pair : pair));
    const float b = load_any(t->from, t->from_dtype, at + (p->c.interleaved ? 2 * pair + 1 : pair + pairs));
    const float cos = p->c.cos[position * pairs + pair], sin = p->c.sin[position * pairs + pair];
    return second ? turned_second(a, b, cos, sin) : turned_first(a, b, cos, sin);
}

INLINE void load_table(const float *table, float (&to)[8]) {
    const float4 low = ((const float4 *)table)[0], high = ((const float4 *)table)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/* Turns x, columns [column, column + 8) of a row at a position. */
INLINE void rotate_eight(const struct quantise_params *p, int64_t at, int64_t position, int column, float (&x)[8]) {
    const int pairs = (int)p->c.pairs;
    if (!p->t.rotary || column >= 2 * pairs) return;
    if (PLAIN || (p->tables_aligned && !p->c.interleaved)) {
        const bool second = column >= pairs;
        const int64_t table = position * pairs + (second ? column - pairs : column);
        float other[8], cos[8], sin[8];
        load_eight(p, at, second ? column - pairs : column + pairs, other);
        load_table(p->c.cos + table, cos), load_table(p->c.sin + table, sin);
#pragma unroll
        for (int n = 0; n < 8; ++n)
            x[n] = second ? turned_second(other[n], x[n], cos[n], sin[n]) : turned_first(x[n], other[n], cos[n], sin[n]);
    } else {
#pragma unroll
        for (int n = 0; n < 8; ++n)
            if (column + n < 2 * pairs && column + n < p->t.dim) x[n] = rotated_column(p, at, position, column + n);
    }
}

INLINE int64_t source_at(const struct quantise_tensor *t, int64_t batch, int64_t row, int64_t head) {
    return batch * t->from_stride[0] + row * t->from_stride[1] + head * t->from_stride[2];
}

#endif
