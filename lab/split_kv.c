/* SPDX-License-Identifier: BSD-3-Clause
 *
 * split_kv.c: split-KV (Flash-Decoding, Dao et al., 2023): where there are too few query blocks to fill a machine, the keys
 * are divided into parts that run at the same time. Each part is FlashAttention-2 over its keys and leaves (O_s, L_s) in
 * slow memory. A second kernel is the split-KV merge: L = log sum_s e^(L_s), O = sum_s e^(L_s - L) O_s. Ring attention and
 * chunked prefill merge the same way. */
#include "flash2.h"

#include "arithmetic.h"

/* The first key of part s: whole blocks, as even as they go. */
static int64_t part_start(const lab_problem *p, int64_t s) {
    const int64_t first = lab_ceil_div(p->n, p->bc) * s / p->splits * p->bc;
    return first < p->n ? first : p->n;
}

/* Kernel 1. parts: [splits * m][dv], part s of row i at s * m + i; part_lse: [splits * m][1]. */
static void forward_parts(lab_memory *memory, const lab_head *head, lab_matrix *parts, lab_matrix *part_lse) {
    const lab_problem *p = head->problem;
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    lab_flash2_tiles t = lab_flash2_tiles_create(memory, p, p->br, &K_j, &V_j);
    if (!lab_fits(memory)) return;

    for (int64_t s = 0; s < p->splits; ++s)
        for (int64_t i = 0; i < p->m; i += p->br) {
            const int64_t rows = lab_rest(p->m, i, p->br), end = part_start(p, s + 1);
            lab_load(memory, &t.Q_i, head->q, i);
            lab_flash2_start(memory, &t, rows, p->dv);
            for (int64_t j = part_start(p, s); j < end; j += p->bc) {
                if (!lab_block_visible(p, i, rows, j, lab_rest(p->n, j, p->bc))) continue;
                lab_load(memory, &K_j, head->k, j);
                lab_load(memory, &V_j, head->v, j);
                lab_flash2_block(memory, p, &t, i, j);
            }
            lab_flash2_finish(memory, &t, parts, part_lse, s * p->m + i);
        }
    lab_release(memory);
}

/* Kernel 2. The merge is itself an online softmax, over parts instead of keys. (0, -inf) is its identity. */
static void merge_parts(lab_memory *memory, const lab_head *head, const lab_matrix *parts, const lab_matrix *part_lse) {
    const lab_problem *p = head->problem;
    lab_tile O_i = lab_tile_create(memory, "O_i", p->br, p->dv), O_s = lab_tile_create(memory, "O_s", p->br, p->dv);
    lab_tile m = lab_tile_create(memory, "m", p->br, 1), L_s = lab_tile_create(memory, "L_s", p->br, 1);
    lab_tile l = lab_tile_create(memory, "l", p->br, 1), m_new = lab_tile_create(memory, "m_new", p->br, 1);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) {
        const int64_t rows = lab_rest(p->m, i, p->br);
        lab_zero(memory, &O_i, rows, p->dv);
        lab_zero(memory, &l, rows, 1);
        lab_minus_infinity(memory, &m, rows, 1);
        for (int64_t s = 0; s < p->splits; ++s) {
            lab_load_part(memory, &O_s, parts, s * p->m + i, 0, rows, p->dv);
            lab_load_part(memory, &L_s, part_lse, s * p->m + i, 0, rows, 1);
            lab_max(memory, &m_new, &m, &L_s);
            lab_exp_difference(memory, &m, &m, &m_new);     /* e^(m - m_new): rescales the sums so far */
            lab_exp_difference(memory, &L_s, &L_s, &m_new); /* e^(L_s - m_new): rescales the part */
            lab_scale_add(memory, &l, &m, &L_s);
            lab_rescale_rows(memory, &O_i, &m);
            lab_rescale_rows(memory, &O_s, &L_s);
            lab_add(memory, &O_i, &O_s);
            lab_copy(memory, &m, &m_new);
        }
        lab_divide_rows(memory, &O_i, &l);
        lab_store(memory, &O_i, head->o, i);
        lab_lse(memory, &L_s, &m, &l);
        lab_store(memory, &L_s, head->lse, i);
    }
    lab_release(memory);
}

void lab_split_kv_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    lab_matrix *parts = lab_matrix_create(memory, "O_s", p->splits * p->m, p->dv, memory->working, LAB_EXTRA);
    lab_matrix *part_lse = lab_matrix_create(memory, "L_s", p->splits * p->m, 1, memory->working, LAB_EXTRA);
    if (parts && part_lse) {
        forward_parts(memory, head, parts, part_lse);
        merge_parts(memory, head, parts, part_lse);
    }
    lab_matrix_destroy(memory, parts);
    lab_matrix_destroy(memory, part_lse);
}
