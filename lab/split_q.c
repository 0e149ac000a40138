/* SPDX-License-Identifier: BSD-3-Clause
 *
 * split_q.c: how W workers (the warps of a thread block) share a block of scores in FlashAttention-2: each takes some rows
 * of Q_i, and all use the same K_j and V_j. Rows do not depend on one another, so nothing is exchanged and no worker waits
 * for another: counts.exchanged stays 0. Numbers are the lines of FA2's Algorithm 1. FlashAttention-1's way is split_k.c. */
#include "flash2.h"

void lab_split_q_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    const int64_t own = lab_ceil_div(p->br, p->workers); /* rows of one worker */
    lab_flash2_tiles workers[LAB_MOST_WORKERS];
    lab_tile K_j = lab_tile_create(memory, "K_j", p->bc, p->d), V_j = lab_tile_create(memory, "V_j", p->bc, p->dv);
    for (int64_t w = 0; w < p->workers; ++w) workers[w] = lab_flash2_tiles_create(memory, p, own, &K_j, &V_j);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) { /* 3 */
        const int64_t end = i + lab_rest(p->m, i, p->br), busy = lab_ceil_div(end - i, own);
        for (int64_t w = 0; w < busy; ++w) {
            const int64_t first = i + w * own, rows = lab_rest(end, first, own);
            lab_load_part(memory, &workers[w].Q_i, head->q, first, 0, rows, p->d); /* 4 */
            lab_flash2_start(memory, &workers[w], rows, p->dv);
        }
        for (int64_t j = 0; j < p->n; j += p->bc) { /* 6 */
            if (!lab_block_visible(p, i, end - i, j, lab_rest(p->n, j, p->bc))) continue;
            lab_load(memory, &K_j, head->k, j); /* 7: for all workers */
            lab_load(memory, &V_j, head->v, j);
            for (int64_t w = 0; w < busy; ++w) lab_flash2_block(memory, p, &workers[w], i + w * own, j);
        }
        for (int64_t w = 0; w < busy; ++w) lab_flash2_finish(memory, &workers[w], head->o, head->lse, i + w * own);
    }
    lab_release(memory);
}
