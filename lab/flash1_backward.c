/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash1_backward.c: FlashAttention-1 backward with recomputation: S and P are recomputed, block by block, from Q, K and the
 * m and l that the forward pass left, so no M x N matrix is stored. Numbers are the lines of FA1's Algorithm 4. Dropout's
 * mask is recomputed too, from the generator's key (lines 1, 14). D_i is delta, rowsum(dO_i o O_i). */
#include "algorithms.h"
#include "arithmetic.h"

typedef struct tiles {
    lab_tile K_j, V_j, dK_j, dV_j, Q_i, O_i, dO_i, dQ_i, l_i, m_i, P_ij, dP_ij, D_i;
} tiles;

static tiles create(lab_memory *memory, const lab_problem *p) {
    return (tiles){
        .K_j = lab_tile_create(memory, "K_j", p->bc, p->d),
        .V_j = lab_tile_create(memory, "V_j", p->bc, p->dv),
        .dK_j = lab_tile_create(memory, "dK_j", p->bc, p->d),
        .dV_j = lab_tile_create(memory, "dV_j", p->bc, p->dv),
        .Q_i = lab_tile_create(memory, "Q_i", p->br, p->d),
        .O_i = lab_tile_create(memory, "O_i", p->br, p->dv),
        .dO_i = lab_tile_create(memory, "dO_i", p->br, p->dv),
        .dQ_i = lab_tile_create(memory, "dQ_i", p->br, p->d),
        .l_i = lab_tile_create(memory, "l_i", p->br, 1),
        .m_i = lab_tile_create(memory, "m_i", p->br, 1),
        .P_ij = lab_tile_create(memory, "P_ij", p->br, p->bc),
        .dP_ij = lab_tile_create(memory, "dP_ij", p->br, p->bc), /* before: P_ij o Z_ij; after: dS_ij */
        .D_i = lab_tile_create(memory, "D_i", p->br, 1),
    };
}

static void load_queries(lab_memory *memory, const lab_head *head, tiles *t, int64_t i) {
    lab_load(memory, &t->Q_i, head->q, i); /* 10 */
    lab_load(memory, &t->O_i, head->o, i);
    lab_load(memory, &t->dO_i, head->d_o, i);
    lab_load(memory, &t->dQ_i, head->dq, i);
    lab_load(memory, &t->l_i, head->row_sum, i);
    lab_load(memory, &t->m_i, head->row_max, i);
}

static void block(lab_memory *memory, const lab_problem *p, tiles *t, int64_t i, int64_t j) {
    lab_product_nt(memory, &t->P_ij, p->scale, &t->Q_i, &t->K_j); /* 11: S_ij = tau Q_i K_j^T */
    lab_mask(memory, &t->P_ij, p, i, j);                          /* 12 */
    lab_exp_minus(memory, &t->P_ij, &t->P_ij, &t->m_i);           /* 13: P_ij = diag(l_i)^-1 exp(S_ij - m_i) */
    lab_divide_rows(memory, &t->P_ij, &t->l_i);
    lab_copy(memory, &t->dP_ij, &t->P_ij); /* 15: P_ij o Z_ij */
    lab_dropout(memory, &t->dP_ij, p, i, j);
    lab_accumulate_tn(memory, &t->dV_j, 1, &t->dP_ij, &t->dO_i);       /* 16: dV_j += (P_ij o Z_ij)^T dO_i */
    lab_product_nt(memory, &t->dP_ij, 1, &t->dO_i, &t->V_j);           /* 17: dP_ij = dO_i V_j^T */
    lab_dropout(memory, &t->dP_ij, p, i, j);                           /* 18: dP_ij o Z_ij */
    lab_row_dot(memory, &t->D_i, &t->dO_i, &t->O_i);                   /* 19: D_i = rowsum(dO_i o O_i) */
    lab_softmax_gradient(memory, &t->dP_ij, &t->P_ij, &t->D_i);        /* 20: dS_ij = P_ij o (dP_ij - D_i) */
    lab_accumulate_nn(memory, &t->dQ_i, p->scale, &t->dP_ij, &t->K_j); /* 21: dQ_i += tau dS_ij K_j */
    lab_accumulate_tn(memory, &t->dK_j, p->scale, &t->dP_ij, &t->Q_i); /* 22: dK_j += tau dS_ij^T Q_i */
}

void lab_flash1_backward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    tiles t = create(memory, p);
    if (!lab_fits(memory)) return;

    lab_matrix_fill(memory, head->dq, 0); /* 5: dQ = 0, dK = 0, dV = 0 in HBM */
    lab_matrix_fill(memory, head->dk, 0);
    lab_matrix_fill(memory, head->dv, 0);
    for (int64_t j = 0; j < p->n; j += p->bc) { /* 6 */
        lab_load(memory, &t.K_j, head->k, j);   /* 7 */
        lab_load(memory, &t.V_j, head->v, j);
        lab_zero(memory, &t.dK_j, t.K_j.rows, p->d); /* 8 */
        lab_zero(memory, &t.dV_j, t.V_j.rows, p->dv);
        for (int64_t i = 0; i < p->m; i += p->br) { /* 9 */
            if (!lab_block_visible(p, i, lab_rest(p->m, i, p->br), j, t.K_j.rows)) continue;
            load_queries(memory, head, &t, i);
            block(memory, p, &t, i, j);
            lab_store(memory, &t.dQ_i, head->dq, i); /* 21 */
        }                                            /* 23 */
        lab_store(memory, &t.dK_j, head->dk, j);     /* 24 */
        lab_store(memory, &t.dV_j, head->dv, j);
    } /* 25 */
    lab_release(memory);
}
