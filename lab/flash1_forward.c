/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash1_forward.c: FlashAttention-1 forward. The outer loop is over keys, the inner one over queries. Every O_i is kept
 * normalised and goes to slow memory and back once for each block of keys. Numbers are the lines of FA1's Algorithm 1, (2.n)
 * those of its Algorithm 2 with mask and dropout, (5.n) those of the block-sparse Algorithm 5. Line 1, the block sizes, is
 * in blocks.h. */
#include "algorithms.h"
#include "arithmetic.h"

#include <math.h>

/* The tiles of lines 6 to 13. P~_ij takes the place of S_ij. */
typedef struct tiles {
    lab_tile K_j, V_j, Q_i, O_i, l_i, m_i, P_ij, m_ij, l_ij, m_new, old;
} tiles;

/* Lines 9-12: one block of scores, merged into O_i, l_i and m_i. */
static void merge_block(lab_memory *memory, const lab_problem *p, tiles *t, int64_t i, int64_t j) {
    lab_product_nt(memory, &t->P_ij, p->scale, &t->Q_i, &t->K_j); /*  9: S_ij = tau Q_i K_j^T */
    lab_mask(memory, &t->P_ij, p, i, j);                          /* (2.11) */
    lab_row_max(memory, &t->m_ij, &t->P_ij);                      /* 10: m~_ij = rowmax(S_ij) */
    lab_exp_minus(memory, &t->P_ij, &t->P_ij, &t->m_ij);          /*     P~_ij = exp(S_ij - m~_ij) */
    lab_row_sum(memory, &t->l_ij, &t->P_ij);                      /*     l~_ij = rowsum(P~_ij) */
    lab_max(memory, &t->m_new, &t->m_i, &t->m_ij);                /* 11: m_new = max(m_i, m~_ij) */
    lab_exp_difference(memory, &t->old, &t->m_i, &t->m_new);      /*     e^(m_i - m_new) */
    lab_exp_difference(memory, &t->m_ij, &t->m_ij, &t->m_new);    /*     e^(m~_ij - m_new), in place of m~_ij */
    lab_scale(memory, &t->l_i, &t->old);                          /*     diag(l_i) e^(m_i - m_new) */
    lab_scale(memory, &t->l_ij, &t->m_ij);
    lab_dropout(memory, &t->P_ij, p, i, j); /* (2.14) */

    lab_rescale_rows(memory, &t->O_i, &t->l_i);   /* 12: O_i = diag(l_new)^-1 (diag(l_i) e^(m_i - m_new) O_i */
    lab_rescale_rows(memory, &t->P_ij, &t->m_ij); /*           + e^(m~_ij - m_new) P~_ij V_j) */
    lab_accumulate_nn(memory, &t->O_i, 1, &t->P_ij, &t->V_j);
    lab_add(memory, &t->l_i, &t->l_ij); /* 11: l_new = e^(m_i - m_new) l_i + e^(m~_ij - m_new) l~_ij */
    lab_divide_rows(memory, &t->O_i, &t->l_i);
}

void lab_flash1_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    tiles t = {
        .K_j = lab_tile_create(memory, "K_j", p->bc, p->d),
        .V_j = lab_tile_create(memory, "V_j", p->bc, p->dv),
        .Q_i = lab_tile_create(memory, "Q_i", p->br, p->d),
        .O_i = lab_tile_create(memory, "O_i", p->br, p->dv),
        .l_i = lab_tile_create(memory, "l_i", p->br, 1),
        .m_i = lab_tile_create(memory, "m_i", p->br, 1),
        .P_ij = lab_tile_create(memory, "P~_ij", p->br, p->bc),
        .m_ij = lab_tile_create(memory, "m~_ij", p->br, 1),
        .l_ij = lab_tile_create(memory, "l~_ij", p->br, 1),
        .m_new = lab_tile_create(memory, "m_new", p->br, 1),
        .old = lab_tile_create(memory, "e^(m_i - m_new)", p->br, 1),
    };
    if (!lab_fits(memory)) return;

    lab_matrix_fill(memory, head->o, 0); /* 2: O = 0, l = 0, m = -inf in HBM */
    lab_matrix_fill(memory, head->row_sum, 0);
    lab_matrix_fill(memory, head->row_max, -(double)INFINITY);
    for (int64_t j = 0; j < p->n; j += p->bc) { /* 5 */
        lab_load(memory, &t.K_j, head->k, j);   /* 6 */
        lab_load(memory, &t.V_j, head->v, j);
        for (int64_t i = 0; i < p->m; i += p->br) {                                                        /* 7 */
            if (!lab_block_visible(p, i, lab_rest(p->m, i, p->br), j, lab_rest(p->n, j, p->bc))) continue; /* (5.8) */
            lab_load(memory, &t.Q_i, head->q, i);                                                          /* 8 */
            lab_load(memory, &t.O_i, head->o, i);
            lab_load(memory, &t.l_i, head->row_sum, i);
            lab_load(memory, &t.m_i, head->row_max, i);
            merge_block(memory, p, &t, i, j);
            lab_store(memory, &t.O_i, head->o, i);       /* 12 */
            lab_store(memory, &t.l_i, head->row_sum, i); /* 13 */
            lab_store(memory, &t.m_new, head->row_max, i);
        } /* 14 */
    }     /* 15 */
    lab_release(memory);
}
