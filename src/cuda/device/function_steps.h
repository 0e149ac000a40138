/* SPDX-License-Identifier: BSD-3-Clause
 *
 * function_steps.h: the steps of the user's `visible` (visible_function.h), on ranges and on values. Of ranges a step is
 * worked out by all lanes of a warp alike, which share the elements that it reads; of values a thread has its own row, key
 * or pairs. What an operation does is said in math/score_intervals.h and math/score_arithmetic.h. */
#ifndef STROBE_CUDA_DEVICE_FUNCTION_STEPS_H
#define STROBE_CUDA_DEVICE_FUNCTION_STEPS_H

#include "cuda/device/sequence.h"
#include "cuda/device/visible_function.h"
#include "math/score_arithmetic.h"
#include "math/score_intervals.h"

#if defined(SMALL_FUNCTION)
#define any_visible_function small_visible_function
#else
#define any_visible_function visible_function
#endif

/* What is the same for all pairs of an owner. */
struct function_place {
    int b, h, hkv, rows, keys;
};

/* Positions in a sequence, ends included. */
struct function_box {
    int first_row, last_row, first_key, last_key;
};

struct function_memory {
    struct interval *ranges;       /* [warps][steps] */
    uint32_t *rows, *keys, *pairs; /* [slots][UNIT], [slots][KEY_WORDS], [registers][at_once][UNIT_THREADS] */
};

INLINE struct function_memory function_memory_of(const struct any_visible_function *f, unsigned char *memory) {
    struct function_memory m;
    m.ranges = (struct interval *)memory;
    m.rows = (uint32_t *)(m.ranges + RANGE_WARPS * f->head.steps);
    m.keys = m.rows + f->head.slots * UNIT;
    m.pairs = m.keys + f->head.slots * KEY_WORDS;
    return m;
}

INLINE int length_of(const struct any_visible_function *f, const void *used, const void *offsets, int batch, int most) {
    if (used) return clamp(entry(used, f->head.index64, batch), most);
    if (offsets) return clamp(entry(offsets, f->head.index64, batch + 1) - entry(offsets, f->head.index64, batch), most);
    return most;
}

INLINE struct function_place function_place_of(const struct any_visible_function *f, int batch, int head) {
    struct function_place at = {batch, head, head / f->head.group,
                                length_of(f, f->head.used_q, f->head.cu_q, batch, f->head.pass.seq_q),
                                length_of(f, f->head.used_k, f->head.cu_k, batch, f->head.pass.seq_k)};
    if (f->head.leftpad) at.keys -= clamp(entry(f->head.leftpad, f->head.index64, batch), at.keys);
    return at;
}

/* ------------------------------------------------------------------------------------------------------------- ranges -- */

/* More elements than this are not read for a unit: what they hold may be anything. As on the CPU. */
enum { MOST_ELEMENTS = 1024 };

INLINE double element_in_double(const struct function_array *x, int64_t at) {
    if (x->dtype == CUDA_INT32) return (double)((const int32_t *)x->data)[at];
    if (x->dtype == CUDA_UINT8) return (double)((const uint8_t *)x->data)[at];
    return (double)load_any(x->data, x->dtype, at);
}

INLINE struct interval range_of_dtype(int dtype) {
    if (dtype == CUDA_UINT8) return interval_of(0, 255);
    return dtype == CUDA_INT32 ? interval_of(INTERVAL_LEAST, INTERVAL_MOST) : interval_unknown();
}

