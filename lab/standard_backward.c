/* SPDX-License-Identifier: BSD-3-Clause
 *
 * standard_backward.c: FA1's Algorithm 3, the backward pass of standard attention. It reads the P that the forward pass left
 * in slow memory, and writes and reads two more M x N matrices, dP and dS. Numbers are the lines of that algorithm. */
#include "algorithms.h"
#include "arithmetic.h"

/* C_a += alpha X_ab^T B_b over all b, for every block a of C: lines 1 and 5, whose X is transposed. X: M x N, rows_a: bc. */
static void product_tn(lab_memory *memory, const lab_problem *p, lab_matrix *c, double alpha, const lab_matrix *x,
                       const lab_matrix *b, int64_t cols) {
    lab_tile X_ij = lab_tile_create(memory, "X_ij", p->br, p->bc);
    lab_tile B_i = lab_tile_create(memory, "B_i", p->br, cols), C_j = lab_tile_create(memory, "C_j", p->bc, cols);
    if (!lab_fits(memory)) return;
    for (int64_t j = 0; j < p->n; j += p->bc) {
        const int64_t keys = lab_rest(p->n, j, p->bc);
        lab_zero(memory, &C_j, keys, cols);
        for (int64_t i = 0; i < p->m; i += p->br) {
            lab_load_part(memory, &X_ij, x, i, j, lab_rest(p->m, i, p->br), keys);
            lab_load(memory, &B_i, b, i);
            lab_accumulate_tn(memory, &C_j, alpha, &X_ij, &B_i);
        }
        lab_store(memory, &C_j, c, j);
    }
    lab_release(memory);
}

/* 2: load dO, V by blocks, compute dP = dO V^T, write dP. */
static void weight_gradient(lab_memory *memory, const lab_head *head, lab_matrix *dp) {
    const lab_problem *p = head->problem;
    lab_tile dO_i = lab_tile_create(memory, "dO_i", p->br, p->dv), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_tile dP_ij = lab_tile_create(memory, "dP_ij", p->br, p->bc);
    if (!lab_fits(memory)) return;
    for (int64_t i = 0; i < p->m; i += p->br) {
        lab_load(memory, &dO_i, head->d_o, i);
        for (int64_t j = 0; j < p->n; j += p->bc) {
            lab_load(memory, &V_j, head->v, j);
            lab_product_nt(memory, &dP_ij, 1, &dO_i, &V_j);
            lab_store_part(memory, &dP_ij, dp, i, j);
        }
    }
    lab_release(memory);
}

/* 3: read P, dP, compute dS_ij = P_ij (dP_ij - sum_l P_il dP_il), write dS; a row at a time. A row that fits is
 * read once; a longer one in pieces, twice, because the sum comes first. dS takes the place of dP. */
static void score_gradient(lab_memory *memory, const lab_head *head, lab_matrix *dp) {
    const lab_problem *p = head->problem;
    const int64_t half = lab_piece(memory, 2 * p->n, 2) / 2, piece = half > 0 ? half : 1;
    const bool whole = piece == p->n;
    lab_tile P_i = lab_tile_create(memory, "P_i", 1, piece), dP_i = lab_tile_create(memory, "dP_i", 1, piece);
    lab_tile D_i = lab_tile_create(memory, "D_i", 1, 1), sum = lab_tile_create(memory, "sum", 1, 1);
    if (!lab_fits(memory)) return;
    for (int64_t i = 0; i < p->m; ++i) {
        lab_zero(memory, &D_i, 1, 1);
        for (int64_t j = 0; j < p->n; j += piece) {
            lab_load_part(memory, &P_i, head->weights, i, j, 1, lab_rest(p->n, j, piece));
            lab_load_part(memory, &dP_i, dp, i, j, 1, lab_rest(p->n, j, piece));
            lab_row_dot(memory, &sum, &P_i, &dP_i);
            lab_add(memory, &D_i, &sum);
        }
        for (int64_t j = 0; j < p->n; j += piece) {
            if (!whole) {
                lab_load_part(memory, &P_i, head->weights, i, j, 1, lab_rest(p->n, j, piece));
                lab_load_part(memory, &dP_i, dp, i, j, 1, lab_rest(p->n, j, piece));
            }
            lab_softmax_gradient(memory, &dP_i, &P_i, &D_i);
            lab_store_part(memory, &dP_i, dp, i, j);
        }
    }
    lab_release(memory);
}

/* 4: load dS and K by blocks, compute dQ = tau dS K, write dQ. */
static void query_gradient(lab_memory *memory, const lab_head *head, const lab_matrix *ds) {
    const lab_problem *p = head->problem;
    lab_tile dS_ij = lab_tile_create(memory, "dS_ij", p->br, p->bc), K_j = lab_tile_create(memory, "K_j", p->bc, p->d);
    lab_tile dQ_i = lab_tile_create(memory, "dQ_i", p->br, p->d);
    if (!lab_fits(memory)) return;
    for (int64_t i = 0; i < p->m; i += p->br) {
        const int64_t rows = lab_rest(p->m, i, p->br);
        lab_zero(memory, &dQ_i, rows, p->d);
        for (int64_t j = 0; j < p->n; j += p->bc) {
            lab_load_part(memory, &dS_ij, ds, i, j, rows, lab_rest(p->n, j, p->bc));
            lab_load(memory, &K_j, head->k, j);
            lab_accumulate_nn(memory, &dQ_i, p->scale, &dS_ij, &K_j);
        }
        lab_store(memory, &dQ_i, head->dq, i);
    }
    lab_release(memory);
}

void lab_standard_backward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_matrix *dp = lab_matrix_create(memory, "dP", p->m, p->n, memory->elements, LAB_EXTRA);
    if (!dp) return;
    product_tn(memory, p, head->dv, 1, head->weights, head->d_o, p->dv); /* 1: dV = P^T dO */
    weight_gradient(memory, head, dp);                                   /* 2 */
    score_gradient(memory, head, dp);                                    /* 3 */
    query_gradient(memory, head, dp);                                    /* 4 */
    product_tn(memory, p, head->dk, p->scale, dp, head->q, p->d);        /* 5: dK = tau dS^T Q */
    lab_matrix_destroy(memory, dp);
}
