/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_eight.h: eight neighbouring columns of a row in a lane's registers, as strobe_append reads and stores them: what
 * append.cu and append_run.cu share. */
#ifndef STROBE_CUDA_DEVICE_APPEND_EIGHT_H
#define STROBE_CUDA_DEVICE_APPEND_EIGHT_H

#include "cuda/device/append_rows.h"
#include "cuda/device/stored_bytes.h"

enum { COLUMNS = APPEND_MOST_COLUMNS };
static_assert(COLUMNS == 8, "16 bytes of 16-bit elements");

INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

INLINE void widen(int dtype, uint4 from, float (&x)[COLUMNS]) {
    const uint32_t two[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const bool is_bf16 = dtype == CUDA_BF16;
        x[2 * n] = is_bf16 ? __uint_as_float(two[n] << 16) : f16_to_float((uint16_t)two[n]);
        x[2 * n + 1] = is_bf16 ? __uint_as_float(two[n] & 0xffff0000u) : f16_to_float((uint16_t)(two[n] >> 16));
    }
}

/* The bits of the largest magnitude as rows are judged by it. Sets *infinite where one is not finite. */
INLINE uint32_t largest_of(const float (&x)[COLUMNS], int int8, bool *infinite) {
    uint32_t most = 0;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) most = larger(most, __float_as_uint(x[n]) & 0x7fffffffu);
    if (most < 0x7f800000u) return most;
    *infinite = true, most = 0;
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) most = larger(most, counted(__float_as_uint(x[n]) & 0x7fffffffu, int8));
    return most;
}

/* int8 of a row that is finite, whose scale is its own; of any; e4m3 of finite numbers. */
INLINE uint2 eight_int8(const float (&x)[COLUMNS], float inverse) {
    return make_uint2(four_int8(x, inverse), four_int8(x + 4, inverse));
}
INLINE uint2 eight_int8_limited(const float (&x)[COLUMNS], float inverse) {
    return make_uint2(four_int8_limited(x, inverse), four_int8_limited(x + 4, inverse));
}
INLINE uint2 eight_e4m3(const float (&x)[COLUMNS], float inverse) {
    return make_uint2(four_e4m3(x, inverse), four_e4m3(x + 4, inverse));
}

/* Makes NaN of infinities, of which a conversion to e4m3 made 448, see quantised(). */
INLINE void patch_infinities(const float (&x)[COLUMNS], uint2 *bytes) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        uint32_t *four = c < 4 ? &bytes->x : &bytes->y;
        if (!is_finite_float(x[c])) *four = (*four & ~(0xffu << c % 4 * 8)) | (uint32_t)E4M3_NAN << c % 4 * 8;
    }
}

/* to: elements from the tensor's begin. */
INLINE void store_floats(const struct append_side *s, int64_t to, const float (&x)[COLUMNS]) {
    void *data = s->at.t.to;
    if (s->at.to_dtype == CUDA_FP32) {
        *(float4 *)((float *)data + to) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)((float *)data + to + 4) = make_float4(x[4], x[5], x[6], x[7]);
    } else if (s->at.to_dtype == CUDA_BF16) {
        *(uint4 *)((uint16_t *)data + to) = make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]),
                                                       cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
    } else {
        *(uint4 *)((uint16_t *)data + to) = make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]),
                                                       cvt_f16x2(x[6], x[7]));
    }
}

#endif
