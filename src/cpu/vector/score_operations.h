/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_operations.h: the operations of a score function (core/score/score.h) on vectors. A value is LANES floats or LANES
 * integers of 32 bits, which lie in memory as floats do. An operation takes `count` vectors at once, so that choosing it
 * costs little; a stride of 0 repeats an operand's first vector. */
#ifndef STROBE_CPU_SCORE_OPERATIONS_H
#define STROBE_CPU_SCORE_OPERATIONS_H

#include <math.h>

#include "core/score/score.h"
#include "cpu/vector/tanh.h"
#include "math/float16.h"

typedef float vec_floats __attribute__((vector_size(4 * LANES))); /* what a vec may be, or the compiler's name for it */
typedef int32_t vec_ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t vec_uints __attribute__((vector_size(4 * LANES)));

ALWAYS_INLINE vec_ints i_load(const float *x) {
    vec_ints a;
    memcpy(&a, x, sizeof a);
    return a;
}

ALWAYS_INLINE void i_store(float *x, vec_ints a) { memcpy(x, &a, sizeof a); }
ALWAYS_INLINE vec_ints i_set(int32_t x) { return x - (vec_ints){0}; }
ALWAYS_INLINE vec_ints i_pick(vec_ints where, vec_ints yes, vec_ints no) { return (yes & where) | (no & ~where); }

/* A vec by the names of the compiler's types: its floats, its bits; and back. */
ALWAYS_INLINE vec_floats f_floats(vec x) {
    vec_floats a;
    memcpy(&a, &x, sizeof a);
    return a;
}

ALWAYS_INLINE vec f_of_floats(vec_floats x) {
    vec a;
    memcpy(&a, &x, sizeof a);
    return a;
}

ALWAYS_INLINE vec_ints f_bits(vec x) { return (vec_ints)f_floats(x); }
ALWAYS_INLINE vec f_of_bits(vec_ints x) { return f_of_floats((vec_floats)x); }
ALWAYS_INLINE vec_ints f_whole(vec x) { return __builtin_convertvector(f_floats(x), vec_ints); }
ALWAYS_INLINE vec f_of_whole(vec_ints x) { return f_of_floats(__builtin_convertvector(x, vec_floats)); }

ALWAYS_INLINE vec f_pick(vec_ints where, vec yes, vec no) { return f_of_bits(i_pick(where, f_bits(yes), f_bits(no))); }
ALWAYS_INLINE vec_ints f_less(vec a, vec b) { return (vec_ints)(f_floats(a) < f_floats(b)); }
ALWAYS_INLINE vec_ints f_at_most(vec a, vec b) { return (vec_ints)(f_floats(a) <= f_floats(b)); }
ALWAYS_INLINE vec_ints f_equal(vec a, vec b) { return (vec_ints)(f_floats(a) == f_floats(b)); }

/* 2^n for whole n from -126 to 127, as the exponent's bits. */
ALWAYS_INLINE vec power_of_two(vec_ints n) { return f_of_bits((n + 127) << 23); }

ALWAYS_INLINE vec f_floor(vec x) {
    const vec whole = f_of_whole(f_whole(f_pick(f_less(v_abs(x), v_set(8388608)), x, v_set(0))));
    const vec floored = v_sub(whole, f_pick(f_less(x, whole), v_set(1), v_set(0)));
    return f_pick(f_less(v_abs(x), v_set(8388608)), floored, x);
}

/* 2^n 2^rest, for whole n and rest within 0.5; x is out of these bounds, or NaN, where the result is 0, infinite, or NaN. */
ALWAYS_INLINE vec scaled_power(vec n, vec rest, vec x, float least, float most) {
    const vec bounded = v_max(v_set(-126), v_min(v_set(128), n)); /* a NaN passes, and is picked away below */
    const vec_ints exponent = f_whole(f_pick(f_equal(bounded, bounded), bounded, v_set(0)));
    const vec_ints half = exponent >> 1;
    const vec power = v_mul(v_mul(v_exp2(rest), power_of_two(half)), power_of_two(exponent - half));
    const vec high = f_pick(f_less(v_set(most), x), v_set(INFINITY), power);
    const vec bounded_below = f_pick(f_less(x, v_set(least)), v_set(0), high);
    return f_pick(f_equal(x, x), bounded_below, x);
}

ALWAYS_INLINE vec f_exp2(vec x) {
    const vec n = f_floor(v_add(x, v_set(0.5f)));
    return scaled_power(n, v_sub(x, n), x, -126, 127.99999f);
}

/* x = n ln 2 + r; ln 2 in two parts, the first of which n multiplies exactly. */
ALWAYS_INLINE vec f_exp(vec x) {
    const vec n = f_floor(v_add(v_mul(x, v_set((float)LOG2_E)), v_set(0.5f)));
    const vec r = v_sub(v_sub(x, v_mul(n, v_set(0.693359375f))), v_mul(n, v_set(-2.12194440e-4f)));
    return scaled_power(n, v_mul(r, v_set((float)LOG2_E)), x, -87.33f, 88.72283f);
}

