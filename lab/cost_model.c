/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cost_model.c: closed forms for traffic and divisions without a mask, written from the papers and not from the lab's code.
 * Tr = ceil(M / Br), Tc = ceil(N / Bc). */
#include "cost_model.h"

#include <math.h>

static int64_t t_r(const lab_problem *p) { return lab_ceil_div(p->m, p->br); }
static int64_t t_c(const lab_problem *p) { return lab_ceil_div(p->n, p->bc); }

/* Standard attention that reads S `times` times; K and V are read once for every block of queries. */
static lab_prediction standard(const lab_problem *p, int64_t times) {
    const int64_t scores = p->m * p->n;
    return (lab_prediction){.reads = p->m * p->d + t_r(p) * p->n * (p->d + p->dv) + times * scores + scores,
                            .writes = scores + scores + p->m * p->dv,
                            .divisions = scores};
}

lab_prediction lab_predict_standard_forward(const lab_problem *p, int64_t capacity) {
    return standard(p, p->n + 2 <= capacity ? 1 : 3); /* softmax of a row that fits, or safe softmax */
}
lab_prediction lab_predict_safe_softmax_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return standard(p, 3);
}
lab_prediction lab_predict_online_softmax_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return standard(p, 2);
}

lab_prediction lab_predict_online_softmax_v_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return (lab_prediction){
        .reads = p->m * p->d + p->m * p->n * (p->d + p->dv), .writes = p->m * (p->dv + 1), .divisions = p->m * p->n * p->dv};
}

/* K and V are read once. For every block of keys Q and O are read and O is written, and l and m with O. O, l and m are
 * initialised. */
lab_prediction lab_predict_flash1_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return (lab_prediction){.reads = p->n * (p->d + p->dv) + t_c(p) * p->m * (p->d + p->dv + 2),
                            .writes = p->m * (p->dv + 2) + t_c(p) * p->m * (p->dv + 2),
                            .divisions = t_c(p) * p->m * p->dv};
}

/* M d + M dv + M + Tr (N d + N dv). */
lab_prediction lab_predict_flash2_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return (lab_prediction){
        .reads = p->m * p->d + t_r(p) * p->n * (p->d + p->dv), .writes = p->m * (p->dv + 1), .divisions = p->m * p->dv};
}

/* Q is read once for each part. Every part writes O_s and L_s, and the merge reads them. */
lab_prediction lab_predict_split_kv_forward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    const int64_t partial = p->splits * p->m * (p->dv + 1);
    return (lab_prediction){.reads = p->splits * p->m * p->d + t_r(p) * p->n * (p->d + p->dv) + partial,
                            .writes = partial + p->m * (p->dv + 1),
                            .divisions = (p->splits + 1) * p->m * p->dv};
}

/* Read are P for dV, P and dP for dS, and dS for dQ and for dK; written are dP and dS: 7 M N. Rows of P and dP that do not
 * fit are read twice. */
lab_prediction lab_predict_standard_backward(const lab_problem *p, int64_t capacity) {
    const int64_t by_queries = p->m * p->dv + t_r(p) * p->n * (p->d + p->dv), by_keys = t_c(p) * p->m * (p->d + p->dv);
    const int64_t times = 2 * p->n + 2 <= capacity ? 5 : 7;
    return (lab_prediction){.reads = times * p->m * p->n + by_queries + by_keys,
                            .writes = 2 * p->m * p->n + p->m * p->d + p->n * (p->d + p->dv)};
}

/* For every block of keys Q, O, dO, dQ, l and m are read and dQ is written. dQ, dK and dV are initialised. */
lab_prediction lab_predict_flash1_backward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return (lab_prediction){.reads = p->n * (p->d + p->dv) + t_c(p) * p->m * (2 * p->d + 2 * p->dv + 2),
                            .writes = (1 + t_c(p)) * p->m * p->d + 2 * p->n * (p->d + p->dv),
                            .divisions = p->m * p->n};
}

/* First delta: O and dO are read and delta is written. Then for every block of keys Q, dO, dQ, L and delta are read and dQ
 * is written. dQ is initialised. */
lab_prediction lab_predict_flash2_backward(const lab_problem *p, int64_t capacity) {
    (void)capacity;
    return (lab_prediction){.reads = 2 * p->m * p->dv + p->n * (p->d + p->dv) + t_c(p) * p->m * (2 * p->d + p->dv + 2),
                            .writes = p->m + (1 + t_c(p)) * p->m * p->d + p->n * (p->d + p->dv)};
}

int64_t lab_textbook_flop(const lab_problem *p) { return 2 * p->m * p->n * (p->d + p->dv) + 5 * p->m * p->n; }

int64_t lab_textbook_accesses(const lab_problem *p) { return (p->m + p->n) * (p->d + p->dv) + 4 * p->m * p->n; }

double lab_flash_order(const lab_problem *p, int64_t capacity) {
    return (double)p->m * (double)p->n * (double)p->d * (double)p->d / (double)capacity;
}

double lab_log_slope(const double *x, const double *y, int count) {
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (int i = 0; i < count; ++i) {
        mean_x += log(x[i]) / count;
        mean_y += log(y[i]) / count;
    }
    for (int i = 0; i < count; ++i) {
        xx += (log(x[i]) - mean_x) * (log(x[i]) - mean_x);
        xy += (log(x[i]) - mean_x) * (log(y[i]) - mean_y);
    }
    return xy / xx;
}
