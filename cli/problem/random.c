/* SPDX-License-Identifier: BSD-3-Clause
 *
 * random.c: SplitMix64 and Box-Muller; see random.h. */
#include "problem/random.h"

#include <math.h>

uint64_t random_bits(random_stream *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

random_stream random_at(uint64_t seed, uint64_t what, uint64_t where) {
    random_stream r = {seed};
    r.state = random_bits(&r) ^ what;
    r.state = random_bits(&r) ^ where;
    r.state = random_bits(&r);
    return r;
}

int64_t random_below(random_stream *r, int64_t bound) {
    return (int64_t)(random_bits(r) % (uint64_t)bound); /* the bias of 2^-40 and less does not matter here */
}

void random_normal(random_stream *r, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += 2) {
        const uint64_t bits = random_bits(r);
        const float u = ((float)(bits >> 40) + 1.0f) * 0x1p-24f; /* (0, 1] */
        const float angle = (float)(bits & 0xffffff) * (6.2831853f * 0x1p-24f);
        const float radius = sqrtf(-2.0f * logf(u));
        values[i] = radius * cosf(angle);
        if (i + 1 < count) values[i + 1] = radius * sinf(angle);
    }
}
