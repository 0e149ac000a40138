/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.c: numbers to e4m3 with a scale; see fp8.h. */
#include "fp8.h"

#include <math.h>

static void transform_rows(lab_memory *memory, lab_tile *x, int64_t first, const lab_transform *transform) {
    if (transform->rotary) lab_rotary_rows(memory, x, first);
    if (transform->signs) lab_hadamard_rows(memory, x, transform->signs);
}

static double largest_of(lab_memory *memory, const lab_tile *x) {
    memory->counts.others += x->rows * x->cols;
    double largest = 0;
    if (memory->mode == LAB_COMPUTE)
        for (int64_t e = 0; e < x->rows * x->cols; ++e) largest = fmax(largest, fabs(x->at[e]));
    return largest;
}

double lab_largest(lab_memory *memory, const lab_matrix *x, int64_t rows, int64_t cols, int64_t block,
                   const lab_transform *transform) {
    double largest = 0;
    lab_tile X_i = lab_tile_create(memory, "X_i", block, cols);
    if (!lab_fits(memory)) return largest;
    for (int64_t i = 0; i < rows && !memory->refusal[0]; i += block) {
        lab_load(memory, &X_i, x, i);
        transform_rows(memory, &X_i, i, transform);
        largest = fmax(largest, largest_of(memory, &X_i));
    }
    lab_release(memory);
    return largest;
}

void lab_quantise(lab_memory *memory, const lab_matrix *x, lab_matrix *stored, lab_matrix *scales, int64_t rows,
                  int64_t cols, int64_t block, const lab_transform *transform, double largest) {
    lab_tile X_i = lab_tile_create(memory, "X_i", block, cols), scale = lab_tile_create(memory, "scale", 1, 1);
    if (!lab_fits(memory)) return;
    for (int64_t i = 0; i < rows && !memory->refusal[0]; i += block) {
        lab_load(memory, &X_i, x, i);
        transform_rows(memory, &X_i, i, transform);
        const double most = largest > 0 ? largest : largest_of(memory, &X_i);
        memory->counts.others += X_i.rows * cols; /* times 1 / scale */
        if (memory->mode == LAB_COMPUTE) {
            scale.at[0] = most > 0 ? (double)(float)(most / LAB_E4M3_LARGEST) : 1; /* a block of zeros */
            for (int64_t e = 0; e < X_i.rows * cols; ++e) X_i.at[e] = (double)(float)(X_i.at[e] / scale.at[0]);
        }
        lab_store(memory, &X_i, stored, i); /* rounds to e4m3 */
        lab_store(memory, &scale, scales, i / block);
    }
    lab_release(memory);
}
