/* SPDX-License-Identifier: BSD-3-Clause
 *
 * experiment.c: runs an algorithm on the metered memory and compares it with the library's oracle; see experiment.h. */
#include "experiment.h"

#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double lab_relative_error(const double *x, const double *y, int64_t count) {
    double difference = 0, largest = 0;
    for (int64_t e = 0; e < count; ++e) {
        if (!(fabs(x[e] - y[e]) <= difference)) difference = fabs(x[e] - y[e]);
        if (isnan(x[e])) return INFINITY;
        largest = fmax(largest, fabs(y[e]));
    }
    return largest > 0 ? difference / largest : difference;
}

/* max |x - y| where both are finite; infinity where only one is. */
static double lse_difference(const double *x, const double *y, int64_t count) {
    double difference = 0;
    for (int64_t e = 0; e < count; ++e)
        if (x[e] != y[e]) difference = isfinite(x[e] - y[e]) ? fmax(difference, fabs(x[e] - y[e])) : INFINITY;
    return difference;
}

/* ----------------------------------------------------------------------------------------------------- the oracle -- */

static double *rounded(const double *values, int64_t count, lab_type type) {
    double *copy = malloc((size_t)count * sizeof *copy);
    for (int64_t x = 0; copy && x < count; ++x) copy[x] = lab_round(values[x], type);
    return copy;
}

static double *zeros(int64_t count) { return calloc((size_t)count, sizeof(double)); }

enum { SMALL = 1 << 22 }; /* multiply-adds: below, starting threads takes longer than the work */

static strobe_status ask_oracle(lab_data *data, const lab_problem *p) {
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = "reference_forward"};
    const strobe_dropout dropout = {.struct_size = sizeof dropout, .p = p->dropout, .seed = p->seed};
    const strobe_block_mask block_mask = {.struct_size = sizeof block_mask,
                                          .data = p->block_mask,
                                          .block_q = p->br,
                                          .block_k = p->bc,
                                          .stride = {0, 0, lab_ceil_div(p->n, p->bc > 0 ? p->bc : 1)}};
    strobe_attention a = {.struct_size = sizeof a,
                          .batch = 1,
                          .seq_q = p->m,
                          .seq_k = p->n,
                          .heads_q = 1,
                          .dim = p->d,
                          .dim_v = p->dv,
                          .dtype = STROBE_FP64,
                          .mask = (int32_t)p->mask,
                          .scale = p->scale,
                          .q.data = data->q,
                          .k.data = data->k,
                          .v.data = data->v,
                          .out.data = data->o,
                          .lse = {.data = data->lse, .dtype = STROBE_FP64},
                          .tuning = &tuning};
    const strobe_parallel one_thread = {.struct_size = sizeof one_thread, .threads = 1};
    if (p->m * p->n * p->d < SMALL) a.parallel = &one_thread;
    if (p->dropout > 0) a.dropout = &dropout;
    if (p->block_mask) a.block_mask = &block_mask;
    const strobe_status status = strobe_forward(&a, NULL, 0, NULL);
    if (status != STROBE_OK || !data->has_gradients) return status;
    strobe_gradients g = {
        .struct_size = sizeof g, .dout.data = data->d_o, .dq.data = data->dq, .dk.data = data->dk, .dv.data = data->dv};
    tuning.kernel = "reference_backward";
    return strobe_backward(&a, &g, NULL, 0, NULL);
}

bool lab_data_create(lab_data *data, const lab_problem *p, lab_type elements, const double *q, const double *k,
                     const double *v, const double *d_o, char *message) {
    const int64_t out = p->m * p->dv;
    *data = (lab_data){.q = rounded(q, p->m * p->d, elements),
                       .k = rounded(k, p->n * p->d, elements),
                       .v = rounded(v, p->n * p->dv, elements),
                       .o = zeros(out),
                       .lse = zeros(p->m),
                       .has_gradients = d_o != NULL};
    bool memory = data->q && data->k && data->v && data->o && data->lse;
    if (d_o) {
        data->d_o = rounded(d_o, out, elements);
        data->dq = zeros(p->m * p->d);
        data->dk = zeros(p->n * p->d);
        data->dv = zeros(p->n * p->dv);
        memory = memory && data->d_o && data->dq && data->dk && data->dv;
    }
    if (memory && ask_oracle(data, p) == STROBE_OK) return true;
    snprintf(message, LAB_REFUSAL, "%s", memory ? strobe_last_error() : "this machine has no memory for the head's tensors");
    lab_data_destroy(data);
    return false;
}

