/* SPDX-License-Identifier: BSD-3-Clause
 *
 * online_softmax.c: OS, Algorithm 3: maximum and sum in one loop, so that a row is read twice instead of three times:
 * m' = max(m, x), l' = l e^(m - m') + e^(x - m'). By induction l_N is the sum over the row with the final maximum. */
#include "algorithms.h"
#include "arithmetic.h"

void lab_online_softmax(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    const int64_t piece = lab_piece(memory, p->n, 5);
    lab_tile x = lab_tile_create(memory, "x", 1, piece);
    lab_tile m = lab_tile_create(memory, "m", 1, 1), m_new = lab_tile_create(memory, "m'", 1, 1);
    lab_tile l = lab_tile_create(memory, "l", 1, 1), l_x = lab_tile_create(memory, "l_x", 1, 1);
    lab_tile rescale = lab_tile_create(memory, "e^(m - m')", 1, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; ++i) {
        lab_minus_infinity(memory, &m, 1, 1);
        lab_zero(memory, &l, 1, 1);
        for (int64_t j = 0; j < p->n; j += piece) { /* loop 1 */
            lab_load_part(memory, &x, head->scores, i, j, 1, lab_rest(p->n, j, piece));
            lab_row_max(memory, &m_new, &x);
            lab_max(memory, &m_new, &m, &m_new);
            lab_exp_minus(memory, &x, &x, &m_new);
            lab_row_sum(memory, &l_x, &x);
            lab_exp_difference(memory, &rescale, &m, &m_new);
            lab_scale_add(memory, &l, &rescale, &l_x);
            lab_copy(memory, &m, &m_new);
        }
        for (int64_t j = 0; j < p->n; j += piece) { /* loop 2: x = e^(x - m_N) / l_N */
            lab_load_part(memory, &x, head->scores, i, j, 1, lab_rest(p->n, j, piece));
            lab_exp_minus(memory, &x, &x, &m);
            lab_divide_rows(memory, &x, &l);
            lab_store_part(memory, &x, head->weights, i, j);
        }
    }
    lab_release(memory);
}

void lab_online_softmax_forward(lab_memory *memory, const lab_head *head) {
    lab_standard_scores(memory, head);
    lab_online_softmax(memory, head);
    lab_standard_output(memory, head);
}
