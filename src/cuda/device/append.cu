/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.cu: strobe_append on a GPU, q, k and v in one launch. A unit is a row of one head, or a piece of it where rows are
 * copied. A group of 8, 16 or 32 neighbouring lanes has up to four units of one token, and all of what it needs to know:
 *
 *     loads of its units               all under way, while the group finds out
 *     where the token goes             its sequence, length, position, slot or page (math/append.h)
 *     x = row, turned, transformed     pairs of columns by a shuffle, butterflies in registers and by shuffles
 *     scale = largest / 448 or 127     where a scale a token is written
 *     16 bytes of the cache a lane
 *
 * The order of every operation is that of math/quantise.h and of the CPU (cpu/row.h), so that the bytes are the same; but a
 * NaN has the device's bits. Rows that are not aligned, or whose columns are not eights, and fp32 that is not copied, go
 * through shared memory, one element at a time. A group reads its rows before it writes them, so q may stay in its place.
 *
 * VARIANT, by -D: what the text is compiled for, since less text needs fewer registers; CTAS on a multiprocessor. */
#include "cuda/device/append_eight.h"
#include "cuda/device/append_elements.h"
#include "cuda/device/hadamard.h"
#include "cuda/ptx/integer.h"

/* ---------------------------------------------------------------------------------------------------------- rotation -- */

struct angles {
    float cos[COLUMNS], sin[COLUMNS]; /* of the lane's columns, or of its pairs where they are neighbours */
};

INLINE void load_angles(const struct append_params *p, int64_t position, int column, struct angles *a) {
    const struct quantise_choices *c = &p->choices;
    const int pairs = (int)c->pairs, pair = c->interleaved ? column / 2 : column - (column >= pairs ? pairs : 0);
    if (column >= 2 * pairs) return;
    if (p->computed) {
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n)
            if (n < COLUMNS / 2 || !c->interleaved) {
                const int at = pair + n < pairs ? pair + n : pairs - 1;
                const struct rotary_angle angle = rotary_angle_of((uint64_t)position * p->frequency[at]);
                a->cos[n] = angle.cos, a->sin[n] = angle.sin;
            }
        return;
    }
    const bool there = position >= 0 && position < c->positions; /* else the angles are NaN, as rotary_angle_at() has it */
    const float *cos = c->cos + (there ? position : 0) * pairs, *sin = c->sin + (there ? position : 0) * pairs;
    if (there && p->tables_aligned) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
            if (n == 0 || !c->interleaved) {
                const float4 four_cos = ((const float4 *)(cos + pair))[n], four_sin = ((const float4 *)(sin + pair))[n];
                a->cos[4 * n] = four_cos.x, a->cos[4 * n + 1] = four_cos.y;
                a->cos[4 * n + 2] = four_cos.z, a->cos[4 * n + 3] = four_cos.w;
                a->sin[4 * n] = four_sin.x, a->sin[4 * n + 1] = four_sin.y;
                a->sin[4 * n + 2] = four_sin.z, a->sin[4 * n + 3] = four_sin.w;
            }
        return;
    }
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) {
        const int at = pair + n < pairs ? pair + n : pairs - 1;
        a->cos[n] = there ? cos[at] : bits_float(0x7fc00000u), a->sin[n] = there ? sin[at] : bits_float(0x7fc00000u);
    }
}

