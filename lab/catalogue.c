/* SPDX-License-Identifier: BSD-3-Clause
 *
 * catalogue.c: the table of algorithms, in the order in which the ideas came. Command, tests and figures walk it. A new
 * algorithm is one source file and one line here. */
#include "cost_model.h"

#include <string.h>

enum { DROPOUT = LAB_TAKES_DROPOUT, BLOCKS = LAB_TAKES_BLOCK_MASK };
enum { STORED = LAB_SCORES | LAB_WEIGHTS, STATISTICS = LAB_ROW_STATISTICS };

static const lab_algorithm catalogue[] = {
    {"standard", "Algorithm 0: S and P through slow memory", lab_standard_forward, lab_predict_standard_forward, STORED,
     BLOCKS, NULL},
    {"safe_softmax", "the same, softmax in three loops over a row in pieces", lab_safe_softmax_forward,
     lab_predict_safe_softmax_forward, STORED, BLOCKS, NULL},
    {"online_softmax", "the same, softmax in two loops", lab_online_softmax_forward, lab_predict_online_softmax_forward,
     STORED, BLOCKS, NULL},
    {"online_softmax_v", "one loop, the output rescaled key by key; no blocks", lab_online_softmax_v_forward,
     lab_predict_online_softmax_v_forward, LAB_LSE, BLOCKS, NULL},
    {"softmax_star", "blocked product with softmax*, merged by rescale factors", lab_softmax_star_forward,
     lab_predict_flash2_forward, LAB_LSE, BLOCKS, NULL},
    {"flash1", "FlashAttention-1: keys outside, O normalised at every step", lab_flash1_forward, lab_predict_flash1_forward,
     STATISTICS, DROPOUT | BLOCKS, NULL},
    {"split_k", "FlashAttention-1 with its keys split over workers", lab_split_k_forward, lab_predict_flash1_forward,
     STATISTICS, DROPOUT | BLOCKS, NULL},
    {"flash2", "FlashAttention-2: queries outside, one division at the end", lab_flash2_forward, lab_predict_flash2_forward,
     LAB_LSE, DROPOUT | BLOCKS, NULL},
    {"split_q", "FlashAttention-2 with its queries split over workers", lab_split_q_forward, lab_predict_flash2_forward,
     LAB_LSE, DROPOUT | BLOCKS, NULL},
    {"split_kv", "FlashAttention-2 on parts of the keys, then a merge", lab_split_kv_forward, lab_predict_split_kv_forward,
     LAB_LSE, DROPOUT | BLOCKS, NULL},
    {"flash3", "FlashAttention-3: a ring of key blocks, two-stage consumers", lab_flash3_forward, lab_predict_flash2_forward,
     LAB_LSE, DROPOUT, NULL},
    {"standard_backward", "Algorithm 3: P, dP and dS through slow memory", lab_standard_backward,
     lab_predict_standard_backward, STORED | LAB_GRADIENTS, BLOCKS, "standard"},
    {"flash1_backward", "Algorithm 4: P recomputed from m and l", lab_flash1_backward, lab_predict_flash1_backward,
     STATISTICS | LAB_GRADIENTS, DROPOUT | BLOCKS, "flash1"},
    {"flash2_backward", "FlashAttention-2: P recomputed from L", lab_flash2_backward, lab_predict_flash2_backward,
     LAB_LSE | LAB_GRADIENTS, DROPOUT | BLOCKS, "flash2"},
};

const lab_algorithm *lab_algorithm_at(int index) {
    return index >= 0 && index < (int)(sizeof catalogue / sizeof *catalogue) ? &catalogue[index] : NULL;
}

const lab_algorithm *lab_algorithm_named(const char *name) {
    for (int i = 0; lab_algorithm_at(i); ++i)
        if (!strcmp(lab_algorithm_at(i)->name, name)) return lab_algorithm_at(i);
    return NULL;
}
