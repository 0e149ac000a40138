/* SPDX-License-Identifier: BSD-3-Clause
 *
 * safe_softmax.c: softmax that cannot overflow, in three loops over each row: maximum, sum, normalise. The rows stream
 * through fast memory in pieces, so a row of any length is taken, and S is read three times. */
#include "algorithms.h"
#include "arithmetic.h"

void lab_safe_softmax(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    const int64_t piece = lab_piece(memory, p->n, 4);
    lab_tile x = lab_tile_create(memory, "x", 1, piece);
    lab_tile m = lab_tile_create(memory, "m", 1, 1), m_x = lab_tile_create(memory, "m_x", 1, 1);
    lab_tile l = lab_tile_create(memory, "l", 1, 1), l_x = lab_tile_create(memory, "l_x", 1, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; ++i) {
        lab_minus_infinity(memory, &m, 1, 1); /* loop 1: m_k = max(m_{k-1}, x_k) */
        for (int64_t j = 0; j < p->n; j += piece) {
            lab_load_part(memory, &x, head->scores, i, j, 1, lab_rest(p->n, j, piece));
            lab_row_max(memory, &m_x, &x);
            lab_max(memory, &m, &m, &m_x);
        }
        lab_zero(memory, &l, 1, 1); /* loop 2: l_k = l_{k-1} + e^(x_k - m_N) */
        for (int64_t j = 0; j < p->n; j += piece) {
            lab_load_part(memory, &x, head->scores, i, j, 1, lab_rest(p->n, j, piece));
            lab_exp_minus(memory, &x, &x, &m);
            lab_row_sum(memory, &l_x, &x);
            lab_add(memory, &l, &l_x);
        }
        for (int64_t j = 0; j < p->n; j += piece) { /* loop 3: x_k = e^(x_k - m_N) / l_N */
            lab_load_part(memory, &x, head->scores, i, j, 1, lab_rest(p->n, j, piece));
            lab_exp_minus(memory, &x, &x, &m);
            lab_divide_rows(memory, &x, &l);
            lab_store_part(memory, &x, head->weights, i, j);
        }
    }
    lab_release(memory);
}
