/* SPDX-License-Identifier: BSD-3-Clause
 *
 * row.h: a row of q, k or v between two memories: widened to fp32, turned by rotary embedding, transformed by signs and
 * Hadamard, stored. strobe_quantise and strobe_append share it; the order of every operation is that of math/quantise.h. */
#ifndef STROBE_CPU_ROW_H
#define STROBE_CPU_ROW_H

#include "core/problem.h"
#include "math/quantise.h"
#include "strobe/strobe.h"

/* x [columns] from element `at` on. */
static inline void row_load(float *x, const void *from, int32_t dtype, int64_t at, int64_t columns) {
    const uint16_t *half = (const uint16_t *)from + at;
    if (dtype == STROBE_BF16)
        for (int64_t c = 0; c < columns; ++c) x[c] = bf16_to_float(half[c]);
    else if (dtype == STROBE_FP16)
        for (int64_t c = 0; c < columns; ++c) x[c] = fp16_to_float(half[c]);
    else
        memcpy(x, (const float *)from + at, (size_t)columns * sizeof *x);
}

/* Turns the first columns of a row that stands at a position. */
static inline void row_rotate(float *x, const struct quantise_choices *choices, int64_t position) {
    const int64_t pairs = choices->pairs, step = choices->interleaved ? 2 : 1, apart = choices->interleaved ? 1 : pairs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
        float *first = x + pair * step, *second = first + apart;
        const struct rotary_angle angle = rotary_angle_at(choices, position, pair);
        const float a = *first, b = *second;
        *first = turned_first(a, b, angle.cos, angle.sin), *second = turned_second(a, b, angle.cos, angle.sin);
    }
}

/* Butterflies from far columns to near ones, as everywhere; a zero is +0, whatever the signs were. */
static inline void hadamard(float *x, int64_t columns) {
    const float norm = hadamard_norm(columns);
    for (int64_t step = columns / 2; step > 0; step /= 2)
        for (int64_t i = 0; i < columns; i += 2 * step)
            for (int64_t n = i; n < i + step; ++n) {
                const float a = x[n], b = x[n + step];
                x[n] = a + b, x[n + step] = a - b;
            }
    for (int64_t n = 0; n < columns; ++n) x[n] = x[n] == 0 ? 0 : x[n] * norm;
}

/* Random signs and a Hadamard transform of a row of any length: see hadamard_columns(). */
static inline void row_transform(float *x, const struct quantise_choices *choices, int64_t columns) {
    const int64_t most = hadamard_columns(columns);
    for (int64_t c = 0; c < columns; ++c) x[c] = with_sign_of(choices, c, x[c]);
    hadamard(x, most);
    if (most == columns) return;
    for (int64_t c = columns - most; c < most; ++c) x[c] = with_sign_of(choices, c, x[c]);
    hadamard(x + columns - most, most);
}

/* The largest magnitude of what is finite; for int8 a NaN where something is not. */
static inline float row_largest(const float *x, int64_t columns, int int8) {
    float largest = 0;
    int finite = 1;
    for (int64_t c = 0; c < columns; ++c) {
        const float magnitude = bits_float(float_bits(x[c]) & 0x7fffffffu);
        if (!is_finite_float(magnitude))
            finite = 0;
        else if (magnitude > largest)
            largest = magnitude;
    }
    return int8 && !finite ? bits_float(0x7fc00000u) : largest;
}

static inline void row_store_quantised(uint8_t *to, const float *x, int64_t columns, float scale, int int8) {
    const float inverse = 1 / scale;
    for (int64_t c = 0; c < columns; ++c) to[c] = quantised(x[c], inverse, int8);
}

/* Into fp32, fp16 or bf16, from element `at` on. */
static inline void row_store(void *to, int32_t dtype, int64_t at, const float *x, int64_t columns) {
    uint16_t *half = (uint16_t *)to + at;
    if (dtype == STROBE_BF16)
        for (int64_t c = 0; c < columns; ++c) half[c] = float_to_bf16(x[c]);
    else if (dtype == STROBE_FP16)
        for (int64_t c = 0; c < columns; ++c) half[c] = float_to_fp16(x[c]);
    else
        memcpy((float *)to + at, x, (size_t)columns * sizeof *x);
}

#endif
