/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_operations.h: the operations of a score function, by their names. core/score/score.h makes graphs of them, and
 * kernels of every backend work them out. */
#ifndef STROBE_MATH_SCORE_OPERATIONS_H
#define STROBE_MATH_SCORE_OPERATIONS_H

/* The operations and how many operands each has, F(name, operands). The operands of I operations are integers, those of F
 * operations floats, unless the name says another thing. The I operations stand together. */
#define SCORE_SIZES(F)     F(CONSTANT, 0) F(SCALAR, 0) F(SCORE, 0) F(SEQ_Q, 0) F(SEQ_K, 0)
#define SCORE_POSITIONS(F) F(BATCH, 0) F(HEAD, 0) F(HEAD_KV, 0) F(ROW, 0) F(KEY, 0)
#define SCORE_ELEMENTS(F)  F(STRIDE, 0) F(LAST, 0) F(LOAD, 1)
#define SCORE_I_SUMS(F)    F(I_ADD, 2) F(I_SUB, 2) F(I_MUL, 2) F(I_DIV, 2) F(I_MOD, 2) F(I_NEG, 1) F(I_ABS, 1)
#define SCORE_I_ORDERS(F)  F(I_MIN, 2) F(I_MAX, 2) F(I_LESS, 2) F(I_LESS_EQUAL, 2) F(I_EQUAL, 2)
#define SCORE_I_CHOICES(F) F(I_AND, 2) F(I_OR, 2) F(I_NOT, 1) F(I_SELECT, 3)
#define SCORE_F_SUMS(F)    F(F_ADD, 2) F(F_SUB, 2) F(F_MUL, 2) F(F_DIV, 2) F(F_NEG, 1) F(F_ABS, 1) F(F_CHAIN, 2)
#define SCORE_F_ORDERS(F)  F(F_MIN, 2) F(F_MAX, 2) F(F_LESS, 2) F(F_LESS_EQUAL, 2) F(F_EQUAL, 2) F(F_SELECT, 3)
#define SCORE_F_CURVES(F)  F(F_EXP, 1) F(F_EXP2, 1) F(F_LOG, 1) F(F_TANH, 1) F(F_SQRT, 1) F(F_FLOOR, 1) F(F_POW, 2)
#define SCORE_CASTS(F)     F(I_TO_F, 1) F(F_TO_I, 1)
#define SCORE_LEAVES(F)    SCORE_SIZES(F) SCORE_POSITIONS(F) SCORE_ELEMENTS(F)
#define SCORE_INTEGERS(F)  SCORE_I_SUMS(F) SCORE_I_ORDERS(F) SCORE_I_CHOICES(F)
#define SCORE_FLOATS(F)    SCORE_F_SUMS(F) SCORE_F_ORDERS(F) SCORE_F_CURVES(F)

#define STROBE__SCORE_OPERATIONS(F) SCORE_LEAVES(F) SCORE_INTEGERS(F) SCORE_FLOATS(F) SCORE_CASTS(F)

enum score_operation {
#define SCORE_ENUMERATOR(name, operands) OP_##name,
    STROBE__SCORE_OPERATIONS(SCORE_ENUMERATOR)
#undef SCORE_ENUMERATOR
        OP_COUNT
};

#endif