/* Turns x, the lane's columns of a row, which lies in its group as `raw`. All lanes of the warp. */
INLINE void rotate(const struct append_params *p, const struct append_side *s, uint4 raw, int lane, int column,
                   const struct angles *a, float (&x)[COLUMNS]) {
    const int pairs = (int)p->choices.pairs;
    if (p->choices.interleaved) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 2; ++n) {
            const float first = x[2 * n], second = x[2 * n + 1];
            const bool turned = column / 2 + n < pairs;
            x[2 * n] = turned ? turned_first(first, second, a->cos[n], a->sin[n]) : first;
            x[2 * n + 1] = turned ? turned_second(first, second, a->cos[n], a->sin[n]) : second;
        }
        return;
    }
    const bool is_second = column >= pairs;
    const int partner = (int)threadIdx.x % 32 - lane + (is_second ? lane - pairs / COLUMNS : lane + pairs / COLUMNS);
    const uint4 other = make_uint4(__shfl_sync(0xffffffffu, raw.x, partner), __shfl_sync(0xffffffffu, raw.y, partner),
                                   __shfl_sync(0xffffffffu, raw.z, partner), __shfl_sync(0xffffffffu, raw.w, partner));
    float y[COLUMNS];
    widen(s->at.t.from_dtype, other, y);
    if (column >= 2 * pairs) return;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n)
        x[n] = is_second ? turned_second(y[n], x[n], a->cos[n], a->sin[n]) : turned_first(x[n], y[n], a->cos[n], a->sin[n]);
}

/* -------------------------------------------------------------------------------------------------- rows in registers -- */

/* A lane's 16 bytes of each unit of its group, and where they are. */
struct units {
    uint4 raw[APPEND_UNITS];
    int head[APPEND_UNITS], at[APPEND_UNITS]; /* bytes from the row's begin, of the source; -1: the lane has none */
};

INLINE void load_units(const struct append_side *s, const struct group *g, struct units *u) {
    const struct quantise_tensor *t = &s->at.t;
    const int64_t step = t->from_stride[2] * s->from_bytes;
    const char *from = (const char *)t->from + source_of(t, g) * s->from_bytes;
    const int row_bytes = (int)t->dim * s->from_bytes;
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n) {
        const int unit = g->first + n;
        u->raw[n] = make_uint4(0, 0, 0, 0);
        u->head[n] = unit, u->at[n] = 16 * g->lane;
        if (s->pieces.by > 1) {
            u->head[n] = (int)divided((uint32_t)unit, &s->pieces);
            u->at[n] += (unit - u->head[n] * (int)s->pieces.by) * (16 << s->lane_bits);
        }
        if (!g->there || n >= s->each || unit >= s->units || u->at[n] >= row_bytes) u->at[n] = -1;
        if (u->at[n] >= 0) u->raw[n] = *(const uint4 *)(from + u->head[n] * step + u->at[n]);
    }
}

/* Stores the units as they are. */
INLINE void copy_units(const struct append_side *s, const struct token_place *place, const struct units *u) {
    const struct quantise_tensor *t = &s->at.t;
    const int64_t step = t->to_stride[2] * s->from_bytes;
    uint8_t *to = t->to + place->to * s->from_bytes;
    if (!place->there) return;
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n)
        if (u->at[n] >= 0) *(uint4 *)(to + u->head[n] * step + u->at[n]) = u->raw[n];
}

/* The scale of one of the group's four rows, of which its lanes hold COLUMNS each: each lane finds that of row_of(lane). The
 * first two steps of the maximum halve the rows that a lane goes on with. All lanes of the warp. */
INLINE int row_of(int lane) { return (lane & 1) << 1 | (lane >> 1 & 1); }
INLINE int lane_of(int row) { return row >> 1 | (row & 1) << 1; }
static_assert(APPEND_UNITS == 4, "two steps leave a lane one row");

INLINE float scale_of_row(const struct append_side *s, int lane, const uint32_t (&largest)[APPEND_UNITS]) {
    const uint32_t all = 0xffffffffu;
    const bool odd = lane & 1, second = lane & 2;
    const uint32_t a = larger(odd ? largest[2] : largest[0], __shfl_xor_sync(all, odd ? largest[0] : largest[2], 1));
    const uint32_t b = larger(odd ? largest[3] : largest[1], __shfl_xor_sync(all, odd ? largest[1] : largest[3], 1));
    uint32_t most = larger(second ? b : a, __shfl_xor_sync(all, second ? a : b, 2));
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
        const uint32_t other = __shfl_xor_sync(all, most, step);
        if (step >> s->lane_bits == 0) most = larger(most, other);
    }
    return scale_of_bits(most, s->at.t.int8);
}

