/* SPDX-License-Identifier: BSD-3-Clause
 *
 * experiment.h: one algorithm on one head: what it counted, what the model says, how far it is from float64. */
#ifndef STROBE_LAB_EXPERIMENT_H
#define STROBE_LAB_EXPERIMENT_H

#include "algorithms.h"

/* The inputs of a head, [rows][cols] each, and the results of the library's float64 reference for them. */
typedef struct lab_data {
    double *q, *k, *v, *d_o;        /* rounded to the format of the elements */
    double *o, *lse, *dq, *dk, *dv; /* the oracle's; the gradients only if asked for */
    bool has_gradients;
} lab_data;

/* Takes copies of q, k, v (and dout, or NULL: no gradients), rounds them to the format, and asks strobe_forward and
 * strobe_backward with the kernels reference_forward and reference_backward in fp64. block_mask has the problem's blocks.
 * False with a sentence in message[LAB_REFUSAL]. */
bool lab_data_create(lab_data *data, const lab_problem *problem, lab_type elements, const double *q, const double *k,
                     const double *v, const double *d_o, char *message);

/* The same with N(0, 1) numbers. */
bool lab_data_random(lab_data *data, const lab_problem *problem, lab_type elements, uint64_t seed, bool gradients,
                     char *message);
void lab_data_destroy(lab_data *data);

typedef struct lab_result {
    lab_counts counts;
    lab_prediction prediction;
    double error;     /* max |x - oracle| / max |oracle|, the worst of the outputs; only with data */
    double lse_error; /* max |L - oracle|; only with data, and of algorithms that leave L */
} lab_result;

/* Runs the algorithm (a backward: after its forward, whose counts are not reported) in a fast memory of `capacity` scalars.
 * data NULL: counts only. False with a sentence in message[LAB_REFUSAL] when something does not fit or is not offered. */
bool lab_measure(const lab_algorithm *algorithm, const lab_problem *problem, int64_t capacity, lab_type elements,
                 const lab_data *data, lab_result *result, char *message);

/* The error that an algorithm is allowed where standard attention (for a backward: its backward) in the same format has the
 * error `standard`: twice that, plus two roundings of the output for each time that it is stored (FlashAttention-1 stores O
 * once for each block of keys, and the backward passes dQ), plus 16 roundings of the arithmetic for another order of
 * additions. */
double lab_allowed_error(const lab_algorithm *algorithm, const lab_problem *problem, lab_type elements, double standard);

/* max |x - y| / max |y| over count numbers; infinity for a NaN where y is finite. */
double lab_relative_error(const double *x, const double *y, int64_t count);

#endif
