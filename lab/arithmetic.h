/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arithmetic.h: the operations on tiles, each of which is counted. Results take their shape from the operands and are
 * rounded to the memory's working format; in a product every multiplication and addition is. Where a row has seen no key yet
 * (m = -inf, l = 0), exponentials and quotients are 0, so that no NaN arises. */
#ifndef STROBE_LAB_ARITHMETIC_H
#define STROBE_LAB_ARITHMETIC_H

#include "memory.h"
#include "problem.h"

/* Products, as a tensor core does them: the left operand is rounded to the format of the elements, sums are not.
 * nt: C = alpha A B^T.  nn: C += alpha A B.  tn: C += alpha A^T B. The last two want C's shape set (lab_zero). */
void lab_product_nt(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b);
void lab_accumulate_nn(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b);
void lab_accumulate_tn(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b);

/* Initialisation in fast memory. It is not counted, since nothing is moved and nothing calculated. */
void lab_zero(lab_memory *memory, lab_tile *x, int64_t rows, int64_t cols);
void lab_minus_infinity(lab_memory *memory, lab_tile *x, int64_t rows, int64_t cols);
void lab_copy(lab_memory *memory, lab_tile *to, const lab_tile *from);

/* Over the rows of S: the maximum, exp(S - m), the sum. */
void lab_row_max(lab_memory *memory, lab_tile *m, const lab_tile *s);
void lab_exp_minus(lab_memory *memory, lab_tile *p, const lab_tile *s, const lab_tile *m);
void lab_row_sum(lab_memory *memory, lab_tile *l, const lab_tile *p);

/* Over columns that hold one scalar for each row. */
void lab_max(lab_memory *memory, lab_tile *to, const lab_tile *a, const lab_tile *b);
void lab_exp_difference(lab_memory *memory, lab_tile *to, const lab_tile *a, const lab_tile *b); /* exp(a - b) */
void lab_scale(lab_memory *memory, lab_tile *x, const lab_tile *factor);                         /* x = factor x */
void lab_scale_add(lab_memory *memory, lab_tile *x, const lab_tile *factor, const lab_tile *y);  /* x = factor x + y */
void lab_add(lab_memory *memory, lab_tile *x, const lab_tile *y);
void lab_lse(lab_memory *memory, lab_tile *lse, const lab_tile *m, const lab_tile *l); /* m + ln l */

/* Rows of X times, or by, the scalar of their row: diag(f) X, diag(f)^-1 X. */
void lab_rescale_rows(lab_memory *memory, lab_tile *x, const lab_tile *factor);
void lab_divide_rows(lab_memory *memory, lab_tile *x, const lab_tile *divisor);

/* Backward: D = rowsum(A o B), and dS = P o (dP - D), in place of dP. */
void lab_row_dot(lab_memory *memory, lab_tile *d, const lab_tile *a, const lab_tile *b);
void lab_softmax_gradient(lab_memory *memory, lab_tile *dp, const lab_tile *p, const lab_tile *d);

/* Scores that are out of sight become -inf; (row, col): the place of the tile in S. Comparisons of indices: not counted. */
void lab_mask(lab_memory *memory, lab_tile *s, const lab_problem *problem, int64_t row, int64_t col);

/* P = P o Z, Z = 0 with probability p, else 1 / (1 - p): the library's Philox mask, so that backward and every tiling see
 * the same one. */
void lab_dropout(lab_memory *memory, lab_tile *p, const lab_problem *problem, int64_t row, int64_t col);

#endif