/* The least and the most of the elements that the indices may name, where these are few. */
INLINE struct interval range_of_load(const struct any_visible_function *f, const struct function_load *load,
                                     const struct interval *ranges) {
    const struct function_array *x = &f->array[load->array];
    int first[MOST_INDICES] = {0, 0, 0, 0}, count[MOST_INDICES] = {1, 1, 1, 1}, elements = 1;
#pragma unroll
    for (int axis = 0; axis < MOST_INDICES; ++axis) {
        if (axis >= x->rank) continue;
        const double last = x->extent[axis] - 1;
        const struct interval index = ranges[load->index[axis]];
        first[axis] = (int)interval_least(interval_most(index.lo, 0), last);
        count[axis] = (int)interval_least(interval_most(index.hi, 0), last) - first[axis] + 1;
        elements = elements > MOST_ELEMENTS || count[axis] > MOST_ELEMENTS ? MOST_ELEMENTS + 1 : elements * count[axis];
    }
    if (elements > MOST_ELEMENTS) return range_of_dtype(x->dtype);
    double lo = INTERVAL_INFINITY, hi = -INTERVAL_INFINITY;
    int nan = 0;
    for (int n = (int)threadIdx.x % 32; n < elements; n += 32) {
        int rest = n;
        int64_t at = 0;
#pragma unroll
        for (int axis = MOST_INDICES - 1; axis >= 0; --axis) {
            at += (int64_t)(first[axis] + rest % count[axis]) * x->stride[axis];
            rest /= count[axis];
        }
        const double value = element_in_double(x, at);
        nan |= value != value;
        lo = interval_least(value, lo), hi = interval_most(value, hi); /* a NaN leaves them as they are */
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        lo = interval_least(lo, __shfl_xor_sync(0xffffffffu, lo, lanes));
        hi = interval_most(hi, __shfl_xor_sync(0xffffffffu, hi, lanes));
    }
    if (lo > hi) return interval_unknown();
    struct interval sum = interval_of(lo, hi);
    sum.nan = __any_sync(0xffffffffu, nan);
    return sum;
}

INLINE struct interval range_of_leaf(const struct any_visible_function *f, const struct function_step *s,
                                     const struct function_place *at, const struct function_box *box) {
    switch (s->operation) {
    case OP_BATCH: return interval_of(at->b, at->b);
    case OP_HEAD: return interval_of(at->h, at->h);
    case OP_HEAD_KV: return interval_of(at->hkv, at->hkv);
    case OP_ROW: return interval_of((double)f->head.q_start + box->first_row, (double)f->head.q_start + box->last_row);
    case OP_KEY: return interval_of((double)f->head.k_start + box->first_key, (double)f->head.k_start + box->last_key);
    case OP_SEQ_Q: return interval_of(at->rows, at->rows);
    case OP_SEQ_K: return interval_of(at->keys, at->keys);
    default: break;
    }
    const double x = f->leaf[s->number];
    if (s->is_integer) return interval_of(x, x);
    return x != x ? interval_unknown() : interval_widen(x, x, 0);
}

/* The function on a box, by a warp; ranges: of its steps. */
INLINE struct interval range_of_function(const struct any_visible_function *f, const struct function_place *at,
                                         const struct function_box *box, struct interval *ranges) {
#pragma unroll 1
    for (int n = 0; n < f->head.steps; ++n) {
        const struct function_step *s = &f->step[n];
        struct interval x;
        if (s->operation <= OP_LAST) {
            x = range_of_leaf(f, s, at, box);
        } else if (s->operation == OP_LOAD) {
            x = range_of_load(f, &f->load[s->number], ranges);
        } else {
            x = interval_of_operation(s->operation, ranges[s->operand[0]], ranges[s->operand[1]], ranges[s->operand[2]]);
            if (s->is_integer) x = interval_wrap(x);
        }
        if (threadIdx.x % 32 == 0) ranges[n] = x;
        __syncwarp();
    }
    return ranges[f->head.root];
}

/* ------------------------------------------------------------------------------------------------------------- values -- */

INLINE uint32_t bits_of(int32_t x) { return (uint32_t)x; }
INLINE uint32_t bits_of(float x) { return __float_as_uint(x); }