bool lab_data_random(lab_data *data, const lab_problem *p, lab_type elements, uint64_t seed, bool gradients, char *message) {
    const int64_t counts[] = {p->m * p->d, p->n * p->d, p->n * p->dv, p->m * p->dv};
    lab_random random = {.state = seed};
    double *values[4] = {NULL};
    bool memory = true;
    for (int i = 0; i < 4; ++i) {
        values[i] = zeros(counts[i]);
        if (values[i])
            lab_normals(&random, values[i], counts[i]);
        else
            memory = false;
    }
    if (!memory) snprintf(message, LAB_REFUSAL, "this machine has no memory for the head's tensors");
    const bool created = memory && lab_data_create(data, p, elements, values[0], values[1], values[2],
                                                   gradients ? values[3] : NULL, message);
    for (int i = 0; i < 4; ++i) free(values[i]);
    return created;
}

void lab_data_destroy(lab_data *data) {
    double *all[] = {data->q, data->k, data->v, data->d_o, data->o, data->lse, data->dq, data->dk, data->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    *data = (lab_data){0};
}

/* ------------------------------------------------------------------------------------------------------- measuring -- */

/* The relative error of one output of the head. */
static double error_of(const lab_matrix *output, const double *oracle, int64_t count) {
    double *values = zeros(count);
    if (!values) return INFINITY;
    lab_matrix_get(output, values);
    const double error = lab_relative_error(values, oracle, count);
    free(values);
    return error;
}

static void compare(const lab_head *head, const lab_data *data, bool backward, lab_result *result) {
    const lab_problem *p = head->problem;
    if (backward) {
        result->error = error_of(head->dq, data->dq, p->m * p->d);
        result->error = fmax(result->error, error_of(head->dk, data->dk, p->n * p->d));
        result->error = fmax(result->error, error_of(head->dv, data->dv, p->n * p->dv));
        return;
    }
    result->error = error_of(head->o, data->o, p->m * p->dv);
    double *lse = head->lse ? zeros(p->m) : NULL;
    if (!lse) return;
    lab_matrix_get(head->lse, lse);
    result->lse_error = lse_difference(lse, data->lse, p->m);
    free(lse);
}

double lab_allowed_error(const lab_algorithm *algorithm, const lab_problem *p, lab_type elements, double standard) {
    const bool stores_often = algorithm->parts & LAB_ROW_STATISTICS || algorithm->forward;
    const int64_t stores = stores_often ? lab_ceil_div(p->n, p->bc) : 1;
    return 2 * standard + 2 * (double)stores * lab_type_roundoff(elements) +
           16 * lab_type_roundoff(lab_working_type(elements));
}

static bool offered(const lab_algorithm *algorithm, const lab_problem *p, const lab_data *data, char *message) {
    const char *missing = NULL;
    if (p->dropout > 0 && !(algorithm->takes & LAB_TAKES_DROPOUT)) missing = "dropout";
    if (p->block_mask && !(algorithm->takes & LAB_TAKES_BLOCK_MASK)) missing = "a block mask";
    if (algorithm->forward && data && !data->has_gradients) missing = "data without gradients";
    if (missing) snprintf(message, LAB_REFUSAL, "%s does not take %s", algorithm->name, missing);
    return !missing;
}

bool lab_measure(const lab_algorithm *algorithm, const lab_problem *p, int64_t capacity, lab_type elements,
                 const lab_data *data, lab_result *result, char *message) {
    if (!offered(algorithm, p, data, message)) return false;
    lab_memory memory;
    lab_head head;
    lab_memory_open(&memory, capacity, elements, data ? LAB_COMPUTE : LAB_COUNT);
    if (lab_head_create(&memory, &head, p, algorithm->parts)) {
        if (data) {
            lab_matrix_put(head.q, data->q);
            lab_matrix_put(head.k, data->k);
            lab_matrix_put(head.v, data->v);
            if (head.d_o) lab_matrix_put(head.d_o, data->d_o);
        }
        if (algorithm->forward) {
            lab_algorithm_named(algorithm->forward)->run(&memory, &head);
            memory.counts = (lab_counts){.extra_bytes = memory.extra_now};
        }
        if (!memory.refusal[0]) algorithm->run(&memory, &head);
    }
    *result = (lab_result){.counts = memory.counts, .prediction = algorithm->predict(p, capacity)};
    const bool measured = !memory.refusal[0];
    if (measured && data) compare(&head, data, algorithm->forward != NULL, result);
    lab_head_destroy(&memory, &head);
    if (!measured) snprintf(message, LAB_REFUSAL, "%s: %.200s", algorithm->name, memory.refusal);
    return measured;
}
