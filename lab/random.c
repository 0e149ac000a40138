/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.c: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) and Box-Muller. */
#include "random.h"

#include <math.h>

double lab_uniform(lab_random *random) {
    uint64_t z = random->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double lab_normal(lab_random *random) {
    const double radius = sqrt(-2 * log(1 - lab_uniform(random)));
    return radius * cos(6.283185307179586 * lab_uniform(random));
}

void lab_normals(lab_random *random, double *values, int64_t count) {
    for (int64_t x = 0; x < count; ++x) values[x] = lab_normal(random);
}

void lab_outliers(lab_random *random, double *values, int64_t count) {
    for (int64_t x = 0; x < count; ++x) {
        const double normal = lab_normal(random), outlier = 10 * lab_normal(random);
        values[x] = normal + (lab_uniform(random) < 0.001 ? outlier : 0);
    }
}
