/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem.c: which keys a query sees, and the tensors of a head; see problem.h. */
#include "problem.h"

int64_t lab_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t lab_rest(int64_t total, int64_t first, int64_t size) { return total - first < size ? total - first : size; }

/* The first key that query i does not see. */
static int64_t key_end(const lab_problem *p, int64_t i) {
    switch (p->mask) {
    case STROBE_MASK_CAUSAL_TOP_LEFT: return i + 1;
    case STROBE_MASK_CAUSAL_BOTTOM_RIGHT: return i + 1 + p->n - p->m;
    default: return p->n;
    }
}

static bool block_masked(const lab_problem *p, int64_t i, int64_t j) {
    return p->block_mask && !p->block_mask[i / p->br * lab_ceil_div(p->n, p->bc) + j / p->bc];
}

bool lab_visible(const lab_problem *p, int64_t i, int64_t j) { return j < key_end(p, i) && !block_masked(p, i, j); }

bool lab_block_visible(const lab_problem *p, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    if (col >= key_end(p, row + rows - 1)) return false; /* the last row sees the most */
    if (!p->block_mask) return true;
    for (int64_t i = row; i < row + rows; i += lab_rest(row + rows, i, p->br - i % p->br))
        for (int64_t j = col; j < col + cols; j += lab_rest(col + cols, j, p->bc - j % p->bc))
            if (!block_masked(p, i, j)) return true;
    return false;
}

/* One tensor of a head: the field for it, its name, its shape, and whether it is wanted. */
typedef struct part {
    lab_matrix **at;
    const char *name;
    int64_t rows, cols;
    lab_type type;
    lab_role role;
    bool wanted;
} part;

bool lab_head_create(lab_memory *memory, lab_head *head, const lab_problem *p, int parts) {
    const lab_type x = memory->elements, s = memory->working;
    const bool gradients = parts & LAB_GRADIENTS, statistics = parts & LAB_ROW_STATISTICS;
    const part all[] = {
        {&head->q, "Q", p->m, p->d, x, LAB_OPERAND, true},
        {&head->k, "K", p->n, p->d, x, LAB_OPERAND, true},
        {&head->v, "V", p->n, p->dv, x, LAB_OPERAND, true},
        {&head->o, "O", p->m, p->dv, x, LAB_OPERAND, true},
        {&head->scores, "S", p->m, p->n, x, LAB_EXTRA, parts & LAB_SCORES},
        {&head->weights, "P", p->m, p->n, x, LAB_EXTRA, parts & LAB_WEIGHTS},
        {&head->row_max, "m", p->m, 1, s, LAB_EXTRA, statistics},
        {&head->row_sum, "l", p->m, 1, s, LAB_EXTRA, statistics},
        {&head->lse, "L", p->m, 1, s, LAB_EXTRA, parts & LAB_LSE},
        {&head->d_o, "dO", p->m, p->dv, x, LAB_OPERAND, gradients},
        {&head->dq, "dQ", p->m, p->d, x, LAB_OPERAND, gradients},
        {&head->dk, "dK", p->n, p->d, x, LAB_OPERAND, gradients},
        {&head->dv, "dV", p->n, p->dv, x, LAB_OPERAND, gradients},
    };
    *head = (lab_head){.problem = p};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        if (!all[i].wanted) continue;
        *all[i].at = lab_matrix_create(memory, all[i].name, all[i].rows, all[i].cols, all[i].type, all[i].role);
        if (!*all[i].at) return false;
    }
    return true;
}

void lab_head_destroy(lab_memory *memory, lab_head *head) {
    lab_matrix *all[] = {head->q,       head->k,   head->v,   head->o,  head->scores, head->weights, head->row_max,
                         head->row_sum, head->lse, head->d_o, head->dq, head->dk,     head->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) lab_matrix_destroy(memory, all[i]);
    *head = (lab_head){0};
}
