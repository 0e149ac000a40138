/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.h: reproducible random inputs. */
#ifndef STROBE_LAB_RANDOM_H
#define STROBE_LAB_RANDOM_H

#include <stdint.h>

typedef struct lab_random {
    uint64_t state;
} lab_random;

/* Uniform in [0, 1), and N(0, 1). */
double lab_uniform(lab_random *random);
double lab_normal(lab_random *random);

void lab_normals(lab_random *random, double *values, int64_t count);

/* FA3's outliers: N(0, 1) + N(0, 100) Bernoulli(0.001), where 100 is the variance. */
void lab_outliers(lab_random *random, double *values, int64_t count);

#endif
