/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_bytes.h: the products of decode_rows.h with int8 K and V by ARM's products of bytes (SDOT, FEAT_DotProd), of which
 * one adds 16 products of signed bytes to four sums of 32 bits, exactly. Nothing is widened: K and V are multiplied as they
 * lie in memory, and q and P are taken apart into signed bytes, their digits:
 *
 *     x = scale (d0 + 256 d1 + 65536 d2 + 2^24 d3),  each d in -128..127, the greatest |x| of the row being 2^30
 *
 * A vector of q holds all digits of 4 columns, and meets 4 columns of a key: its four sums are the digits' own, and no lanes
 * are left to be summed but these. A vector of V holds 4 keys of 4 columns, interleaved from 4 rows, and meets a digit of
 * the 4 keys' P. With 2 digits, where results have 16 bits, P is rounded to 2^-15 of its greatest, as on AMX. Rows without
 * digits, which are not finite or too small, go to decode_rows.h. */
#ifndef STROBE_CPU_DECODE_BYTES_H
#define STROBE_CPU_DECODE_BYTES_H

#include <arm_neon.h>
#include <math.h>

#include "cpu/decode/decode_rows.h"

enum {
    DIGITS = 4,
    FEW_DIGITS = 2,
    BYTES = 16, /* of a vector: columns of K or V that are read at once */
    QUAD = 4,
};

/* A row has digits if its greatest magnitude is at least this, or 0: so factor and scale are normal numbers. */
#define LEAST_MAGNITUDE 0x1p-90f

/* What a row of q takes: digits of whole vectors of columns, and what a 1 in each digit is worth, NaN where there are none.
 */
static inline int64_t digit_floats(int64_t columns) { return (columns + BYTES - 1) / BYTES * BYTES + DIGITS; }
ALWAYS_INLINE float *digit_scale_of(float *digits, int64_t columns) { return digits + digit_floats(columns) - DIGITS; }

/* The digits of four integers below 2^30 in magnitude, a word each. */
ALWAYS_INLINE int8x16_t digits_of(int32x4_t x) {
    const int32x4_t half = vdupq_n_s32(0x00808080);
    return vreinterpretq_s8_s32(veorq_s32(vaddq_s32(x, half), half));
}

