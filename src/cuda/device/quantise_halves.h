/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_halves.h: rows of 64, 128 or 256 columns in the registers of quantise_block.cu: a lane has WIDTH columns of each
 * half,
 *
 *     columns      0 .. 15 | 16 .. 31 | 32 .. 47 | 48 .. 63 | 64 .. 79 | ...        of 128
 *     lane            0         1          2          3          0
 *
 * so that the pairs of rotary embedding are its own. A transform begins with far columns, and with each of its steps the
 * halves become narrower; in the end a lane has 32 neighbouring columns. Included by quantise_tile.h alone. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_HALVES_H
#define STROBE_CUDA_DEVICE_QUANTISE_HALVES_H

enum { WIDTH = 16, PART = WIDTH, HALF = COLUMNS / 2 };
static_assert(HALF == LANES * WIDTH, "lanes share a half");

struct row {
    float x[2][PART];
};

INLINE int column_of(int lane, int half, int n) { return half * HALF + WIDTH * lane + n; }

/* The thread's row as it lies in the tile. */
INLINE void read_row(const struct quantise_shared *s, int index, int lane, uint32_t (&two)[HELD / 2]) {
#pragma unroll
    for (int n = 0; n < HELD / 8; ++n) {
        const uint4 from = s->rows[index][place_in_row(column_of(lane, n / 2, 0) / 8) + n % 2];
        two[4 * n] = from.x, two[4 * n + 1] = from.y, two[4 * n + 2] = from.z, two[4 * n + 3] = from.w;
    }
}

/* The signs of columns in the thread's sines. */
INLINE void sign_sines(struct quantise_shared *s, const struct lane_signs *signs, int index, int lane) {
#pragma unroll 1
    for (int n = 0; n < WIDTH / 4; ++n) {
        float4 *sin = &s->table[1][index][place_in_row(column_of(lane, 0, 0) / 4) + n];
        *sin = signed_sines(*sin, &signs->pair[2 * n], &signs->pair[HELD / 4 + 2 * n]);
    }
}

INLINE void rotate_four(int n, float4 cos, float4 sin, struct row *r) {
    const float c[4] = {cos.x, cos.y, cos.z, cos.w}, s[4] = {sin.x, sin.y, sin.z, sin.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float first = r->x[0][4 * n + i], second = r->x[1][4 * n + i];
        r->x[0][4 * n + i] = turned_first(first, second, c[i], s[i]);
        r->x[1][4 * n + i] = turned_second(first, second, c[i], s[i]);
    }
}

/* By angles in shared memory. */
INLINE void rotate_row(const struct quantise_shared *s, int index, int lane, struct row *r) {
    const int first = place_in_row(column_of(lane, 0, 0) / 4);
    const float4 *const cos = &s->table[0][index][first], *const sin = &s->table[1][index][first];
#pragma unroll
    for (int n = 0; n < WIDTH / 4; ++n) rotate_four(n, cos[n], sin[n], r);
}

/* By angles of the row in memory. */
INLINE void rotate_far(const float *cos, const float *sin, const struct lane_signs *signs, int lane, struct row *r) {
#pragma unroll
    for (int n = 0; n < WIDTH / 4; ++n) {
        const int pair = column_of(lane, 0, 4 * n);
        float4 sines = *(const float4 *)(sin + pair);
        if (signs) sines = signed_sines(sines, &signs->pair[2 * n], &signs->pair[HELD / 4 + 2 * n]);
        rotate_four(n, *(const float4 *)(cos + pair), sines, r);
    }
}

/* mean: of the row's columns. */
INLINE void subtract_mean(const float *mean, const struct lane_signs *signs, int lane, struct row *r) {
#pragma unroll
    for (int n = 0; n < HELD; n += 2) {
        const float *two = mean + column_of(lane, n / WIDTH, n % WIDTH);
        const uint32_t pair = signs ? signs->pair[n / 2] : 0;
        r->x[n / WIDTH][n % WIDTH] -= with_sign(two[0], first_sign(pair));
        r->x[n / WIDTH][n % WIDTH + 1] -= with_sign(two[1], second_sign(pair));
    }
}

/* The transform of columns whose signs are changed, and the norm; or the norm is what a scale's inverse is yet to be
 * multiplied by, where it is a power of two, which rounds nothing. */
INLINE float transform_row(float norm, const struct lane_signs *signs, int lane, struct row *r) {
    (void)signs;
#pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2) butterfly_and_swap(lane, apart, r->x[0], r->x[1]);
#pragma unroll
    for (int n = 0; n < WIDTH; ++n) butterfly(&r->x[0][n], &r->x[1][n]);
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n)
            if (!(n & step)) {
                butterfly(&r->x[0][n], &r->x[0][n + step]);
                butterfly(&r->x[1][n], &r->x[1][n + step]);
            }
    if (COLUMNS != 128) return norm;
    const float low = with_sign(norm, flip_of_lane(lane)), high = with_sign(low, flip_of_high(lane));
#pragma unroll
    for (int n = 0; n < WIDTH; ++n) {
        r->x[0][n] = fmaf(r->x[0][n], low, 0.0f); /* a zero is +0 */
        r->x[1][n] = fmaf(r->x[1][n], high, 0.0f);
    }
    return 1;
}

INLINE void store_row(uint8_t *to, bool there, int lane, const struct row *r, float inverse, bool transformed) {
    if (!there) return;
    const bool flips = COLUMNS != 128 && transformed;
    const float zero = flips ? 0.0f : -0.0f; /* a transform's zero is +0 */
    const uint32_t low = flips ? flip_of_lane(lane) : 0, high = flips ? flip_of_high(lane) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float by = with_sign(inverse, half == 0 ? low : low ^ high);
        *(uint4 *)(to + (transformed ? 32 * lane + 16 * half : column_of(lane, half, 0))) = make_uint4(
            four_bytes(&r->x[half][0], by, zero), four_bytes(&r->x[half][4], by, zero), four_bytes(&r->x[half][8], by, zero),
            four_bytes(&r->x[half][12], by, zero));
    }
}

#endif