/* x = 2^e m with m around 1; log m = 2 atanh s with s = (m - 1) / (m + 1). */
ALWAYS_INLINE vec f_log(vec x) {
    const vec_ints bits = f_bits(x), e = (bits - 0x3f3504f3) >> 23; /* sqrt(1/2) and above belong to exponent 0 */
    const vec m = f_of_bits(bits - (e << 23)), exponent = f_of_whole(e);
    const vec s = v_div(v_sub(m, v_set(1)), v_add(m, v_set(1))), square = v_mul(s, s);
    vec p = v_add(v_mul(v_set(2 / 9.0f), square), v_set(2 / 7.0f));
    p = v_add(v_mul(p, square), v_set(2 / 5.0f));
    p = v_add(v_mul(p, square), v_set(2 / 3.0f));
    const vec of_m = v_add(v_mul(v_mul(s, square), p), v_mul(s, v_set(2)));
    const vec log = v_add(v_mul(exponent, v_set(0.693359375f)), v_add(of_m, v_mul(exponent, v_set(-2.12194440e-4f))));
    const vec positive = f_pick(f_equal(x, v_set(INFINITY)), x, log);
    const vec some = f_pick(f_less(x, v_set(1.17549435e-38f)), v_set(-INFINITY), positive);
    return f_pick(f_at_most(v_set(0), x), some, v_set(NAN));
}

ALWAYS_INLINE vec f_tanh(vec x) { return f_pick(f_equal(x, x), v_tanh(x), x); }

ALWAYS_INLINE vec f_pow(vec x, vec y) {
    float a[LANES], b[LANES];
    v_store(a, x), v_store(b, y);
    for (int lane = 0; lane < LANES; ++lane) a[lane] = powf(a[lane], b[lane]);
    return v_load(a);
}

/* Towards zero; the nearest integer where it does not fit, 0 of a NaN. */
ALWAYS_INLINE vec_ints f_to_i(vec x) {
    const vec_ints fits = f_less(v_abs(x), v_set(2147483648.0f));
    const vec_ints inside = f_whole(f_pick(fits, x, v_set(0)));
    const vec_ints outside = i_pick(f_less(v_set(0), x), i_set(INT32_MAX),
                                    i_pick(f_less(x, v_set(0)), i_set(INT32_MIN), i_set(0)));
    return i_pick(fits, inside, outside);
}

/* The quotient of float64 is exact enough for integers of 32 bits; by 0 it is 0. -2^31 / -1 wraps. */
ALWAYS_INLINE vec_ints i_divide(vec_ints x, vec_ints y) {
    int32_t a[LANES], b[LANES];
    memcpy(a, &x, sizeof a), memcpy(b, &y, sizeof b);
    for (int lane = 0; lane < LANES; ++lane) {
        const double quotient = (double)a[lane] / (b[lane] == 0 ? 1.0 : (double)b[lane]);
        a[lane] = b[lane] == 0 ? 0 : quotient >= 2147483648.0 ? INT32_MIN : (int32_t)quotient;
    }
    memcpy(&x, a, sizeof x);
    return x;
}

ALWAYS_INLINE vec_ints i_multiply(vec_ints a, vec_ints b) { return (vec_ints)((vec_uints)a * (vec_uints)b); }
ALWAYS_INLINE vec_ints i_add(vec_ints a, vec_ints b) { return (vec_ints)((vec_uints)a + (vec_uints)b); }
ALWAYS_INLINE vec_ints i_sub(vec_ints a, vec_ints b) { return (vec_ints)((vec_uints)a - (vec_uints)b); }
ALWAYS_INLINE vec_ints i_truth(vec_ints where) { return where & 1; }

/* An operand, result or element: vectors `stride` floats apart. */
struct score_operand {
    const float *at;
    int64_t stride;
};

/* Elements of an array at the offsets of one operand. */
static inline void apply_load(float *to, struct score_operand a, int64_t count, const strobe_score_elements *array) {
    for (int64_t n = 0; n < count; ++n) {
        int32_t offset[LANES], whole[LANES];
        float *out = to + n * LANES;
        memcpy(offset, a.at + n * a.stride, sizeof offset);
        switch (array->dtype) {
        case STROBE_FP32:
            for (int lane = 0; lane < LANES; ++lane) out[lane] = ((const float *)array->data)[offset[lane]];
            continue;
        case STROBE_FP16:
            for (int lane = 0; lane < LANES; ++lane)
                out[lane] = fp16_to_float(((const uint16_t *)array->data)[offset[lane]]);
            continue;
        case STROBE_BF16:
            for (int lane = 0; lane < LANES; ++lane)
                out[lane] = bf16_to_float(((const uint16_t *)array->data)[offset[lane]]);
            continue;
        case STROBE_INT32:
            for (int lane = 0; lane < LANES; ++lane) whole[lane] = ((const int32_t *)array->data)[offset[lane]];
            break;
        default:
            for (int lane = 0; lane < LANES; ++lane) whole[lane] = ((const uint8_t *)array->data)[offset[lane]];
        }
        memcpy(out, whole, sizeof whole);
    }
}

