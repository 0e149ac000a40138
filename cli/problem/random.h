/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.h: random numbers for inputs. Every row of every tensor has its own stream, so its values depend on the seed and on
 * its place only: the same in every layout, type and order of filling. SplitMix64 (Steele, Lea, Flood 2014), Box-Muller. */
#ifndef STROBE_CLI_RANDOM_H
#define STROBE_CLI_RANDOM_H

#include <stdint.h>

typedef struct random_stream {
    uint64_t state;
} random_stream;

/* The stream of one place: any three numbers. */
random_stream random_at(uint64_t seed, uint64_t what, uint64_t where);

uint64_t random_bits(random_stream *r);

/* Uniform in [0, bound), bound > 0. */
int64_t random_below(random_stream *r, int64_t bound);

/* Standard normal numbers into values[count]. */
void random_normal(random_stream *r, float *values, int64_t count);

#endif
