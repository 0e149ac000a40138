/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_elements.h: rows that strobe_append takes one element at a time, whatever their type, length and alignment: a warp
 * has a row, in shared memory. The order of operations is that of cpu/row.h. */
#ifndef STROBE_CUDA_DEVICE_APPEND_ELEMENTS_H
#define STROBE_CUDA_DEVICE_APPEND_ELEMENTS_H

#include "cuda/device/append_rows.h"

/* The transform of `columns` columns in shared memory, by a warp. */
INLINE void transform_shared(float *x, int columns, float norm, int lane) {
    for (int step = columns / 2; step > 0; step /= 2) {
#pragma unroll 1
        for (int pair = lane; pair < columns / 2; pair += 32) {
            const int at = 2 * (pair & ~(step - 1)) + (pair & (step - 1));
            const float a = x[at], b = x[at + step];
            x[at] = a + b, x[at + step] = a - b;
        }
        __syncwarp();
    }
#pragma unroll 1
    for (int c = lane; c < columns; c += 32) x[c] = fmaf(x[c], norm, 0.0f); /* a zero is +0 */
    __syncwarp();
}

/* Reads a row from element `from` on and brings it to what is stored. */
INLINE void prepare_row(const struct append_params *p, const struct append_side *s, float *row, int64_t from,
                        int64_t position, int lane) {
    const struct quantise_tensor *t = &s->at.t;
    const struct quantise_choices *c = &p->choices;
    const int dim = (int)t->dim, pairs = (int)c->pairs;
#pragma unroll 1
    for (int n = lane; n < dim; n += 32) row[n] = load_any(t->from, t->from_dtype, from + n);
    __syncwarp();
    if (t->rotary) {
#pragma unroll 1
        for (int pair = lane; pair < pairs; pair += 32) {
            const struct rotary_angle angle = angle_at(p, position, pair);
            const int i = c->interleaved ? 2 * pair : pair, j = i + (c->interleaved ? 1 : pairs);
            const float a = row[i], b = row[j];
            row[i] = turned_first(a, b, angle.cos, angle.sin), row[j] = turned_second(a, b, angle.cos, angle.sin);
        }
        __syncwarp();
    }
    if (!t->hadamard) return;
#pragma unroll 1
    for (int n = lane; n < dim; n += 32) row[n] = with_sign_of(c, n, row[n]);
    __syncwarp();
    transform_shared(row, p->columns, p->norm, lane);
    if (p->columns == dim) return;
#pragma unroll 1
    for (int n = dim - p->columns + lane; n < p->columns; n += 32) row[n] = with_sign_of(c, n, row[n]);
    __syncwarp();
    transform_shared(row + dim - p->columns, p->columns, p->norm, lane);
}

INLINE void store_row(const struct append_side *s, const float *row, int64_t to, float *where, int lane) {
    const struct quantise_tensor *t = &s->at.t;
    const int dim = (int)t->dim;
    if (!s->quantised) {
#pragma unroll 1
        for (int n = lane; n < dim; n += 32) store_any(t->to, s->at.to_dtype, to + n, row[n]);
        return;
    }
    float scale;
    if (t->block == 1) {
        uint32_t largest = 0;
#pragma unroll 1
        for (int n = lane; n < dim; n += 32) {
            const uint32_t magnitude = counted(__float_as_uint(row[n]) & 0x7fffffffu, t->int8);
            largest = magnitude > largest ? magnitude : largest;
        }
        scale = scale_of_bits(__reduce_max_sync(0xffffffffu, largest), t->int8);
        if (lane == 0) *where = scale;
    } else {
        scale = *where;
    }
    const float inverse = 1 / scale;
#pragma unroll 1
    for (int n = lane; n < dim; n += 32) t->to[to + n] = quantised(row[n], inverse, t->int8);
}

/* A row as it is, of elements of two or four bytes. */
INLINE void copy_elements(const struct append_side *s, int64_t from, int64_t to, int lane) {
    const struct quantise_tensor *t = &s->at.t;
#pragma unroll 1
    for (int n = lane; n < t->dim; n += 32)
        if (s->from_bytes == 2)
            ((uint16_t *)t->to)[to + n] = ((const uint16_t *)t->from)[from + n];
        else
            ((uint32_t *)t->to)[to + n] = ((const uint32_t *)t->from)[from + n];
}

/* Those with APPEND_ELEMENTS, by a warp. */
INLINE void append_elements(const struct append_params *p, const struct append_side *s, const struct group *g,
                            const struct token_place *place, float *row) {
    const struct quantise_tensor *t = &s->at.t;
    const bool copies = s->at.to_dtype == t->from_dtype && !t->rotary && !t->hadamard;
    if (!place->there) return;
    for (int head = g->first; head < g->first + s->each && head < s->units; ++head) {
        const int64_t from = source_of(t, g) + head * t->from_stride[2], to = place->to + head * t->to_stride[2];
        if (copies) {
            copy_elements(s, from, to, g->lane);
            continue;
        }
        prepare_row(p, s, row, from, place->position, g->lane);
        store_row(s, row, to, t->scale + place->scale + head * t->scale_stride[2], g->lane);
        __syncwarp();
    }
}

#endif
