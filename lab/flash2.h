/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash2.h: the steps of FlashAttention-2's forward pass, for the algorithms that share them: split-Q, split-KV. */
#ifndef STROBE_LAB_FLASH2_H
#define STROBE_LAB_FLASH2_H

#include "algorithms.h"

/* The tiles of one query block, and the key block that it works on, which others may share. P~_ij takes the place of S_ij;
 * row holds one scalar for each row between two steps. */
typedef struct lab_flash2_tiles {
    lab_tile *K_j, *V_j;
    lab_tile Q_i, O_i, P_ij, m_i, l_i, m_new, row;
} lab_flash2_tiles;

/* rows: of the query block. */
lab_flash2_tiles lab_flash2_tiles_create(lab_memory *memory, const lab_problem *problem, int64_t rows, lab_tile *K_j,
                                         lab_tile *V_j);

/* Line 5; lines 8 to 10 for the block of scores at (i, j), whose Q_i, K_j, V_j are loaded; lines 12 to 15. */
void lab_flash2_start(lab_memory *memory, lab_flash2_tiles *tiles, int64_t rows, int64_t dv);
void lab_flash2_block(lab_memory *memory, const lab_problem *problem, lab_flash2_tiles *tiles, int64_t i, int64_t j);
void lab_flash2_finish(lab_memory *memory, lab_flash2_tiles *tiles, lab_matrix *o, lab_matrix *lse, int64_t i);

#endif