INLINE uint32_t value_of_operation(int operation, uint32_t x, uint32_t y, uint32_t z) {
    const int32_t a = (int32_t)x, b = (int32_t)y;
    const float f = __uint_as_float(x), g = __uint_as_float(y);
    switch (operation) {
    case OP_I_ADD: return bits_of(score_I_ADD(a, b));
    case OP_I_SUB: return bits_of(score_I_SUB(a, b));
    case OP_I_MUL: return bits_of(score_I_MUL(a, b));
    case OP_I_DIV: return bits_of(score_I_DIV(a, b));
    case OP_I_MOD: return bits_of(score_I_MOD(a, b));
    case OP_I_MIN: return bits_of(score_I_MIN(a, b));
    case OP_I_MAX: return bits_of(score_I_MAX(a, b));
    case OP_I_LESS: return bits_of(score_I_LESS(a, b));
    case OP_I_LESS_EQUAL: return bits_of(score_I_LESS_EQUAL(a, b));
    case OP_I_EQUAL: return bits_of(score_I_EQUAL(a, b));
    case OP_I_AND: return bits_of(score_I_AND(a, b));
    case OP_I_OR: return bits_of(score_I_OR(a, b));
    case OP_I_NEG: return bits_of(score_I_NEG(a));
    case OP_I_ABS: return bits_of(score_I_ABS(a));
    case OP_I_NOT: return bits_of(score_I_NOT(a));
    case OP_I_TO_F: return bits_of(score_I_TO_F(a));
    case OP_I_SELECT:
    case OP_F_SELECT: return x ? y : z;
    case OP_F_ADD: return bits_of(score_F_ADD(f, g));
    case OP_F_SUB: return bits_of(score_F_SUB(f, g));
    case OP_F_MUL: return bits_of(score_F_MUL(f, g));
    case OP_F_DIV: return bits_of(score_F_DIV(f, g));
    case OP_F_CHAIN: return bits_of(score_F_CHAIN(f, g));
    case OP_F_MIN: return bits_of(score_F_MIN(f, g));
    case OP_F_MAX: return bits_of(score_F_MAX(f, g));
    case OP_F_LESS: return bits_of(score_F_LESS(f, g));
    case OP_F_LESS_EQUAL: return bits_of(score_F_LESS_EQUAL(f, g));
    case OP_F_EQUAL: return bits_of(score_F_EQUAL(f, g));
    case OP_F_POW: return bits_of(score_F_POW(f, g));
    case OP_F_NEG: return bits_of(score_F_NEG(f));
    case OP_F_ABS: return bits_of(score_F_ABS(f));
    case OP_F_EXP: return bits_of(score_F_EXP(f));
    case OP_F_EXP2: return bits_of(score_F_EXP2(f));
    case OP_F_LOG: return bits_of(score_F_LOG(f));
    case OP_F_TANH: return bits_of(score_F_TANH(f));
    case OP_F_SQRT: return bits_of(score_F_SQRT(f));
    case OP_F_FLOOR: return bits_of(score_F_FLOOR(f));
    default: return bits_of(score_F_TO_I(f));
    }
}

INLINE uint32_t element_of(const struct function_array *x, int32_t at) {
    if (x->dtype == CUDA_INT32) return ((const uint32_t *)x->data)[at];
    if (x->dtype == CUDA_UINT8) return ((const uint8_t *)x->data)[at];
    return bits_of(load_any(x->data, x->dtype, at));
}

INLINE uint32_t value_of_leaf(const struct any_visible_function *f, const struct function_step *s,
                              const struct function_place *at, int row, int key) {
    switch (s->operation) {
    case OP_BATCH: return bits_of(at->b);
    case OP_HEAD: return bits_of(at->h);
    case OP_HEAD_KV: return bits_of(at->hkv);
    case OP_ROW: return bits_of(f->head.q_start + row);
    case OP_KEY: return bits_of(f->head.k_start + key);
    case OP_SEQ_Q: return bits_of(at->rows);
    case OP_SEQ_K: return bits_of(at->keys);
    default: return s->is_integer ? bits_of((int32_t)f->leaf[s->number]) : bits_of((float)f->leaf[s->number]);
    }
}

/* Where a key's value lies in its slot. */
INLINE int key_word(int key) { return key + key / 16; }

/* The values that do not depend on pairs: of the first UNIT threads those of a row each, of the others those of a key each.
 * What is of the call lies in both. */
INLINE void run_lines(const struct any_visible_function *f, const struct function_memory *m, const struct function_place *at,
                      int first_row, int first_key) {
    const bool is_key = threadIdx.x >= UNIT;
    const int own = (int)threadIdx.x % UNIT, width = is_key ? KEY_WORDS : UNIT;
    const int row = min(first_row + own, at->rows - 1), key = min(first_key + own, at->keys - 1);
    uint32_t *const line = is_key ? m->keys + key_word(own) : m->rows + own;
    const int lines = f->head.count[PLACE_CALL] + f->head.count[PLACE_ROW] + f->head.count[PLACE_KEY];
#pragma unroll 1
    for (int n = 0; n < lines; ++n) {
        const struct function_step *s = &f->step[n];
        if (s->place == (is_key ? PLACE_ROW : PLACE_KEY)) continue;
        uint32_t x;
        if (s->operation <= OP_LAST)
            x = value_of_leaf(f, s, at, row, key);
        else if (s->operation == OP_LOAD)
            x = element_of(&f->array[s->array], (int32_t)(line[s->from[0] * width]));
        else
            x = value_of_operation(s->operation, line[s->from[0] * width], line[s->from[1] * width],
                                   line[s->from[2] * width]);
        line[s->at * width] = x;
    }
}

#endif
