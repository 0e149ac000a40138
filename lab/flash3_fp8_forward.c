/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash3_fp8_forward.c: FlashAttention-3's FP8 forward pass with a scale for every block: dequantisation is a factor of the
 * block's scores, tau s_q s_k, and of its part of the output, s_v. Numbers are the lines of FA3's Algorithm 1. */
#include "fp8.h"

#include "arithmetic.h"

/* P is stored as 2^8 P, since e4m3's smallest normal number is 2^-6 and elements of P below it would lose bits. */
static const double weight_scale = 256;

static double scalar(const lab_tile *x) { return x->at ? x->at[0] : 0; }

/* Multiplies P by a power of two. A kernel would add to the argument of the exponential instead, so it is not counted. */
static void shift(const lab_memory *memory, lab_tile *p) {
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t e = 0; e < p->rows * p->cols; ++e) p->at[e] *= weight_scale;
}

void lab_flash3_fp8_forward(lab_memory *memory, const lab_fp8_head *head) {
    const lab_problem *p = head->problem;
    lab_tile Q_i = lab_tile_create(memory, "Q_i", p->br, p->d), O_i = lab_tile_create(memory, "O_i", p->br, p->dv);
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_tile S_ij = lab_tile_create(memory, "S_ij", p->br, p->bc), row = lab_tile_create(memory, "row", p->br, 1);
    lab_tile m_i = lab_tile_create(memory, "m_i", p->br, 1), l_i = lab_tile_create(memory, "l_i", p->br, 1);
    lab_tile m_new = lab_tile_create(memory, "m_new", p->br, 1), s_q = lab_tile_create(memory, "s_q", 1, 1);
    lab_tile s_k = lab_tile_create(memory, "s_k", 1, 1), s_v = lab_tile_create(memory, "s_v", 1, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) {
        lab_load(memory, &Q_i, head->q, i); /* 4 */
        lab_load(memory, &s_q, head->q_scale, i / p->br);
        lab_zero(memory, &O_i, Q_i.rows, p->dv); /* 13 */
        lab_zero(memory, &l_i, Q_i.rows, 1);
        lab_minus_infinity(memory, &m_i, Q_i.rows, 1);
        for (int64_t j = 0; j < p->n; j += p->bc) { /* 15 */
            lab_load(memory, &K_j, head->k, j);     /* 8 */
            lab_load(memory, &s_k, head->k_scale, j / p->bc);
            lab_load(memory, &V_j, head->v, j);
            lab_load(memory, &s_v, head->v_scale, j / p->bc);
            lab_product_nt(memory, &S_ij, p->scale * scalar(&s_q) * scalar(&s_k), &Q_i, &K_j); /* 17 */
            lab_row_max(memory, &row, &S_ij);                                                  /* 18 */
            lab_max(memory, &m_new, &m_i, &row);
            lab_exp_minus(memory, &S_ij, &S_ij, &m_new); /* 19 */
            lab_exp_difference(memory, &m_i, &m_i, &m_new);
            lab_row_sum(memory, &row, &S_ij);
            lab_scale_add(memory, &l_i, &m_i, &row);
            lab_rescale_rows(memory, &O_i, &m_i); /* 21: O_i = diag(e^(m_old - m_new)) O_i + P~ V_j */
            shift(memory, &S_ij);
            lab_accumulate_nn(memory, &O_i, scalar(&s_v) / weight_scale, &S_ij, &V_j);
            lab_copy(memory, &m_i, &m_new);
        }
        lab_divide_rows(memory, &O_i, &l_i); /* 24 */
        lab_store(memory, &O_i, head->o, i); /* 25 */
    }
    lab_release(memory);
}
