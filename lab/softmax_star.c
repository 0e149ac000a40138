/* SPDX-License-Identifier: BSD-3-Clause
 *
 * softmax_star.c: the step between online softmax and FlashAttention-2. softmax*(S_ij) = exp(S_ij - rowmax(S_ij)), without a
 * divisor and with the maximum of its own block, makes attention a blocked matrix product. Partial results with different
 * maxima are merged by the rescale factors e^(m_old - m_new) and e^(m_ij - m_new). */
#include "algorithms.h"
#include "arithmetic.h"

void lab_softmax_star_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_tile Q_i = lab_tile_create(memory, "Q_i", p->br, p->d), O_i = lab_tile_create(memory, "O_i", p->br, p->dv);
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_tile P_ij = lab_tile_create(memory, "P_ij", p->br, p->bc); /* S_ij, then softmax*(S_ij) */
    lab_tile m = lab_tile_create(memory, "m", p->br, 1), l = lab_tile_create(memory, "l", p->br, 1);
    lab_tile m_ij = lab_tile_create(memory, "m_ij", p->br, 1), l_ij = lab_tile_create(memory, "l_ij", p->br, 1);
    lab_tile m_new = lab_tile_create(memory, "m_new", p->br, 1);
    lab_tile scale_old = lab_tile_create(memory, "e^(m - m_new)", p->br, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) {
        const int64_t rows = lab_rest(p->m, i, p->br);
        lab_load(memory, &Q_i, head->q, i);
        lab_zero(memory, &O_i, rows, p->dv);
        lab_zero(memory, &l, rows, 1);
        lab_minus_infinity(memory, &m, rows, 1);
        for (int64_t j = 0; j < p->n; j += p->bc) {
            if (!lab_block_visible(p, i, rows, j, lab_rest(p->n, j, p->bc))) continue;
            lab_load(memory, &K_j, head->k, j);
            lab_load(memory, &V_j, head->v, j);
            lab_product_nt(memory, &P_ij, p->scale, &Q_i, &K_j);
            lab_mask(memory, &P_ij, p, i, j);

            lab_row_max(memory, &m_ij, &P_ij); /* softmax*: the block by itself */
            lab_exp_minus(memory, &P_ij, &P_ij, &m_ij);
            lab_row_sum(memory, &l_ij, &P_ij);

            lab_max(memory, &m_new, &m, &m_ij); /* merge: both sides are rescaled to the common maximum */
            lab_exp_difference(memory, &scale_old, &m, &m_new);
            lab_exp_difference(memory, &m_ij, &m_ij, &m_new); /* now the factor of the new block */
            lab_scale(memory, &l_ij, &m_ij);
            lab_scale_add(memory, &l, &scale_old, &l_ij);
            lab_rescale_rows(memory, &P_ij, &m_ij);
            lab_rescale_rows(memory, &O_i, &scale_old);
            lab_accumulate_nn(memory, &O_i, 1, &P_ij, &V_j);
            lab_copy(memory, &m, &m_new);
        }
        lab_divide_rows(memory, &O_i, &l); /* the divisor, once */
        lab_store(memory, &O_i, head->o, i);
        lab_lse(memory, &m_ij, &m, &l);
        lab_store(memory, &m_ij, head->lse, i);
    }
    lab_release(memory);
}
