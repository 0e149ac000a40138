/* SPDX-License-Identifier: BSD-3-Clause
 *
 * function_pairs.h: the steps of the user's `visible` on the pairs of a unit that is visible in part. A thread has sixteen
 * neighbouring keys of a row, and works on as many of them at a time as shared memory has room for: which operation a step
 * is, and where its operands lie, is found out once for all of them. */
#ifndef STROBE_CUDA_DEVICE_FUNCTION_PAIRS_H
#define STROBE_CUDA_DEVICE_FUNCTION_PAIRS_H

#include "cuda/device/function_steps.h"

/* Values of a step for the pairs at once, one beside the other. */
struct pair_values {
    uint32_t of[MOST_AT_ONCE];
};

#define EACH_PAIR _Pragma("unroll") for (int x = 0; x < MOST_AT_ONCE; ++x)

/* Where a thread's value of a register for its nth pair lies. */
INLINE uint32_t *pair_word(const struct any_visible_function *f, const struct function_memory *m, int at, int n) {
    return &m->pairs[(at * f->head.at_once + n) * UNIT_THREADS + (int)threadIdx.x];
}

/* The values of a row, of keys from `key` on, or of pairs. What lies behind the pairs at once is not looked at. */
INLINE struct pair_values values_at(const struct any_visible_function *f, const struct function_memory *m, int place, int at,
                                    int row, int key) {
    struct pair_values v;
    const int most = f->head.at_once;
    if (place == PLACE_PAIR) {
        EACH_PAIR v.of[x] = x < most ? *pair_word(f, m, at, x) : 0;
    } else if (place == PLACE_KEY) {
        EACH_PAIR v.of[x] = x < most ? m->keys[at * KEY_WORDS + key_word(key) + x] : 0;
    } else {
        EACH_PAIR v.of[x] = m->rows[at * UNIT + row];
    }
    return v;
}

INLINE struct pair_values operand_of(const struct any_visible_function *f, const struct function_memory *m,
                                     const struct function_step *s, int which, int row, int key) {
    return values_at(f, m, s->from_place[which], s->from[which], row, key);
}

#define PAIRS_OF(name, x_type, values)                      \
    case OP_##name:                                         \
        EACH_PAIR r->of[x] = bits_of(score_##name(values)); \
        return true;
#define INTEGERS_OF(name) PAIRS_OF(name, int32_t, TWO((int32_t)a.of[x], (int32_t)b.of[x]))
#define TWO(x, y)         x, y
#define FLOATS_OF(name)   PAIRS_OF(name, float, TWO(__uint_as_float(a.of[x]), __uint_as_float(b.of[x])))

/* The operations that functions of visibility are made of, on all pairs at once; false: another. */
INLINE bool apply_at_once(const struct any_visible_function *f, const struct function_memory *m,
                          const struct function_step *s, int row, int key, struct pair_values *r) {
    const struct pair_values a = operand_of(f, m, s, 0, row, key);
    if (s->operation == OP_LOAD) {
        const int most = f->head.at_once;
        EACH_PAIR r->of[x] = x < most ? element_of(&f->array[s->array], (int32_t)a.of[x]) : 0;
        return true;
    }
    const struct pair_values b = operand_of(f, m, s, 1, row, key);
    switch (s->operation) {
        INTEGERS_OF(I_ADD)
        INTEGERS_OF(I_SUB)
        INTEGERS_OF(I_MUL)
        INTEGERS_OF(I_DIV)
        INTEGERS_OF(I_MOD)
        INTEGERS_OF(I_MIN)
        INTEGERS_OF(I_MAX)
        INTEGERS_OF(I_LESS)
        INTEGERS_OF(I_LESS_EQUAL)
        INTEGERS_OF(I_EQUAL)
        INTEGERS_OF(I_AND)
        INTEGERS_OF(I_OR)
        FLOATS_OF(F_ADD)
        FLOATS_OF(F_SUB)
        FLOATS_OF(F_MUL)
        FLOATS_OF(F_LESS)
        FLOATS_OF(F_LESS_EQUAL)
        FLOATS_OF(F_EQUAL)
    case OP_I_NOT: EACH_PAIR r->of[x] = bits_of(score_I_NOT((int32_t)a.of[x])); return true;
    case OP_I_ABS: EACH_PAIR r->of[x] = bits_of(score_I_ABS((int32_t)a.of[x])); return true;
    case OP_I_NEG: EACH_PAIR r->of[x] = bits_of(score_I_NEG((int32_t)a.of[x])); return true;
    default: return false;
    }
}

/* One step on the pairs at once, of `row` and of keys from `key` on. */
INLINE void run_step(const struct any_visible_function *f, const struct function_memory *m, const struct function_step *s,
                     int row, int key) {
    struct pair_values r;
    const int most = f->head.at_once;
    if (apply_at_once(f, m, s, row, key, &r)) {
        EACH_PAIR if (x < most) * pair_word(f, m, s->at, x) = r.of[x];
        return;
    }
#pragma unroll 1
    for (int x = 0; x < most; ++x) {
        uint32_t of[3];
#pragma unroll
        for (int which = 0; which < 3; ++which) {
            const int place = s->from_place[which], at = s->from[which];
            of[which] = place == PLACE_PAIR  ? *pair_word(f, m, at, x)
                        : place == PLACE_KEY ? m->keys[at * KEY_WORDS + key_word(key) + x]
                                             : m->rows[at * UNIT + row];
        }
        *pair_word(f, m, s->at, x) = value_of_operation(s->operation, of[0], of[1], of[2]);
    }
}

/* Which of the sixteen keys from `key` on the row sees; key: a multiple of sixteen. */
INLINE uint32_t run_pairs(const struct any_visible_function *f, const struct function_memory *m, int row, int key) {
    const int lines = f->head.count[PLACE_CALL] + f->head.count[PLACE_ROW] + f->head.count[PLACE_KEY];
    const struct function_step *root = &f->step[f->head.root];
    uint32_t seen = 0;
#pragma unroll 1
    for (int first = 0; first < 16; first += f->head.at_once) {
#pragma unroll 1
        for (int n = lines; n < f->head.steps; ++n) run_step(f, m, &f->step[n], row, key + first);
        const struct pair_values all = values_at(f, m, root->place, root->at, row, key + first);
        uint32_t now = 0;
        EACH_PAIR now |= (uint32_t)(all.of[x] != 0) << x;
        seen |= (now & ((1u << f->head.at_once) - 1)) << first;
    }
    return seen;
}

#endif
