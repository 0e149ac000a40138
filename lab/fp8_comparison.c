/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fp8_comparison.c: FA3's Table 3: the error of attention in FP16 and in FP8, with and without scales by blocks and
 * incoherent processing, on inputs with outliers. */
#include "fp8.h"

#include "blocks.h"
#include "experiment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const lab_fp8_variant variants[] = {
    {"fp16_standard", "standard attention in fp16: S and P are rounded", .standard = true, .published = 3.2e-4},
    {"fp16_flash", "FlashAttention-2 in fp16: softmax stays in fp32", .published = 1.9e-4},
    {"fp8_baseline", "a scale a tensor, P in fp16", true, false, LAB_PER_TENSOR, false, LAB_FP16, 2.4e-2},
    {"fp8_tensor", "a scale a tensor", true, false, LAB_PER_TENSOR, false, LAB_E4M3, 0},
    {"fp8_head", "a scale a head", true, false, LAB_PER_HEAD, false, LAB_E4M3, 0},
    {"fp8_block", "a scale a block, no incoherent processing", true, false, LAB_PER_BLOCK, false, LAB_E4M3, 2.4e-2},
    {"fp8_hadamard", "incoherent processing, a scale a tensor", true, false, LAB_PER_TENSOR, true, LAB_E4M3, 9.3e-3},
    {"fp8_flash3", "incoherent processing and a scale a block: FA3", true, false, LAB_PER_BLOCK, true, LAB_E4M3, 9.1e-3},
};

const lab_fp8_variant *lab_fp8_variant_at(int index) {
    return index >= 0 && index < (int)(sizeof variants / sizeof *variants) ? &variants[index] : NULL;
}

static lab_problem problem_of(const lab_fp8_input *in) {
    return (lab_problem){.m = in->m,
                         .n = in->n,
                         .d = in->d,
                         .dv = in->d,
                         .scale = 1 / sqrt((double)in->d),
                         .br = in->block < in->m ? in->block : in->m,
                         .bc = in->block < in->n ? in->block : in->n,
                         .workers = 1,
                         .splits = 1,
                         .stages = 2};
}

bool lab_fp8_oracle(const lab_fp8_input *in, double *oracle, char *message) {
    const lab_problem p = problem_of(in);
    for (int64_t h = 0; h < in->heads; ++h) {
        lab_data data;
        const int64_t q = h * in->m * in->d, k = h * in->n * in->d;
        if (!lab_data_create(&data, &p, LAB_FP64, in->q + q, in->k + k, in->v + k, NULL, message)) return false;
        for (int64_t x = 0; x < in->m * in->d; ++x) oracle[q + x] = data.o[x];
        lab_data_destroy(&data);
    }
    return true;
}

/* Q, K or V of all heads: the matrices as they come (fp16), in FP8, and the scales. */
typedef struct operand {
    lab_matrix *given, *stored, *scales;
} operand;

static operand create_operand(lab_memory *memory, const char *name, const double *values, int64_t rows, int64_t d,
                              int64_t block) {
    const operand o = {lab_matrix_create(memory, name, rows, d, LAB_FP16, LAB_OPERAND),
                       lab_matrix_create(memory, name, rows, d, LAB_E4M3, LAB_EXTRA),
                       lab_matrix_create(memory, "scales", lab_ceil_div(rows, block), 1, LAB_FP32, LAB_EXTRA)};
    if (o.given) lab_matrix_put(o.given, values);
    return o;
}

static void destroy_operand(lab_memory *memory, operand *o) {
    lab_matrix_destroy(memory, o->given);
    lab_matrix_destroy(memory, o->stored);
    lab_matrix_destroy(memory, o->scales);
}

/* One of the three operands in all heads. A scale for the whole tensor needs a pass over all of them first. */
typedef struct family {
    const double *values;
    int64_t rows;
    bool transformed; /* true for Q and K */
    double largest;
} family;

static void find_largest(lab_memory *memory, const lab_fp8_variant *v, const lab_fp8_input *in, family *f, int64_t first,
                         int64_t end, const lab_transform *transform) {
    static const lab_transform none = {0};
    f->largest = 0;
    for (int64_t h = first; h < end && v->unit != LAB_PER_BLOCK; ++h) {
        operand o = create_operand(memory, "X", f->values + h * f->rows * in->d, f->rows, in->d, in->block);
        const double largest = lab_largest(memory, o.given, f->rows, in->d, in->block, f->transformed ? transform : &none);
        f->largest = fmax(f->largest, largest);
        destroy_operand(memory, &o);
    }
}

