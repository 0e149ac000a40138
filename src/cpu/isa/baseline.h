/* SPDX-License-Identifier: BSD-3-Clause
 *
 * baseline.h: the vocabulary of vector operations (see level.h) in plain C: a vector is an array of 4 floats in a register,
 * by the vector extension that gcc and clang share. It becomes SSE2 on x86-64 and NEON on AArch64. */
#ifndef STROBE_CPU_ISA_BASELINE_H
#define STROBE_CPU_ISA_BASELINE_H

#include <math.h>

#include "math/exp2.h"
#include "math/float16.h"

/* Register tile: 4 x 2 is 8 accumulators, 2 operands, a broadcast, and a product: without FMA the product needs its own. */
enum { LANES = 4, VECTORS = 2, UNROLL = 4 };

typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_bits __attribute__((vector_size(16)));

static inline vec v_load(const float *x) {
    vec a;
    memcpy(&a, x, sizeof a);
    return a;
}

static inline void v_store(float *x, vec a) { memcpy(x, &a, sizeof a); }
static inline vec v_set(float x) { return (vec){x, x, x, x}; }
static inline vec v_add(vec a, vec b) { return a + b; }
static inline vec v_sub(vec a, vec b) { return a - b; }
static inline vec v_mul(vec a, vec b) { return a * b; }
static inline vec v_div(vec a, vec b) { return a / b; }
static inline vec v_fma(vec a, vec b, vec c) { return a * b + c; }

static inline vec v_pick(vec_bits where, vec yes, vec no) {
    return (vec)(((vec_bits)yes & where) | ((vec_bits)no & ~where));
}

static inline vec v_max(vec a, vec b) { return v_pick(a > b, a, b); }
static inline vec v_abs(vec a) { return (vec)((vec_bits)a & 0x7fffffff); }
static inline vec v_select_less(vec a, vec b, vec yes, vec no) { return v_pick(a < b, yes, no); }
static inline vec v_select_equal(vec a, vec b, vec yes, vec no) { return v_pick(a == b, yes, no); }

static inline vec v_load_bf16(const uint16_t *x) {
    return (vec){bf16_to_float(x[0]), bf16_to_float(x[1]), bf16_to_float(x[2]), bf16_to_float(x[3])};
}

static inline vec v_load_fp16(const uint16_t *x) {
    return (vec){fp16_to_float(x[0]), fp16_to_float(x[1]), fp16_to_float(x[2]), fp16_to_float(x[3])};
}

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, corrected to the floor; its exponent goes to the polynomial's
 * bits. Below -125 the result is 0: a denormal would be slow. Arguments are at most 127: the softmax's are at most 0. */
static inline vec v_exp2(vec x) {
    const vec clamped = v_pick(x < v_set(-126.0f), v_set(-126.0f), x);
    const vec rounded = (clamped + v_set(12582912.0f)) - v_set(12582912.0f);
    const vec whole = rounded - v_pick(rounded > clamped, v_set(1.0f), v_set(0.0f));
    const vec f = clamped - whole;
    vec p = v_set(EXP2_C5) * f + v_set(EXP2_C4);
    p = p * f + v_set(EXP2_C3);
    p = p * f + v_set(EXP2_C2);
    p = p * f + v_set(EXP2_C1);
    p = p * f + v_set(EXP2_C0);
    const vec_bits shift = ((vec_bits)(whole + v_set(12582912.0f)) - 0x4b400000) << 23;
    const vec kept = v_pick(x < v_set(-125.0f), v_set(0.0f), (vec)((vec_bits)p + shift));
    return v_pick(x == x, kept, x);
}

#endif