/* The words' first bytes, then their second ones, and so on: [digit][4 elements]. */
ALWAYS_INLINE int8x16_t by_digits(int8x16_t x) {
    static const uint8_t order[BYTES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return vqtbl1q_s8(x, vld1q_u8(order));
}

/* The factor that makes the greatest of a row `most`; 0 of a row of zeros, NaN of one without digits. */
static inline float integer_factor_of(float greatest, float most) {
    if (greatest == 0) return 0;
    return greatest >= LEAST_MAGNITUDE && greatest < INFINITY ? most / greatest : NAN;
}

/* Packs a row of q, times factor, as digits [16 columns][4 quads][digit][4 columns]. Columns that a vector repeats are 0. */
static inline void pack_digits(float *to, const float *row, int64_t columns, float factor) {
    float greatest = 0, *scale = digit_scale_of(to, columns);
    bool finite = true;
    for (int64_t x = 0; x < columns; ++x) {
        finite = finite && isfinite(row[x] * factor);
        greatest = fmaxf(greatest, fabsf(row[x] * factor));
    }
    const float each = finite ? integer_factor_of(greatest, 0x1p30f) : NAN;
    for (int g = 0; g < DIGITS; ++g) scale[g] = isnan(each) ? NAN : ldexpf(greatest, 8 * g - 30);
    if (isnan(each)) return;
    int8_t *digits = (int8_t *)to;
    for (int64_t c = 0; c < columns; c += BYTES) {
        const int64_t start = c + BYTES <= columns ? c : columns > BYTES ? columns - BYTES : 0;
        for (int64_t i = 0; i < BYTES; i += QUAD) {
            float x[QUAD];
            for (int64_t n = 0; n < QUAD; ++n) {
                const int64_t at = start + i + n;
                x[n] = at >= c && at < columns ? row[at] * factor * each : 0;
            }
            vst1q_s8(digits + c * DIGITS + i * DIGITS, by_digits(digits_of(vcvtnq_s32_f32(vld1q_f32(x)))));
        }
    }
}

ALWAYS_INLINE void prefetch_byte(const char *at, size_t distance, bool into_l2) {
    const void *next = (const void *)((uintptr_t)at + distance);
    if (into_l2)
        __builtin_prefetch(next, 0, 2);
    else
        __builtin_prefetch(next);
}

/* 16 columns of a row from column c on, or the last 16. Of a shorter row, which is not `whole`, what follows is 0. */
ALWAYS_INLINE int8x16_t load_columns(const char *row, int64_t c, int64_t columns, size_t prefetch, bool into_l2,
                                     bool whole) {
    if (whole) {
        const char *at = row + (c + BYTES <= columns ? c : columns - BYTES);
        prefetch_byte(at, prefetch, into_l2);
        return vld1q_s8((const int8_t *)at);
    }
    int8_t copy[BYTES] = {0};
    memcpy(copy, row, (size_t)columns);
    return vld1q_s8(copy);
}

/* s[r][j] = q_r . k_j of ABREAST keys from j on; past the end the last key is read again. */
ALWAYS_INLINE void byte_keys_abreast(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k, int64_t j,
                                     int64_t keys, int rows, bool into_l2, bool whole) {
    const char *key[ABREAST];
    size_t prefetch[ABREAST];
    int32x4_t sum[ROWS_AT_ONCE][ABREAST];
    for (int i = 0; i < ABREAST; ++i) {
        const int64_t at = j + i < keys ? j + i : keys - 1;
        key[i] = key_row(k, at, 1);
        prefetch[i] = prefetch_distance_of(k, at);
        for (int r = 0; r < rows; ++r) sum[r][i] = vdupq_n_s32(0);
    }
    for (int64_t c = 0; c < k->columns; c += BYTES) {
        int8x16_t x[ABREAST];
        for (int i = 0; i < ABREAST; ++i) x[i] = load_columns(key[i], c, k->columns, prefetch[i], into_l2, whole);
        for (int r = 0; r < rows; ++r) {
            const int8_t *digits = (const int8_t *)(q + r * q_stride) + c * DIGITS;
            const int8x16_t q0 = vld1q_s8(digits), q1 = vld1q_s8(digits + BYTES), q2 = vld1q_s8(digits + 2 * BYTES),
                            q3 = vld1q_s8(digits + 3 * BYTES);
            for (int i = 0; i < ABREAST; ++i) {
                sum[r][i] = vdotq_laneq_s32(sum[r][i], q0, x[i], 0);
                sum[r][i] = vdotq_laneq_s32(sum[r][i], q1, x[i], 1);
                sum[r][i] = vdotq_laneq_s32(sum[r][i], q2, x[i], 2);
                sum[r][i] = vdotq_laneq_s32(sum[r][i], q3, x[i], 3);
            }
        }
    }
    for (int r = 0; r < rows; ++r) {
        const float32x4_t scale = vld1q_f32(q + r * q_stride + digit_floats(k->columns) - DIGITS);
        for (int i = 0; i < ABREAST && j + i < keys; ++i)
            s[r * ROW_SCORES + j + i] = vaddvq_f32(vmulq_f32(vcvtq_f32_s32(sum[r][i]), scale));
    }
}

/* What is asked once a call and not once a line: where prefetching ends, and whether rows are shorter than a vector. */
ALWAYS_INLINE void byte_key_products_of(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k,
                                        int64_t keys, int rows) {
    int64_t j = 0;
    if (k->columns < BYTES)
        for (; j < keys; j += ABREAST) byte_keys_abreast(s, q, q_stride, k, j, keys, rows, true, false);
    else if (k->into_l2)
        for (; j < keys; j += ABREAST) byte_keys_abreast(s, q, q_stride, k, j, keys, rows, true, true);
    else
        for (; j < keys; j += ABREAST) byte_keys_abreast(s, q, q_stride, k, j, keys, rows, false, true);
}

/* key_products() of `rows` rows of digits, 1, 2 or 4. Returns false, and does nothing, where one has none. */
static inline bool byte_key_products(float *s, const float *q, int64_t q_stride, const struct keys_in_memory *k,
                                     int64_t keys, int rows) {
    for (int r = 0; r < rows; ++r)
        if (isnan(q[r * q_stride + digit_floats(k->columns) - DIGITS])) return false;
    if (rows == 1)
        byte_key_products_of(s, q, q_stride, k, keys, 1);
    else if (rows == 2)
        byte_key_products_of(s, q, q_stride, k, keys, 2);
    else
        byte_key_products_of(s, q, q_stride, k, keys, 4);
    return true;
}

/* P of a row and a chunk of keys: [4 keys][digit][key], and what a 1 in the first digit is worth. */
struct weight_digits {
    int8x16_t quad[(MOST_KEYS + QUAD - 1) / QUAD];
    float scale;
};

/* P of four keys, 0 behind the last one. */
ALWAYS_INLINE float32x4_t load_weights(const float *p, int64_t j, int64_t keys) {
    if (j + QUAD <= keys) return vld1q_f32(p + j);
    float copy[QUAD] = {0};
    for (int64_t i = 0; j + i < keys; ++i) copy[i] = p[j + i];
    return vld1q_f32(copy);
}

/* Returns false where P has no digits. */
static inline bool pack_weights(struct weight_digits *to, const float *p, int64_t keys, int digits) {
    const float most = digits == FEW_DIGITS ? 0x1p14f : 0x1p30f;
    float32x4_t greatest = vdupq_n_f32(0); /* or NaN */
    for (int64_t j = 0; j < keys; j += QUAD) greatest = vmaxq_f32(greatest, vabsq_f32(load_weights(p, j, keys)));
    const float high = vmaxvq_f32(greatest), factor = integer_factor_of(high, most);
    if (isnan(factor)) return false;
    to->scale = high / most;
    for (int64_t j = 0; j < keys; j += QUAD)
        to->quad[j / QUAD] = by_digits(digits_of(vcvtnq_s32_f32(vmulq_n_f32(load_weights(p, j, keys), factor))));
    return true;
}

/* Four keys of 16 columns, [4 columns][4 keys] a vector. */
ALWAYS_INLINE void interleave(int8x16_t to[QUAD], const int8x16_t v[QUAD]) {
    const int16x8_t low01 = vreinterpretq_s16_s8(vzip1q_s8(v[0], v[1])),
                    high01 = vreinterpretq_s16_s8(vzip2q_s8(v[0], v[1]));
    const int16x8_t low23 = vreinterpretq_s16_s8(vzip1q_s8(v[2], v[3])),
                    high23 = vreinterpretq_s16_s8(vzip2q_s8(v[2], v[3]));
    to[0] = vreinterpretq_s8_s16(vzip1q_s16(low01, low23));
    to[1] = vreinterpretq_s8_s16(vzip2q_s16(low01, low23));
    to[2] = vreinterpretq_s8_s16(vzip1q_s16(high01, high23));
    to[3] = vreinterpretq_s8_s16(vzip2q_s16(high01, high23));
}

/* The values of a chunk of keys in 16 columns, interleaved. */
struct values {
    int8x16_t quad[(MOST_KEYS + QUAD - 1) / QUAD][QUAD];
};

/* Columns from c on, 16 or, if they are not `whole`, the last 8. Behind the last key it is read again: its P is 0 there. */
ALWAYS_INLINE void interleave_values(struct values *to, const struct keys_in_memory *v, int64_t keys, int64_t c,
                                     bool into_l2, bool whole) {
    for (int64_t j = 0; j < keys; j += QUAD) {
        int8x16_t row[QUAD];
        for (int i = 0; i < QUAD; ++i) {
            const int64_t key = j + i < keys ? j + i : keys - 1;
            const char *at = key_row(v, key, 1) + c;
            prefetch_byte(at, prefetch_distance_of(v, key), into_l2);
            row[i] = whole ? vld1q_s8((const int8_t *)at) : vcombine_s8(vld1_s8((const int8_t *)at), vdup_n_s8(0));
        }
        interleave(to->quad[j / QUAD], row);
    }
}

/* o[r] = a[r] o[r] + P v, of up to 16 columns from c on. rows x digits is at most 4: 16 vectors of sums. */
ALWAYS_INLINE void byte_value_columns(float *o, int64_t o_stride, const float *a, const struct weight_digits *p,
                                      const struct values *v, int64_t keys, int64_t columns, int rows, int digits) {
    int32x4_t sum[2][DIGITS][QUAD];
    for (int r = 0; r < rows; ++r)
        for (int g = 0; g < digits; ++g)
            for (int n = 0; n < QUAD; ++n) sum[r][g][n] = vdupq_n_s32(0);
    for (int64_t j = 0; j < (keys + QUAD - 1) / QUAD; ++j)
        for (int n = 0; n < QUAD; ++n) {
            const int8x16_t x = v->quad[j][n];
            for (int r = 0; r < rows; ++r) {
                sum[r][0][n] = vdotq_laneq_s32(sum[r][0][n], x, p[r].quad[j], 0);
                sum[r][1][n] = vdotq_laneq_s32(sum[r][1][n], x, p[r].quad[j], 1);
                if (digits == FEW_DIGITS) continue;
                sum[r][2][n] = vdotq_laneq_s32(sum[r][2][n], x, p[r].quad[j], 2);
                sum[r][3][n] = vdotq_laneq_s32(sum[r][3][n], x, p[r].quad[j], 3);
            }
        }
    for (int r = 0; r < rows; ++r)
        for (int n = 0; n < QUAD && n * QUAD < columns; ++n) {
            float *at = o + r * o_stride + n * QUAD;
            float32x4_t x = vcvtq_f32_s32(sum[r][digits - 1][n]);
            for (int g = digits - 2; g >= 0; --g) x = vfmaq_n_f32(vcvtq_f32_s32(sum[r][g][n]), x, 256);
            vst1q_f32(at, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(at), a[r]), x, p[r].scale));
        }
}