static void fp8_head(lab_memory *memory, const lab_fp8_variant *v, const lab_fp8_input *in, family families[3], int64_t h,
                     const lab_transform *transform, double *output, double *scale_q) {
    static const lab_transform none = {0};
    static const char *const names[] = {"Q", "K", "V"};
    const lab_problem p = problem_of(in);
    operand o[3];
    for (int i = 0; i < 3; ++i) {
        family *f = &families[i];
        if (v->unit == LAB_PER_HEAD) find_largest(memory, v, in, f, h, h + 1, transform);
        o[i] = create_operand(memory, names[i], f->values + h * f->rows * in->d, f->rows, in->d, in->block);
        lab_quantise(memory, o[i].given, o[i].stored, o[i].scales, f->rows, in->d, in->block,
                     f->transformed ? transform : &none, f->largest);
    }
    lab_matrix *out = lab_matrix_create(memory, "O", in->m, in->d, LAB_FP16, LAB_OPERAND);
    const lab_fp8_head head = {&p, o[0].stored, o[1].stored, o[2].stored, o[0].scales, o[1].scales, o[2].scales, out};
    if (!memory->refusal[0]) lab_flash3_fp8_forward(memory, &head);
    if (!memory->refusal[0]) {
        lab_matrix_get(out, output);
        double *scales = calloc((size_t)lab_ceil_div(in->m, in->block), sizeof *scales);
        if (scales) lab_matrix_get(o[0].scales, scales);
        for (int64_t b = 0; scales && b < lab_ceil_div(in->m, in->block); ++b) *scale_q = fmax(*scale_q, scales[b]);
        free(scales);
    }
    lab_matrix_destroy(memory, out);
    for (int i = 0; i < 3; ++i) destroy_operand(memory, &o[i]);
}

static void fp16_head(lab_memory *memory, const lab_fp8_variant *v, const lab_fp8_input *in, int64_t h, double *output) {
    const lab_algorithm *algorithm = lab_algorithm_named(v->standard ? "standard" : "flash2");
    const lab_problem p = problem_of(in);
    lab_head head;
    if (lab_head_create(memory, &head, &p, algorithm->parts)) {
        lab_matrix_put(head.q, in->q + h * in->m * in->d);
        lab_matrix_put(head.k, in->k + h * in->n * in->d);
        lab_matrix_put(head.v, in->v + h * in->n * in->d);
        algorithm->run(memory, &head);
        lab_matrix_get(head.o, output);
    }
    lab_head_destroy(memory, &head);
}

bool lab_fp8_measure(const lab_fp8_variant *v, const lab_fp8_input *in, const double *oracle, lab_fp8_result *result,
                     char *message) {
    lab_memory memory;
    lab_memory_open(&memory, INT64_MAX / 2, v->fp8 ? v->weights : LAB_FP16, LAB_COMPUTE);
    double *signs = calloc((size_t)in->d, sizeof *signs), *output = calloc((size_t)(in->m * in->d), sizeof *output);
    if (!signs || !output) lab_refuse(&memory, "this machine has no memory for one head");
    if (!memory.refusal[0]) lab_signs(signs, in->d, in->seed);
    const lab_transform transform = {.signs = v->hadamard ? signs : NULL};
    family families[] = {{in->q, in->m, true, 0}, {in->k, in->n, true, 0}, {in->v, in->n, false, 0}};
    for (int i = 0; i < 3 && v->fp8 && v->unit == LAB_PER_TENSOR && !memory.refusal[0]; ++i)
        find_largest(&memory, v, in, &families[i], 0, in->heads, &transform);

    *result = (lab_fp8_result){0};
    double sum = 0;
    for (int64_t h = 0; h < in->heads && !memory.refusal[0]; ++h) {
        if (v->fp8)
            fp8_head(&memory, v, in, families, h, &transform, output, &result->scale_q);
        else
            fp16_head(&memory, v, in, h, output);
        for (int64_t x = 0; x < in->m * in->d; ++x) {
            const double error = fabs(output[x] - oracle[h * in->m * in->d + x]);
            sum += error * error;
            result->largest_error = fmax(result->largest_error, error);
        }
    }
    result->rmse = sqrt(sum / (double)(in->heads * in->m * in->d));
    result->counts = memory.counts;
    if (memory.refusal[0]) snprintf(message, LAB_REFUSAL, "%s: %.200s", v->name, memory.refusal);
    free(signs);
    free(output);
    return !memory.refusal[0];
}
