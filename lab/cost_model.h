/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cost_model.h: the papers' formulas for traffic and divisions, to compare with what the memory counted. */
#ifndef STROBE_LAB_COST_MODEL_H
#define STROBE_LAB_COST_MODEL_H

#include "algorithms.h"

lab_prediction lab_predict_standard_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_safe_softmax_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_online_softmax_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_online_softmax_v_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_flash1_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_flash2_forward(const lab_problem *problem,
                                          int64_t capacity); /* softmax*, split-Q, FlashAttention-3 too */
lab_prediction lab_predict_split_kv_forward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_standard_backward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_flash1_backward(const lab_problem *problem, int64_t capacity);
lab_prediction lab_predict_flash2_backward(const lab_problem *problem, int64_t capacity);

/* Standard attention as a textbook counts it, with a fast memory that holds all it needs: 4 M N d + 5 M N FLOP (2 M N (d +
 * dv) in place of 4 M N d where dv != d) and 2 M d + 2 N d + 4 M N scalars. At M = N = 2048, d = 64, fp32: 1,094,713,344
 * FLOP, 69,206,016 B, 15.82 FLOP/B. */
int64_t lab_textbook_flop(const lab_problem *problem);
int64_t lab_textbook_accesses(const lab_problem *problem);

/* N^2 d^2 / S, the order of FlashAttention's traffic. */
double lab_flash_order(const lab_problem *problem, int64_t capacity);

/* The slope of ln y against ln x by least squares. */
double lab_log_slope(const double *x, const double *y, int count);

#endif
