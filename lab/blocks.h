/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocks.h: block sizes from the size of the fast memory. FA1's Algorithm 1, line 1: Bc = ceil(S / 4d), Br = min(Bc, d).
 *
 * At S itself the formula needs more than S. Four blocks of Bc x d (Q_i, K_j, V_j, O_i) fill S exactly while Bc <= d, and
 * S_ij and the statistics come on top, a quarter of S at most (Bc = d). A proof that Br d + 2 Bc d + 2 Br Bc <= S holds for
 * Bc <= d / 2 only. The papers' order of growth is not changed by that, but the lab's memory refuses what does not fit. So
 * the lab takes the formula at the largest S' <= S at which everything that the algorithm keeps fits. S' is at least about
 * 0.8 S, and the count of accesses keeps the formula's slope. */
#ifndef STROBE_LAB_BLOCKS_H
#define STROBE_LAB_BLOCKS_H

#include "algorithms.h"

/* Sets br and bc by the formula, never above m and n. */
void lab_paper_blocks(lab_problem *problem, int64_t budget);

/* The fast memory, in scalars, that the algorithm needs for the problem with its block sizes. */
int64_t lab_fast_need(const lab_algorithm *algorithm, const lab_problem *problem);

/* FORMULA: the formula at the largest S' that fits. Algorithms that store S and P take BEST instead, since their kernels are
 * plain matrix products, for which the formula was not made. PAPER: the formula at S, whether it fits or not. BEST: the br
 * and bc, one of them a power of two, that fit and move the least by the cost model. */
typedef enum lab_block_rule { LAB_BLOCKS_FORMULA, LAB_BLOCKS_PAPER, LAB_BLOCKS_BEST } lab_block_rule;

/* Sets br and bc. False, with a sentence in message[LAB_REFUSAL], if even one query and one key do not fit. */
bool lab_choose_blocks(const lab_algorithm *algorithm, lab_problem *problem, int64_t capacity, lab_block_rule rule,
                       char *message);

/* br or bc is given, the other zero: sets the other to the largest that fits. */
bool lab_complete_blocks(const lab_algorithm *algorithm, lab_problem *problem, int64_t capacity, char *message);

#endif
