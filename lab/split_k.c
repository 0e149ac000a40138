/* SPDX-License-Identifier: BSD-3-Clause
 *
 * split_k.c: how W workers (the warps of a thread block) share a block of scores in FlashAttention-1: each takes some keys
 * of K_j and V_j. Every worker then holds a part of every row of O_i, and for every block the parts are added through fast
 * memory. counts.exchanged: scalars written for, and read from, the others. Numbers are the lines of FA1's Algorithm 1.
 * FlashAttention-2 avoids the exchange: split_q.c. */
#include "algorithms.h"
#include "arithmetic.h"

#include <math.h>

/* Worker w: its keys of the block, its scores and its own partial O, m, l. */
typedef struct worker {
    lab_tile K, V, P, O, m, l;
} worker;

/* What belongs to the block. */
typedef struct block {
    lab_tile Q_i, O_i, m_i, l_i, m_new;
    worker workers[LAB_MOST_WORKERS];
} block;

static block create(lab_memory *memory, const lab_problem *p) {
    const int64_t keys = lab_ceil_div(p->bc, p->workers);
    block b = {.Q_i = lab_tile_create(memory, "Q_i", p->br, p->d),
               .O_i = lab_tile_create(memory, "O_i", p->br, p->dv),
               .m_i = lab_tile_create(memory, "m_i", p->br, 1),
               .l_i = lab_tile_create(memory, "l_i", p->br, 1),
               .m_new = lab_tile_create(memory, "m_new", p->br, 1)};
    for (int64_t w = 0; w < p->workers; ++w)
        b.workers[w] = (worker){.K = lab_tile_create(memory, "K_w", keys, p->d),
                                .V = lab_tile_create(memory, "V_w", keys, p->dv),
                                .P = lab_tile_create(memory, "P_w", p->br, keys),
                                .O = lab_tile_create(memory, "O_w", p->br, p->dv),
                                .m = lab_tile_create(memory, "m_w", p->br, 1),
                                .l = lab_tile_create(memory, "l_w", p->br, 1)};
    return b;
}

/* 9, 10: the worker's keys, which start at j, by themselves. */
static void work_alone(lab_memory *memory, const lab_problem *p, worker *w, const lab_tile *Q_i, int64_t i, int64_t j) {
    lab_product_nt(memory, &w->P, p->scale, Q_i, &w->K);
    lab_mask(memory, &w->P, p, i, j);
    lab_row_max(memory, &w->m, &w->P);
    lab_exp_minus(memory, &w->P, &w->P, &w->m);
    lab_row_sum(memory, &w->l, &w->P);
    lab_dropout(memory, &w->P, p, i, j);
    lab_zero(memory, &w->O, Q_i->rows, p->dv);
    lab_accumulate_nn(memory, &w->O, 1, &w->P, &w->V);
}

/* 11, 12: the worker's part is written where all workers can read it, read and merged. Until line 12 ends O_i is not
 * normalised. */
static void meet(lab_memory *memory, block *b, worker *w) {
    memory->counts.exchanged += 2 * w->O.rows * (w->O.cols + 2);
    lab_max(memory, &b->m_new, &b->m_i, &w->m);
    lab_exp_difference(memory, &b->m_i, &b->m_i, &b->m_new);
    lab_exp_difference(memory, &w->m, &w->m, &b->m_new);
    lab_scale(memory, &w->l, &w->m);
    lab_scale_add(memory, &b->l_i, &b->m_i, &w->l);
    lab_rescale_rows(memory, &b->O_i, &b->m_i);
    lab_rescale_rows(memory, &w->O, &w->m);
    lab_add(memory, &b->O_i, &w->O);
    lab_copy(memory, &b->m_i, &b->m_new);
}

/* 8 to 13 for one block of queries; the workers' keys are [j, end). */
static void queries(lab_memory *memory, const lab_head *head, block *b, int64_t i, int64_t j, int64_t end) {
    const lab_problem *p = head->problem;
    const int64_t keys = lab_ceil_div(p->bc, p->workers);
    lab_load(memory, &b->Q_i, head->q, i); /* 8 */
    lab_load(memory, &b->O_i, head->o, i);
    lab_load(memory, &b->l_i, head->row_sum, i);
    lab_load(memory, &b->m_i, head->row_max, i);
    lab_rescale_rows(memory, &b->O_i, &b->l_i); /* 12: diag(l_i) O_i */
    for (int64_t w = 0; w < p->workers && j + w * keys < end; ++w) {
        work_alone(memory, p, &b->workers[w], &b->Q_i, i, j + w * keys);
        meet(memory, b, &b->workers[w]);
    }
    lab_divide_rows(memory, &b->O_i, &b->l_i); /* 12: diag(l_new)^-1 */
    lab_store(memory, &b->O_i, head->o, i);
    lab_store(memory, &b->l_i, head->row_sum, i); /* 13 */
    lab_store(memory, &b->m_i, head->row_max, i);
}

void lab_split_k_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    const int64_t keys = lab_ceil_div(p->bc, p->workers);
    block b = create(memory, p);
    if (!lab_fits(memory)) return;

    lab_matrix_fill(memory, head->o, 0); /* 2 */
    lab_matrix_fill(memory, head->row_sum, 0);
    lab_matrix_fill(memory, head->row_max, -(double)INFINITY);
    for (int64_t j = 0; j < p->n; j += p->bc) { /* 5 */
        const int64_t end = j + lab_rest(p->n, j, p->bc);
        for (int64_t w = 0; w < p->workers && j + w * keys < end; ++w) { /* 6 */
            const int64_t first = j + w * keys, own = lab_rest(end, first, keys);
            lab_load_part(memory, &b.workers[w].K, head->k, first, 0, own, p->d);
            lab_load_part(memory, &b.workers[w].V, head->v, first, 0, own, p->dv);
        }
        for (int64_t i = 0; i < p->m; i += p->br) /* 7 */
            if (lab_block_visible(p, i, lab_rest(p->m, i, p->br), j, end - j)) queries(memory, head, &b, i, j, end);
    }
    lab_release(memory);
}
