/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash2_forward.c: FlashAttention-2 forward. The outer loop is over queries, the inner one over keys. O~_i stays in fast
 * memory, is divided by l_i once at the end and written once, with L_i = m_i + ln l_i, which is all that the backward needs.
 * Query blocks are independent of one another and can run in parallel. Numbers are the lines of FA2's Algorithm 1. */
#include "flash2.h"

#include "arithmetic.h"

lab_flash2_tiles lab_flash2_tiles_create(lab_memory *memory, const lab_problem *p, int64_t rows, lab_tile *K_j,
                                         lab_tile *V_j) {
    return (lab_flash2_tiles){
        .K_j = K_j,
        .V_j = V_j,
        .Q_i = lab_tile_create(memory, "Q_i", rows, p->d),
        .O_i = lab_tile_create(memory, "O_i", rows, p->dv),
        .P_ij = lab_tile_create(memory, "P~_ij", rows, p->bc),
        .m_i = lab_tile_create(memory, "m_i", rows, 1),
        .l_i = lab_tile_create(memory, "l_i", rows, 1),
        .m_new = lab_tile_create(memory, "m_new", rows, 1),
        .row = lab_tile_create(memory, "e^(m_old - m_i)", rows, 1),
    };
}

void lab_flash2_start(lab_memory *memory, lab_flash2_tiles *t, int64_t rows, int64_t dv) {
    lab_zero(memory, &t->O_i, rows, dv); /* 5: O_i = 0, l_i = 0, m_i = -inf */
    lab_zero(memory, &t->l_i, rows, 1);
    lab_minus_infinity(memory, &t->m_i, rows, 1);
}

void lab_flash2_block(lab_memory *memory, const lab_problem *p, lab_flash2_tiles *t, int64_t i, int64_t j) {
    lab_product_nt(memory, &t->P_ij, p->scale, &t->Q_i, t->K_j); /*  8: S_ij = tau Q_i K_j^T */
    lab_mask(memory, &t->P_ij, p, i, j);
    lab_row_max(memory, &t->row, &t->P_ij); /*  9: m_new = max(m_i, rowmax(S_ij)) */
    lab_max(memory, &t->m_new, &t->m_i, &t->row);
    lab_exp_minus(memory, &t->P_ij, &t->P_ij, &t->m_new);    /*     P~_ij = exp(S_ij - m_new) */
    lab_exp_difference(memory, &t->m_i, &t->m_i, &t->m_new); /*     e^(m_i - m_new), in place of the old m_i */
    lab_row_sum(memory, &t->row, &t->P_ij);                  /*     l_i = e^(m_i - m_new) l_i + rowsum(P~_ij) */
    lab_scale_add(memory, &t->l_i, &t->m_i, &t->row);
    lab_dropout(memory, &t->P_ij, p, i, j);     /*     (l_i is the sum before dropout) */
    lab_rescale_rows(memory, &t->O_i, &t->m_i); /* 10: O_i = diag(e^(m_i - m_new)) O_i + P~_ij V_j */
    lab_accumulate_nn(memory, &t->O_i, 1, &t->P_ij, t->V_j);
    lab_copy(memory, &t->m_i, &t->m_new);
}

void lab_flash2_finish(lab_memory *memory, lab_flash2_tiles *t, lab_matrix *o, lab_matrix *lse, int64_t i) {
    lab_divide_rows(memory, &t->O_i, &t->l_i);  /* 12: O_i = diag(l_i)^-1 O_i */
    lab_lse(memory, &t->row, &t->m_i, &t->l_i); /* 13: L_i = m_i + ln l_i */
    lab_store(memory, &t->O_i, o, i);           /* 14 */
    lab_store(memory, &t->row, lse, i);         /* 15 */
}

void lab_flash2_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_flash2_tiles t = lab_flash2_tiles_create(memory, p, p->br, &K_j, &V_j);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) { /* 3 */
        const int64_t rows = lab_rest(p->m, i, p->br);
        lab_load(memory, &t.Q_i, head->q, i); /* 4 */
        lab_flash2_start(memory, &t, rows, p->dv);
        for (int64_t j = 0; j < p->n; j += p->bc) { /* 6 */
            if (!lab_block_visible(p, i, rows, j, lab_rest(p->n, j, p->bc))) continue;
            lab_load(memory, &K_j, head->k, j); /* 7 */
            lab_load(memory, &V_j, head->v, j);
            lab_flash2_block(memory, p, &t, i, j);
        } /* 11 */
        lab_flash2_finish(memory, &t, head->o, head->lse, i);
    } /* 16 */
    lab_release(memory);
}