#define FOR_EACH_INTEGER(expression)                                                                     \
    for (int64_t n = 0; n < count; ++n) {                                                                \
        const vec_ints x = i_load(of[0].at + n * of[0].stride), y = i_load(of[1].at + n * of[1].stride); \
        (void)y;                                                                                         \
        i_store(to + n * LANES, expression);                                                             \
    }                                                                                                    \
    break
#define FOR_EACH_FLOAT(store, expression)                                                           \
    for (int64_t n = 0; n < count; ++n) {                                                           \
        const vec x = v_load(of[0].at + n * of[0].stride), y = v_load(of[1].at + n * of[1].stride); \
        (void)y;                                                                                    \
        store(to + n * LANES, expression);                                                          \
    }                                                                                               \
    break

static inline void apply_to_integers(enum score_operation operation, float *to, const struct score_operand of[3],
                                     int64_t count) {
    switch (operation) {
    case OP_I_ADD: FOR_EACH_INTEGER(i_add(x, y));
    case OP_I_SUB: FOR_EACH_INTEGER(i_sub(x, y));
    case OP_I_MUL: FOR_EACH_INTEGER(i_multiply(x, y));
    case OP_I_DIV: FOR_EACH_INTEGER(i_divide(x, y));
    case OP_I_MOD: FOR_EACH_INTEGER(i_pick(y == 0, i_set(0), i_sub(x, i_multiply(i_divide(x, y), y))));
    case OP_I_NEG: FOR_EACH_INTEGER(i_sub(i_set(0), x));
    case OP_I_ABS: FOR_EACH_INTEGER(i_pick(x < 0, i_sub(i_set(0), x), x));
    case OP_I_MIN: FOR_EACH_INTEGER(i_pick(x < y, x, y));
    case OP_I_MAX: FOR_EACH_INTEGER(i_pick(x > y, x, y));
    case OP_I_LESS: FOR_EACH_INTEGER(i_truth(x < y));
    case OP_I_LESS_EQUAL: FOR_EACH_INTEGER(i_truth(x <= y));
    case OP_I_EQUAL: FOR_EACH_INTEGER(i_truth(x == y));
    case OP_I_AND: FOR_EACH_INTEGER(x & y);
    case OP_I_OR: FOR_EACH_INTEGER(x | y);
    case OP_I_NOT: FOR_EACH_INTEGER(i_truth(x == 0));
    case OP_I_SELECT: FOR_EACH_INTEGER(i_pick(x != 0, y, i_load(of[2].at + n * of[2].stride)));
    default: FOR_EACH_INTEGER(f_bits(f_of_whole(x))); /* I_TO_F */
    }
}

static inline void apply_to_floats(enum score_operation operation, float *to, const struct score_operand of[3],
                                   int64_t count) {
    switch (operation) {
    case OP_F_ADD: FOR_EACH_FLOAT(v_store, v_add(x, y));
    case OP_F_SUB: FOR_EACH_FLOAT(v_store, v_sub(x, y));
    case OP_F_MUL: FOR_EACH_FLOAT(v_store, v_mul(x, y));
    case OP_F_DIV: FOR_EACH_FLOAT(v_store, v_div(x, y));
    case OP_F_NEG: FOR_EACH_FLOAT(i_store, f_bits(x) ^ INT32_MIN);
    case OP_F_ABS: FOR_EACH_FLOAT(v_store, v_abs(x));
    case OP_F_MIN: FOR_EACH_FLOAT(v_store, f_pick(f_less(x, y), x, y));
    case OP_F_MAX: FOR_EACH_FLOAT(v_store, f_pick(f_less(y, x), x, y));
    case OP_F_LESS: FOR_EACH_FLOAT(i_store, i_truth(f_less(x, y)));
    case OP_F_LESS_EQUAL: FOR_EACH_FLOAT(i_store, i_truth(f_at_most(x, y)));
    case OP_F_EQUAL: FOR_EACH_FLOAT(i_store, i_truth(f_equal(x, y)));
    case OP_F_SELECT: FOR_EACH_FLOAT(v_store, f_pick(f_bits(x) != 0, y, v_load(of[2].at + n * of[2].stride)));
    case OP_F_CHAIN: FOR_EACH_FLOAT(v_store, f_pick(f_equal(x, v_set(0)), x, v_mul(x, y)));
    case OP_F_EXP: FOR_EACH_FLOAT(v_store, f_exp(x));
    case OP_F_EXP2: FOR_EACH_FLOAT(v_store, f_exp2(x));
    case OP_F_LOG: FOR_EACH_FLOAT(v_store, f_log(x));
    case OP_F_TANH: FOR_EACH_FLOAT(v_store, f_tanh(x));
    case OP_F_SQRT: FOR_EACH_FLOAT(v_store, v_sqrt(x));
    case OP_F_FLOOR: FOR_EACH_FLOAT(v_store, f_floor(x));
    case OP_F_POW: FOR_EACH_FLOAT(v_store, f_pow(x, y));
    default: FOR_EACH_FLOAT(i_store, f_to_i(x)); /* F_TO_I */
    }
}
#undef FOR_EACH_INTEGER
#undef FOR_EACH_FLOAT

#endif
