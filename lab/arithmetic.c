/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arithmetic.c: counted operations on tiles; see arithmetic.h. */
#include "arithmetic.h"

#include "philox.h"

#include <math.h>
#include <stdlib.h>

/* Rounds a result to the working format: fp64 or fp32. */
static double work(const lab_memory *memory, double x) { return memory->working == LAB_FP32 ? (double)(float)x : x; }

/* ---------------------------------------------------------------------------------------------------------- products -- */

/* A matrix inside a tile: element (i, j) at at[i * row + j * col]. */
typedef struct operand {
    const double *at;
    int64_t row, col;
} operand;

/* An element of A as a factor of a product. It is multiplied by alpha after rounding, as kernels do with tau. */
static double factor(const lab_memory *memory, double alpha, operand a, int64_t i, int64_t k) {
    return work(memory, alpha * lab_round(a.at[i * a.row + k * a.col], memory->elements));
}

static void accumulate_fp64(const lab_memory *memory, lab_tile *c, double alpha, operand a, operand b, int64_t inner) {
    for (int64_t i = 0; i < c->rows; ++i)
        for (int64_t k = 0; k < inner; ++k) {
            const double left = factor(memory, alpha, a, i, k);
            const double *right = b.at + k * b.row;
            double *sum = c->at + i * c->cols;
            for (int64_t j = 0; j < c->cols; ++j) sum[j] += left * right[j * b.col];
        }
}

/* The same in fp32, on copies of B and of a row of C. Each product and each sum is rounded, as by two instructions. */
static void accumulate_fp32(lab_memory *memory, lab_tile *c, double alpha, operand a, operand b, int64_t inner) {
    float *right = malloc((size_t)((inner + 1) * c->cols) * sizeof *right), *sum = right + inner * c->cols;
    if (!right) {
        lab_refuse(memory, "this machine has no memory for a product of tile %s", c->name);
        return;
    }
    for (int64_t k = 0; k < inner; ++k)
        for (int64_t j = 0; j < c->cols; ++j) right[k * c->cols + j] = (float)b.at[k * b.row + j * b.col];
    for (int64_t i = 0; i < c->rows; ++i) {
        for (int64_t j = 0; j < c->cols; ++j) sum[j] = (float)c->at[i * c->cols + j];
        for (int64_t k = 0; k < inner; ++k) {
            const float left = (float)factor(memory, alpha, a, i, k);
            for (int64_t j = 0; j < c->cols; ++j) sum[j] += left * right[k * c->cols + j];
        }
        for (int64_t j = 0; j < c->cols; ++j) c->at[i * c->cols + j] = (double)sum[j];
    }
    free(right);
}

/* C += alpha A B. */
static void accumulate(lab_memory *memory, lab_tile *c, double alpha, operand a, operand b, int64_t inner) {
    memory->counts.multiply_adds += c->rows * c->cols * inner;
    if (memory->mode != LAB_COMPUTE) return;
    if (memory->working == LAB_FP32)
        accumulate_fp32(memory, c, alpha, a, b, inner);
    else
        accumulate_fp64(memory, c, alpha, a, b, inner);
}

void lab_product_nt(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b) {
    lab_zero(memory, c, a->rows, b->rows);
    accumulate(memory, c, alpha, (operand){a->at, a->cols, 1}, (operand){b->at, 1, b->cols}, a->cols);
}

void lab_accumulate_nn(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b) {
    accumulate(memory, c, alpha, (operand){a->at, a->cols, 1}, (operand){b->at, b->cols, 1}, a->cols);
}

void lab_accumulate_tn(lab_memory *memory, lab_tile *c, double alpha, const lab_tile *a, const lab_tile *b) {
    accumulate(memory, c, alpha, (operand){a->at, 1, a->cols}, (operand){b->at, b->cols, 1}, a->rows);
}

/* ------------------------------------------------------------------------------------------------------- on-chip data -- */

static void fill(lab_memory *memory, lab_tile *x, int64_t rows, int64_t cols, double value) {
    if (!lab_shape(memory, x, rows, cols)) return;
    for (int64_t e = 0; e < rows * cols; ++e) x->at[e] = value;
}

void lab_zero(lab_memory *memory, lab_tile *x, int64_t rows, int64_t cols) { fill(memory, x, rows, cols, 0); }

void lab_minus_infinity(lab_memory *memory, lab_tile *x, int64_t rows, int64_t cols) {
    fill(memory, x, rows, cols, -(double)INFINITY);
}

void lab_copy(lab_memory *memory, lab_tile *to, const lab_tile *from) {
    if (!lab_shape(memory, to, from->rows, from->cols)) return;
    for (int64_t e = 0; e < from->rows * from->cols; ++e) to->at[e] = from->at[e];
}

/* -------------------------------------------------------------------------------------------------------------- rows -- */

static int64_t size(const lab_tile *x) { return x->rows * x->cols; }

/* exp(a - b), and 0 for a row that has seen no key. */
static double exp_minus(const lab_memory *memory, double a, double b) {
    return a == -(double)INFINITY ? 0 : work(memory, exp(work(memory, a - b)));
}

void lab_row_max(lab_memory *memory, lab_tile *m, const lab_tile *s) {
    memory->counts.others += size(s);
    if (!lab_shape(memory, m, s->rows, 1)) return;
    for (int64_t i = 0; i < s->rows; ++i) {
        m->at[i] = -(double)INFINITY;
        for (int64_t j = 0; j < s->cols; ++j) m->at[i] = fmax(m->at[i], s->at[i * s->cols + j]);
    }
}