/* Scales and bytes of the group's rows x, whose elements begin at `to`. All lanes of the warp. */
INLINE void store_quantised(const struct append_side *s, const struct group *g, const struct token_place *place,
                            const struct units *u, int64_t to, const float (&x)[APPEND_UNITS][COLUMNS]) {
    const struct quantise_tensor *t = &s->at.t;
    const int row = row_of(g->lane), head = g->first + row;
    float *where = t->scale + place->scale + head * t->scale_stride[2], scale = 1;
    const bool there = place->there && row < s->each && head < s->units;
    bool infinite = false;
    uint32_t largest[APPEND_UNITS];
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n) largest[n] = largest_of(x[n], t->int8, &infinite);
    if (t->block == 1) {
        scale = scale_of_row(s, g->lane, largest);
        if (there && g->lane < APPEND_UNITS) *where = scale;
    } else if (there) {
        scale = *where;
    }
    const float own = 1 / scale;
    float inverse[APPEND_UNITS];
    uint2 bytes[APPEND_UNITS];
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n)
        inverse[n] = __shfl_sync(0xffffffffu, own, (int)threadIdx.x % 32 - g->lane + lane_of(n));
    if (t->int8 && t->block == 1 && !__any_sync(0xffffffffu, infinite)) {
#pragma unroll
        for (int n = 0; n < APPEND_UNITS; ++n) bytes[n] = eight_int8(x[n], inverse[n]);
    } else if (t->int8) {
#pragma unroll
        for (int n = 0; n < APPEND_UNITS; ++n) bytes[n] = eight_int8_limited(x[n], inverse[n]);
    } else {
#pragma unroll
        for (int n = 0; n < APPEND_UNITS; ++n) bytes[n] = eight_e4m3(x[n], inverse[n]);
        if (infinite) {
#pragma unroll
            for (int n = 0; n < APPEND_UNITS; ++n) patch_infinities(x[n], &bytes[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n)
        if (place->there && u->at[n] >= 0) *(uint2 *)(t->to + to + n * t->to_stride[2]) = bytes[n];
}

/* The largest magnitude of a lane's eight elements of 16 bits, whose order is that of their bits. */
INLINE uint32_t largest_of_raw(uint4 raw) {
    const uint32_t magnitude = 0x7fff7fffu;
    const uint32_t a = larger_halves(raw.x & magnitude, raw.y & magnitude);
    const uint32_t two = larger_halves(a, larger_halves(raw.z & magnitude, raw.w & magnitude));
    return larger(two & 0xffff, two >> 16);
}

/* Scales and bytes of the group's units, which are rows, one after the other, whatever is in them: they are read again. All
 * lanes of the warp. */
INLINE void quantise_slowly(const struct append_side *s, const struct group *g, const struct token_place *place,
                            const struct units *u) {
    const struct quantise_tensor *t = &s->at.t;
    const int column = g->lane * COLUMNS, row_bytes = (int)t->dim * s->from_bytes;
    const char *const from = (const char *)t->from + source_of(t, g) * s->from_bytes;
#pragma unroll 1
    for (int n = 0; n < s->each; ++n) {
        const int head = g->first + n;
        const bool there = g->there && head < s->units && 16 * g->lane < row_bytes;
        float x[COLUMNS];
        bool infinite = false;
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (there) raw = *(const uint4 *)(from + head * t->from_stride[2] * s->from_bytes + 16 * g->lane);
        widen(t->from_dtype, raw, x);
        uint32_t most = largest_of(x, t->int8, &infinite);
        for (int step = 1; step < 1 << s->lane_bits; step *= 2)
            most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
        const float scale = scale_of_bits(most, t->int8);
        if (!place->there || !there) continue;
        if (g->lane == 0) t->scale[place->scale + head * t->scale_stride[2]] = scale;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            t->to[place->to + head * t->to_stride[2] + column + c] = quantised(x[c], 1 / scale, t->int8);
    }
}

/* The same of rows that are finite, four together. */
INLINE void quantise_units(const struct append_side *s, const struct group *g, const struct token_place *place,
                           const struct units *u) {
    const struct quantise_tensor *t = &s->at.t;
    const bool is_bf16 = t->from_dtype == CUDA_BF16;
    const int row = row_of(g->lane), head = g->first + row;
    uint8_t *const to = t->to + (place->to + g->first * t->to_stride[2] + g->lane * COLUMNS);
    bool finite = true;
    uint32_t largest[APPEND_UNITS];
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n) {
        const uint32_t most = largest_of_raw(u->raw[n]);
        finite = finite && most < (is_bf16 ? 0x7f80 : 0x7c00);
        largest[n] = is_bf16 ? most << 16 : __float_as_uint(f16_to_float((uint16_t)most));
    }
    if (__any_sync(0xffffffffu, !finite)) {
        quantise_slowly(s, g, place, u);
        return;
    }
    const float scale = scale_of_row(s, g->lane, largest), own = 1 / scale;
    if (place->there && row < s->each && head < s->units && g->lane < APPEND_UNITS)
        t->scale[place->scale + head * t->scale_stride[2]] = scale;
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n) {
        const float inverse = __shfl_sync(0xffffffffu, own, (int)threadIdx.x % 32 - g->lane + lane_of(n));
        float x[COLUMNS];
        widen(t->from_dtype, u->raw[n], x);
        const uint2 bytes = t->int8 ? eight_int8(x, inverse) : eight_e4m3(x, inverse);
        if (place->there && u->at[n] >= 0) *(uint2 *)(to + n * t->to_stride[2]) = bytes;
    }
}

