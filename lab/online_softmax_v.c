/* SPDX-License-Identifier: BSD-3-Clause
 *
 * online_softmax_v.c: online softmax times V in one loop: the output is rescaled along with the sum, key by key, so that no
 * row of scores is ever kept. It is FlashAttention with blocks of one query and one key. No M x N matrix is left, but K and
 * V are read again for every query, which is what tiling avoids. */
#include "algorithms.h"
#include "arithmetic.h"

void lab_online_softmax_v_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_tile q = lab_tile_create(memory, "q", 1, p->d), k = lab_tile_create(memory, "k", 1, p->d);
    lab_tile v = lab_tile_create(memory, "v", 1, p->dv), o = lab_tile_create(memory, "o", 1, p->dv);
    lab_tile x = lab_tile_create(memory, "x", 1, 1), lse = lab_tile_create(memory, "L", 1, 1);
    lab_tile m = lab_tile_create(memory, "m", 1, 1), m_new = lab_tile_create(memory, "m'", 1, 1);
    lab_tile l = lab_tile_create(memory, "l", 1, 1), rescale = lab_tile_create(memory, "e^(m - m')", 1, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; ++i) {
        lab_load(memory, &q, head->q, i);
        lab_zero(memory, &o, 1, p->dv);
        lab_zero(memory, &l, 1, 1);
        lab_minus_infinity(memory, &m, 1, 1);
        for (int64_t j = 0; j < p->n; ++j) {
            if (!lab_block_visible(p, i, 1, j, 1)) continue;
            lab_load(memory, &k, head->k, j);
            lab_load(memory, &v, head->v, j);
            lab_product_nt(memory, &x, p->scale, &q, &k);

            /* m' = max(m, x);  l' = l e^(m - m') + e^(x - m') */
            lab_max(memory, &m_new, &m, &x);
            lab_exp_difference(memory, &rescale, &m, &m_new);
            lab_exp_difference(memory, &x, &x, &m_new);
            lab_scale(memory, &l, &rescale);
            /* o' = o (l / l') e^(m - m') + e^(x - m') v / l' */
            lab_rescale_rows(memory, &o, &l);
            lab_add(memory, &l, &x);
            lab_accumulate_nn(memory, &o, 1, &x, &v);
            lab_divide_rows(memory, &o, &l);
            lab_copy(memory, &m, &m_new);
        }
        lab_store(memory, &o, head->o, i);
        lab_lse(memory, &lse, &m, &l);
        lab_store(memory, &lse, head->lse, i);
    }
    lab_release(memory);
}