void lab_exp_minus(lab_memory *memory, lab_tile *p, const lab_tile *s, const lab_tile *m) {
    memory->counts.others += size(s);
    memory->counts.exponentials += size(s);
    if (!lab_shape(memory, p, s->rows, s->cols)) return;
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = i * s->cols; j < (i + 1) * s->cols; ++j) p->at[j] = exp_minus(memory, s->at[j], m->at[i]);
}

void lab_row_sum(lab_memory *memory, lab_tile *l, const lab_tile *p) {
    memory->counts.others += size(p);
    if (!lab_shape(memory, l, p->rows, 1)) return;
    for (int64_t i = 0; i < p->rows; ++i) {
        l->at[i] = 0;
        for (int64_t j = 0; j < p->cols; ++j) l->at[i] = work(memory, l->at[i] + p->at[i * p->cols + j]);
    }
}

void lab_rescale_rows(lab_memory *memory, lab_tile *x, const lab_tile *factor) {
    memory->counts.others += size(x);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t i = 0; i < x->rows; ++i)
        for (int64_t j = i * x->cols; j < (i + 1) * x->cols; ++j) x->at[j] = work(memory, factor->at[i] * x->at[j]);
}

void lab_divide_rows(lab_memory *memory, lab_tile *x, const lab_tile *divisor) {
    memory->counts.divisions += size(x);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t i = 0; i < x->rows; ++i)
        for (int64_t j = i * x->cols; j < (i + 1) * x->cols; ++j)
            x->at[j] = divisor->at[i] == 0 ? 0 : work(memory, x->at[j] / divisor->at[i]);
}

/* --------------------------------------------------------------------------------------------- one scalar a row -- */

void lab_max(lab_memory *memory, lab_tile *to, const lab_tile *a, const lab_tile *b) {
    memory->counts.others += size(a);
    if (!lab_shape(memory, to, a->rows, a->cols)) return;
    for (int64_t e = 0; e < size(a); ++e) to->at[e] = fmax(a->at[e], b->at[e]);
}

void lab_exp_difference(lab_memory *memory, lab_tile *to, const lab_tile *a, const lab_tile *b) {
    memory->counts.others += size(a);
    memory->counts.exponentials += size(a);
    if (!lab_shape(memory, to, a->rows, a->cols)) return;
    for (int64_t e = 0; e < size(a); ++e) to->at[e] = exp_minus(memory, a->at[e], b->at[e]);
}

void lab_scale(lab_memory *memory, lab_tile *x, const lab_tile *factor) {
    memory->counts.others += size(x);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t e = 0; e < size(x); ++e) x->at[e] = work(memory, factor->at[e] * x->at[e]);
}

void lab_scale_add(lab_memory *memory, lab_tile *x, const lab_tile *factor, const lab_tile *y) {
    memory->counts.multiply_adds += size(x);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t e = 0; e < size(x); ++e) x->at[e] = work(memory, factor->at[e] * x->at[e] + y->at[e]);
}

void lab_add(lab_memory *memory, lab_tile *x, const lab_tile *y) {
    memory->counts.others += size(x);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t e = 0; e < size(x); ++e) x->at[e] = work(memory, x->at[e] + y->at[e]);
}

void lab_lse(lab_memory *memory, lab_tile *lse, const lab_tile *m, const lab_tile *l) {
    memory->counts.others += size(m);
    memory->counts.logarithms += size(m);
    if (!lab_shape(memory, lse, m->rows, m->cols)) return;
    for (int64_t e = 0; e < size(m); ++e)
        lse->at[e] = l->at[e] == 0 ? -(double)INFINITY : work(memory, m->at[e] + work(memory, log(l->at[e])));
}

/* ---------------------------------------------------------------------------------------------------------- backward -- */

void lab_row_dot(lab_memory *memory, lab_tile *d, const lab_tile *a, const lab_tile *b) {
    memory->counts.multiply_adds += size(a);
    if (!lab_shape(memory, d, a->rows, 1)) return;
    for (int64_t i = 0; i < a->rows; ++i) {
        d->at[i] = 0;
        for (int64_t j = i * a->cols; j < (i + 1) * a->cols; ++j) d->at[i] = work(memory, d->at[i] + a->at[j] * b->at[j]);
    }
}

void lab_softmax_gradient(lab_memory *memory, lab_tile *dp, const lab_tile *p, const lab_tile *d) {
    memory->counts.others += 2 * size(p);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t i = 0; i < p->rows; ++i)
        for (int64_t j = i * p->cols; j < (i + 1) * p->cols; ++j)
            dp->at[j] = work(memory, p->at[j] * work(memory, dp->at[j] - d->at[i]));
}

/* -------------------------------------------------------------------------------------------------- mask and dropout -- */

void lab_mask(lab_memory *memory, lab_tile *s, const lab_problem *problem, int64_t row, int64_t col) {
    if (memory->mode != LAB_COMPUTE || (problem->mask == STROBE_MASK_NONE && !problem->block_mask)) return;
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->cols; ++j)
            if (!lab_visible(problem, row + i, col + j)) s->at[i * s->cols + j] = -(double)INFINITY;
}

void lab_dropout(lab_memory *memory, lab_tile *p, const lab_problem *problem, int64_t row, int64_t col) {
    if (problem->dropout == 0) return;
    memory->counts.others += size(p);
    if (memory->mode != LAB_COMPUTE) return;
    const double kept = work(memory, 1 / (1 - problem->dropout));
    for (int64_t i = 0; i < p->rows; ++i)
        for (int64_t j = 0; j < p->cols; ++j) {
            double *p_ij = &p->at[i * p->cols + j];
            *p_ij = lab_dropout_keeps(problem, row + i, col + j) ? work(memory, kept * *p_ij) : 0;
        }
}