/* V's columns are whole pairs of decode_rows.h: o then has them in order. */
static inline bool has_byte_values(int64_t columns) { return columns % PAIR == 0; }

/* value_products() of `rows` rows, 1, 2 or 4. Returns false, and does nothing, where P has no digits. */
static inline bool byte_value_products(float *o, int64_t o_stride, const float *a, const float *p,
                                       const struct keys_in_memory *v, int64_t keys, int rows, int digits) {
    struct weight_digits weights[ROWS_AT_ONCE];
    if (!has_byte_values(v->columns)) return false;
    for (int r = 0; r < rows; ++r)
        if (!pack_weights(&weights[r], p + r * ROW_SCORES, keys, digits)) return false;
    struct values values;
    for (int64_t c = 0; c < v->columns; c += BYTES) {
        const int64_t left = v->columns - c;
        if (left < BYTES)
            interleave_values(&values, v, keys, c, true, false);
        else if (v->into_l2)
            interleave_values(&values, v, keys, c, true, true);
        else
            interleave_values(&values, v, keys, c, false, true);
        for (int r = 0, at_once; r < rows; r += at_once) {
            float *to = o + r * o_stride + c;
            at_once = digits == FEW_DIGITS && rows > 1 ? 2 : 1;
            if (digits == DIGITS)
                byte_value_columns(to, o_stride, a + r, weights + r, &values, keys, left, 1, DIGITS);
            else if (at_once == 2)
                byte_value_columns(to, o_stride, a + r, weights + r, &values, keys, left, 2, FEW_DIGITS);
            else
                byte_value_columns(to, o_stride, a + r, weights + r, &values, keys, left, 1, FEW_DIGITS);
        }
    }
    return true;
}

#endif
