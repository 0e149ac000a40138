/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rotary.c: rotary position embedding on rows in fast memory. A pass that has the rows there for the rotation can transform
 * and quantise them too, so that incoherent processing moves nothing more (quantise.c, lab_transform). */
#include "fp8.h"

#include <math.h>

void lab_rotary_rows(lab_memory *memory, lab_tile *x, int64_t first_position) {
    memory->counts.multiply_adds += 2 * x->rows * x->cols; /* sines and cosines come from a table */
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t r = 0; r < x->rows; ++r)
        for (int64_t c = 0; c + 1 < x->cols; c += 2) {
            const double angle = (double)(first_position + r) * pow(10000, -(double)c / (double)x->cols);
            double *pair = x->at + r * x->cols + c;
            const double a = pair[0], b = pair[1];
            pair[0] = (double)(float)(a * cos(angle) - b * sin(angle));
            pair[1] = (double)(float)(a * sin(angle) + b * cos(angle));
        }
}
