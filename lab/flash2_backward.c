/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash2_backward.c: FlashAttention-2 backward. It differs from FlashAttention-1's in two ways. One statistic, L, replaces m
 * and l, so there is no division. D, which is delta = rowsum(dO o O), is computed once, in a pass of its own, so O is not
 * read in the loop (the paper's line 9 lists O_i, but no line of the loop uses it). Numbers are the lines of FA2's
 * Algorithm 2. */
#include "algorithms.h"
#include "arithmetic.h"

typedef struct tiles {
    lab_tile K_j, V_j, dK_j, dV_j, Q_i, dO_i, dQ_i, L_i, D_i, P_ij, dP_ij;
} tiles;

static tiles create(lab_memory *memory, const lab_problem *p) {
    return (tiles){
        .K_j = lab_tile_create(memory, "K_j", p->bc, p->d),
        .V_j = lab_tile_create(memory, "V_j", p->bc, p->dv),
        .dK_j = lab_tile_create(memory, "dK_j", p->bc, p->d),
        .dV_j = lab_tile_create(memory, "dV_j", p->bc, p->dv),
        .Q_i = lab_tile_create(memory, "Q_i", p->br, p->d),
        .dO_i = lab_tile_create(memory, "dO_i", p->br, p->dv),
        .dQ_i = lab_tile_create(memory, "dQ_i", p->br, p->d),
        .L_i = lab_tile_create(memory, "L_i", p->br, 1),
        .D_i = lab_tile_create(memory, "D_i", p->br, 1),
        .P_ij = lab_tile_create(memory, "P_ij", p->br, p->bc),
        .dP_ij = lab_tile_create(memory, "dP_ij", p->br, p->bc), /* before: P_ij o Z_ij; after: dS_ij */
    };
}

/* 4: D = rowsum(dO o O), written to HBM. */
static void row_products(lab_memory *memory, const lab_head *head, lab_matrix *d) {
    const lab_problem *p = head->problem;
    lab_tile O_i = lab_tile_create(memory, "O_i", p->br, p->dv), dO_i = lab_tile_create(memory, "dO_i", p->br, p->dv);
    lab_tile D_i = lab_tile_create(memory, "D_i", p->br, 1);
    if (!lab_fits(memory)) return;
    for (int64_t i = 0; i < p->m; i += p->br) {
        lab_load(memory, &O_i, head->o, i);
        lab_load(memory, &dO_i, head->d_o, i);
        lab_row_dot(memory, &D_i, &dO_i, &O_i);
        lab_store(memory, &D_i, d, i);
    }
    lab_release(memory);
}

static void block(lab_memory *memory, const lab_problem *p, tiles *t, int64_t i, int64_t j) {
    lab_product_nt(memory, &t->P_ij, p->scale, &t->Q_i, &t->K_j); /* 10: S_ij = tau Q_i K_j^T */
    lab_mask(memory, &t->P_ij, p, i, j);
    lab_exp_minus(memory, &t->P_ij, &t->P_ij, &t->L_i); /* 11: P_ij = exp(S_ij - L_i) */
    lab_copy(memory, &t->dP_ij, &t->P_ij);              /* 12: dV_j += (P_ij o Z_ij)^T dO_i */
    lab_dropout(memory, &t->dP_ij, p, i, j);
    lab_accumulate_tn(memory, &t->dV_j, 1, &t->dP_ij, &t->dO_i);
    lab_product_nt(memory, &t->dP_ij, 1, &t->dO_i, &t->V_j); /* 13: dP_ij = dO_i V_j^T o Z_ij */
    lab_dropout(memory, &t->dP_ij, p, i, j);
    lab_softmax_gradient(memory, &t->dP_ij, &t->P_ij, &t->D_i);        /* 14: dS_ij = P_ij o (dP_ij - D_i) */
    lab_accumulate_nn(memory, &t->dQ_i, p->scale, &t->dP_ij, &t->K_j); /* 15: dQ_i += tau dS_ij K_j */
    lab_accumulate_tn(memory, &t->dK_j, p->scale, &t->dP_ij, &t->Q_i); /* 16: dK_j += tau dS_ij^T Q_i */
}

static void keys_outside(lab_memory *memory, const lab_head *head, const lab_matrix *d) {
    const lab_problem *p = head->problem;
    tiles t = create(memory, p);
    if (!lab_fits(memory)) return;

    lab_matrix_fill(memory, head->dq, 0);       /* 3: dQ = 0 in HBM */
    for (int64_t j = 0; j < p->n; j += p->bc) { /* 5 */
        lab_load(memory, &t.K_j, head->k, j);   /* 6 */
        lab_load(memory, &t.V_j, head->v, j);
        lab_zero(memory, &t.dK_j, t.K_j.rows, p->d); /* 7 */
        lab_zero(memory, &t.dV_j, t.V_j.rows, p->dv);
        for (int64_t i = 0; i < p->m; i += p->br) { /* 8 */
            if (!lab_block_visible(p, i, lab_rest(p->m, i, p->br), j, t.K_j.rows)) continue;
            lab_load(memory, &t.Q_i, head->q, i); /* 9 */
            lab_load(memory, &t.dO_i, head->d_o, i);
            lab_load(memory, &t.dQ_i, head->dq, i);
            lab_load(memory, &t.L_i, head->lse, i);
            lab_load(memory, &t.D_i, d, i);
            block(memory, p, &t, i, j);
            lab_store(memory, &t.dQ_i, head->dq, i); /* 15 */
        }                                            /* 17 */
        lab_store(memory, &t.dK_j, head->dk, j);     /* 18 */
        lab_store(memory, &t.dV_j, head->dv, j);
    } /* 19 */
    lab_release(memory);
}

void lab_flash2_backward(lab_memory *memory, const lab_head *head) {
    lab_matrix *d = lab_matrix_create(memory, "D", head->problem->m, 1, memory->working, LAB_EXTRA);
    if (!d) return;
    row_products(memory, head, d);
    if (!memory->refusal[0]) keys_outside(memory, head, d);
    lab_matrix_destroy(memory, d);
}
