/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise_thirds.h: rows of 96 or 192 columns in the registers of quantise_block.cu: a lane has WIDTH columns of each
 * sixth,
 *
 *     columns      0 .. 3 | 4 .. 7 | 8 .. 11 | 12 .. 15 | 16 .. 19 | ...        of 96
 *     lane            0        1        2         3          0
 *
 * so that the pairs of rotary embedding are its own, and a transform's two far steps, of the first four sixths, and then of
 * the last four. Included by quantise_tile.h alone. */
#ifndef STROBE_CUDA_DEVICE_QUANTISE_THIRDS_H
#define STROBE_CUDA_DEVICE_QUANTISE_THIRDS_H

enum { WIDTH = 4, PART = 2 * WIDTH, SIXTH = COLUMNS / 6 };
static_assert(SIXTH == LANES * WIDTH, "lanes share a sixth");

/* Two sixths are a third. */
struct row {
    float x[3][PART];
};

INLINE int column_of(int lane, int sixth, int n) { return sixth * SIXTH + WIDTH * lane + n; }

/* The thread's row as it lies in the tile. */
INLINE void read_row(const struct quantise_shared *s, int index, int lane, uint32_t (&two)[HELD / 2]) {
#pragma unroll
    for (int n = 0; n < 6; ++n) {
        const uint2 from = ((const uint2 *)s->rows[index])[column_of(lane, n, 0) / WIDTH];
        two[2 * n] = from.x, two[2 * n + 1] = from.y;
    }
}

/* The signs of columns in the thread's sines. */
INLINE void sign_sines(struct quantise_shared *s, const struct lane_signs *signs, int index, int lane) {
#pragma unroll 1
    for (int n = 0; n < 3; ++n) {
        float4 *sin = &s->table[1][index][column_of(lane, n, 0) / 4];
        *sin = signed_sines(*sin, &signs->pair[2 * n], &signs->pair[HELD / 4 + 2 * n]);
    }
}

INLINE void rotate_four(int n, float4 cos, float4 sin, struct row *r) {
    const float c[4] = {cos.x, cos.y, cos.z, cos.w}, s[4] = {sin.x, sin.y, sin.z, sin.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float *one = &r->x[n / 2][n % 2 * WIDTH + i], *other = &r->x[(n + 3) / 2][(n + 3) % 2 * WIDTH + i];
        const float first = *one, second = *other;
        *one = turned_first(first, second, c[i], s[i]), *other = turned_second(first, second, c[i], s[i]);
    }
}

/* By angles in shared memory. */
INLINE void rotate_row(const struct quantise_shared *s, int index, int lane, struct row *r) {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
        const int unit = column_of(lane, n, 0) / 4;
        rotate_four(n, s->table[0][index][unit], s->table[1][index][unit], r);
    }
}

/* By angles of the row in memory. */
INLINE void rotate_far(const float *cos, const float *sin, const struct lane_signs *signs, int lane, struct row *r) {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
        const int pair = column_of(lane, n, 0);
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
        r->x[n / 8][n % 8] -= with_sign(two[0], first_sign(pair));
        r->x[n / 8][n % 8 + 1] -= with_sign(two[1], second_sign(pair));
    }
}

INLINE void butterflies(int step, float (&x)[2 * WIDTH]) {
#pragma unroll
    for (int n = 0; n < 2 * WIDTH; ++n)
        if (!(n & step)) butterfly(&x[n], &x[n + step]);
}

/* The first transform, of the first two thirds, whose columns stay in their lanes. */
INLINE void transform_first(int lane, float (&low)[2 * WIDTH], float (&high)[2 * WIDTH]) {
#pragma unroll
    for (int n = 0; n < 2 * WIDTH; ++n) butterfly(&low[n], &high[n]);
    butterflies(WIDTH, low), butterflies(WIDTH, high);
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        const float sign = sign_by(lane & step);
#pragma unroll
        for (int n = 0; n < 2 * WIDTH; ++n) {
            low[n] = fmaf(sign, low[n], __shfl_xor_sync(0xffffffffu, low[n], step));
            high[n] = fmaf(sign, high[n], __shfl_xor_sync(0xffffffffu, high[n], step));
        }
    }
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) butterflies(step, low), butterflies(step, high);
}

/* The second one, of the last two thirds. */
INLINE void transform_second(int lane, float (&low)[2 * WIDTH], float (&high)[2 * WIDTH]) {
    butterfly_and_swap(lane, LANES / 2, low, high);
    butterflies(WIDTH, low), butterflies(WIDTH, high);
#pragma unroll
    for (int apart = LANES / 4; apart > 0; apart /= 2) butterfly_and_swap(lane, apart, low, high);
#pragma unroll
    for (int n = 0; n < 2 * WIDTH; ++n) butterfly(&low[n], &high[n]);
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) butterflies(step, low), butterflies(step, high);
}

/* Both transforms of columns whose signs are changed, and the norm; or the norm is what a scale's inverse is yet to be
 * multiplied by, where it is a power of two, which rounds nothing. */
INLINE float transform_row(float norm, const struct lane_signs *signs, int lane, struct row *r) {
    transform_first(lane, r->x[0], r->x[1]);
#pragma unroll
    for (int n = 0; n < 2 * WIDTH; ++n)
        r->x[1][n] = rounded_product(r->x[1][n], signs->norm[n]); /* not fused with a sum that follows */
    transform_second(lane, r->x[1], r->x[2]);
    if (COLUMNS == 96) return norm;
    const float low = with_sign(norm, flip_of_lane(lane)), high = with_sign(low, flip_of_high(lane));
#pragma unroll
    for (int n = 0; n < 2 * WIDTH; ++n) {
        r->x[0][n] = fmaf(r->x[0][n], norm, 0.0f); /* a zero is +0 */
        r->x[1][n] = fmaf(r->x[1][n], low, 0.0f);
        r->x[2][n] = fmaf(r->x[2][n], high, 0.0f);
    }
    return 1;
}

/* The bytes of two sixths, four each of the lane and of its neighbour: each stores those of one sixth. All
 * lanes of the warp. */
INLINE void store_sixths(uint8_t *to, bool there, int lane, int sixth, uint32_t low, uint32_t high) {
    const bool odd = lane & 1;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    if (there) *(uint2 *)(to + column_of(lane & ~1, sixth + odd, 0)) = odd ? make_uint2(got, high) : make_uint2(low, got);
}

/* All lanes of the warp. */
INLINE void store_row(uint8_t *to, bool there, int lane, const struct row *r, float inverse, bool transformed) {
    const bool flips = COLUMNS == 96 && transformed;
    const float zero = flips ? 0.0f : -0.0f; /* a transform's zero is +0 */
    const float low = with_sign(inverse, flips ? flip_of_lane(lane) : 0);
    const float by[3] = {inverse, low, with_sign(low, flips ? flip_of_high(lane) : 0)};
    uint32_t four[6];
#pragma unroll
    for (int n = 0; n < 6; ++n) four[n] = four_bytes(&r->x[n / 2][n % 2 * WIDTH], by[n / 2], zero);
    store_sixths(to, there, lane, 0, four[0], four[1]);
    if (transformed) {
        const int column = 2 * SIXTH + lane / (LANES / 2) * 2 * SIXTH + 8 * (lane % (LANES / 2));
        if (there) {
            *(uint2 *)(to + column) = make_uint2(four[2], four[4]);
            *(uint2 *)(to + column + SIXTH) = make_uint2(four[3], four[5]);
        }
    } else {
        store_sixths(to, there, lane, 2, four[2], four[3]);
        store_sixths(to, there, lane, 4, four[4], four[5]);
    }
}

#endif
