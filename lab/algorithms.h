/* SPDX-License-Identifier: BSD-3-Clause
 *
 * algorithms.h: every algorithm of the papers, one function each, over the metered memory. A function reads the head's
 * inputs, writes its outputs, takes its block sizes from the problem and leaves fast memory empty. Where its tiles do not
 * fit it only refuses. Line numbers in the sources are those of the papers:
 *
 *     FA1  Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022          Algorithm 0 standard, 1 and 2 forward, 3 standard
 *                                                                   backward, 4 backward, 5 block-sparse forward
 *     FA2  Dao: FlashAttention-2, 2023                              Algorithm 1 forward, 2 backward
 *     FA3  Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao:            Algorithm 1 producer and consumers, 2 two-stage
 *          FlashAttention-3, 2024                                   pipeline of a consumer
 *     OS   Milakov, Gimelshein: Online normalizer calculation for softmax, 2018 */
#ifndef STROBE_LAB_ALGORITHMS_H
#define STROBE_LAB_ALGORITHMS_H

#include "problem.h"

typedef void lab_run(lab_memory *memory, const lab_head *head);

lab_run lab_standard_forward, lab_safe_softmax_forward, lab_online_softmax_forward, lab_online_softmax_v_forward;
lab_run lab_softmax_star_forward, lab_flash1_forward, lab_flash2_forward, lab_flash3_forward;
lab_run lab_split_k_forward, lab_split_q_forward, lab_split_kv_forward;
lab_run lab_standard_backward, lab_flash1_backward, lab_flash2_backward;

/* The first half of the standard algorithm, S = tau Q K^T, and its last, O = P V, by blocks. */
lab_run lab_standard_scores, lab_standard_output;

/* The softmax between them, S -> P in slow memory: three loops over every row, or two. */
lab_run lab_safe_softmax, lab_online_softmax;

/* What an algorithm moves by the cost model (cost_model.c), without a mask. */
typedef struct lab_prediction {
    int64_t reads, writes, divisions;
} lab_prediction;

/* The features that an algorithm takes: bits. */
enum { LAB_TAKES_DROPOUT = 1, LAB_TAKES_BLOCK_MASK = 2 };

typedef struct lab_algorithm {
    const char *name;    /* one word */
    const char *summary; /* a line */
    lab_run *run;
    lab_prediction (*predict)(const lab_problem *problem, int64_t capacity);
    int parts; /* what it needs of a lab_head */
    int takes;
    const char *forward; /* backward: the forward whose results it reads; forward: NULL */
} lab_algorithm;

/* The catalogue, forward passes first; NULL past its end, or for an unknown name. */
const lab_algorithm *lab_algorithm_at(int index);
const lab_algorithm *lab_algorithm_named(const char *name);

#endif