/* Turns, transforms and stores the units, which are rows. All lanes of the warp. */
INLINE void rotate_units(const struct append_params *p, const struct append_side *s, const struct group *g,
                         const struct token_place *place, const struct units *u) {
    const struct quantise_tensor *t = &s->at.t;
    const bool quantises = VARIANT == APPEND_ALL && s->quantised;
    const int column = g->lane * COLUMNS;
    const int64_t to = place->to + g->first * t->to_stride[2] + column;
    float x[APPEND_UNITS][COLUMNS];
    struct angles angles;
    if (t->rotary && place->there) load_angles(p, place->position, column, &angles);
#pragma unroll
    for (int n = 0; n < APPEND_UNITS; ++n) {
        widen(t->from_dtype, u->raw[n], x[n]);
        if (n >= s->each) continue;
        if (t->rotary) rotate(p, s, u->raw[n], g->lane, column, &angles, x[n]);
        if (t->hadamard) {
            const uint32_t signs = p->choices.signs[g->lane / 4] >> g->lane % 4 * 8;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                x[n][c] = __uint_as_float(__float_as_uint(x[n][c]) ^ (signs << (31 - c) & 0x80000000u));
            hadamard_lanes(x[n], g->lane, 32, p->columns, p->norm);
        }
        if (!quantises && place->there && u->at[n] >= 0) store_floats(s, to + n * t->to_stride[2], x[n]);
    }
    if (quantises) store_quantised(s, g, place, u, to, x);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS, CTAS) KERNEL(const __grid_constant__ struct append_params p) {
    uint32_t block = blockIdx.x;
    int which = 0;
    for (; block >= p.side[which].blocks; ++which) block -= p.side[which].blocks;
    const struct append_side *s = &p.side[which];
    const struct group g = group_of(s, block);
    struct units units;
    if (VARIANT != APPEND_ALL || s->way != APPEND_ELEMENTS) load_units(s, &g, &units);
    const struct token_place place = place_of(&p, s, &g);
    if (VARIANT == APPEND_COPIES || s->way == APPEND_COPY) {
        copy_units(s, &place, &units);
    } else if (VARIANT == APPEND_BYTES || (VARIANT == APPEND_ALL && s->quantised_alone)) {
        quantise_units(s, &g, &place, &units);
    } else if (VARIANT == APPEND_FLOATS || s->way == APPEND_VECTORS) {
        rotate_units(&p, s, &g, &place, &units);
    } else {
        __shared__ float row[APPEND_THREADS / 32][APPEND_MOST_DIM];
        append_elements(&p, s, &g, &place, row[threadIdx.x / 32]);
    }
}
