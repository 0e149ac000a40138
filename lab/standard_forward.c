/* SPDX-License-Identifier: BSD-3-Clause
 *
 * standard_forward.c: FA1's Algorithm 0, standard attention: three kernels, with the M x N matrices S and P going through
 * slow memory four times; and with the softmax of safe_softmax.c for its second, six times. */
#include "algorithms.h"
#include "arithmetic.h"

/* Algorithm 0, line 1: load Q, K by blocks from HBM, compute S = Q K^T, write S to HBM. */
void lab_standard_scores(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_tile Q_i = lab_tile_create(memory, "Q_i", p->br, p->d);
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d);
    lab_tile S_ij = lab_tile_create(memory, "S_ij", p->br, p->bc);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) {
        lab_load(memory, &Q_i, head->q, i);
        for (int64_t j = 0; j < p->n; j += p->bc) {
            lab_load(memory, &K_j, head->k, j); /* again for every i: K is read once only where one block holds all of Q */
            lab_product_nt(memory, &S_ij, p->scale, &Q_i, &K_j);
            lab_mask(memory, &S_ij, p, i, j);
            lab_store_part(memory, &S_ij, head->scores, i, j);
        }
    }
    lab_release(memory);
}

/* Algorithm 0, line 2: read S from HBM, compute P = softmax(S), write P to HBM; a row at a time. False: a row of N scores
 * does not fit. */
static bool softmax_of_rows(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    if (memory->mode == LAB_PROBE)
        return true; /* it needs nothing for certain: rows that do not fit take lab_safe_softmax */
    if (lab_piece(memory, p->n, 2) < p->n) return false;
    lab_tile S_i = lab_tile_create(memory, "S_i", 1, p->n);
    lab_tile m_i = lab_tile_create(memory, "m_i", 1, 1), l_i = lab_tile_create(memory, "l_i", 1, 1);
    if (!lab_fits(memory)) return true;

    for (int64_t i = 0; i < p->m; ++i) {
        lab_load(memory, &S_i, head->scores, i);
        lab_row_max(memory, &m_i, &S_i);
        lab_exp_minus(memory, &S_i, &S_i, &m_i);
        lab_row_sum(memory, &l_i, &S_i);
        lab_divide_rows(memory, &S_i, &l_i);
        lab_store(memory, &S_i, head->weights, i);
    }
    lab_release(memory);
    return true;
}

/* Algorithm 0, line 3: load P and V by blocks from HBM, compute O = P V, write O to HBM. */
void lab_standard_output(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_tile P_ij = lab_tile_create(memory, "P_ij", p->br, p->bc);
    lab_tile V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_tile O_i = lab_tile_create(memory, "O_i", p->br, p->dv);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) {
        const int64_t rows = lab_rest(p->m, i, p->br);
        lab_zero(memory, &O_i, rows, p->dv);
        for (int64_t j = 0; j < p->n; j += p->bc) {
            lab_load_part(memory, &P_ij, head->weights, i, j, rows, lab_rest(p->n, j, p->bc));
            lab_load(memory, &V_j, head->v, j);
            lab_accumulate_nn(memory, &O_i, 1, &P_ij, &V_j);
        }
        lab_store(memory, &O_i, head->o, i);
    }
    lab_release(memory);
}

void lab_standard_forward(lab_memory *memory, const lab_head *head) {
    lab_standard_scores(memory, head);
    if (!softmax_of_rows(memory, head)) lab_safe_softmax(memory, head);
    lab_standard_output(memory, head);
}

void lab_safe_softmax_forward(lab_memory *memory, const lab_head *head) {
    lab_standard_scores(memory, head);
    lab_safe_softmax(memory, head);
    lab_standard_output(memory, head);
}
