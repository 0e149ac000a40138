/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem.h: one head of attention, as the papers write it: Q is M x d, K is N x d, V is N x dv, O is M x dv. */
#ifndef STROBE_LAB_PROBLEM_H
#define STROBE_LAB_PROBLEM_H

#include "memory.h"

#include <strobe/strobe.h>

enum { LAB_MOST_WORKERS = 8, LAB_MOST_STAGES = 8 };

typedef struct lab_problem {
    int64_t m, n, d, dv;
    double scale;          /* tau */
    strobe_mask_kind mask; /* none, causal top left, causal bottom right */
    double dropout;        /* p; 0: none */
    uint64_t seed;
    const uint8_t *block_mask; /* FlashAttention-1's: [ceil(m / br)][ceil(n / bc)], zero = skip; NULL: none */

    int64_t br, bc;  /* rows of a query block and of a key block */
    int64_t workers; /* split-Q and split-K: W; FlashAttention-3: consumers of one query block */
    int64_t splits;  /* split-KV: parts of the keys */
    int64_t stages;  /* FlashAttention-3: K and V blocks in the ring */
} lab_problem;

/* Whether query i sees key j, and whether any query of block i sees any key of block j. */
bool lab_visible(const lab_problem *problem, int64_t i, int64_t j);
bool lab_block_visible(const lab_problem *problem, int64_t row, int64_t rows, int64_t col, int64_t cols);

/* What is left of a block of `size` that starts at `first` in `total`. */
int64_t lab_rest(int64_t total, int64_t first, int64_t size);

int64_t lab_ceil_div(int64_t a, int64_t b);

/* The tensors of one head in slow memory. What an algorithm does not need is NULL. */
typedef struct lab_head {
    const lab_problem *problem;
    lab_matrix *q, *k, *v, *o;
    lab_matrix *scores, *weights;  /* M x N, of the algorithms that store them */
    lab_matrix *row_max, *row_sum; /* m, l: M x 1, FlashAttention-1 */
    lab_matrix *lse;               /* L: M x 1, FlashAttention-2 and later */
    lab_matrix *d_o, *dq, *dk, *dv;
} lab_head;

/* Which of the optional tensors: bits. */
enum { LAB_SCORES = 1, LAB_WEIGHTS = 2, LAB_ROW_STATISTICS = 4, LAB_LSE = 8, LAB_GRADIENTS = 16 };

/* Creates Q, K, V, O and what `parts` names, all zero. False, with a refusal, if one cannot be had. */
bool lab_head_create(lab_memory *memory, lab_head *head, const lab_problem *problem, int parts);
void lab_head_destroy(lab_memory *memory, lab_head *head);

#endif
