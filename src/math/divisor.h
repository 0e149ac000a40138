/* SPDX-License-Identifier: BSD-3-Clause
 *
 * divisor.h: quotients by a number of the problem's, which the host turns into a factor: a product on the device, where a
 * division takes some twenty instructions, one after the other. Valid as C and as CUDA C. */
#ifndef STROBE_MATH_DIVISOR_H
#define STROBE_MATH_DIVISOR_H

#include <stdint.h>

#include "math/inline.h"

/* n / by = n factor / 2^(31 + shift), rounded down, for all n below 2^31: factor is rounded up by less than by / 2^shift of
 * a unit, and by is at most 2^shift. */
struct divisor {
    uint32_t factor;
    int32_t shift;
};

static inline struct divisor divisor_of(int32_t by) {
    struct divisor d = {0, 0};
    while ((int64_t)1 << d.shift < by) ++d.shift;
    d.factor = (uint32_t)((((uint64_t)1 << (31 + d.shift)) + (uint64_t)by - 1) / (uint64_t)by);
    return d;
}

STROBE_INLINE int32_t quotient(int32_t n, struct divisor d) {
    return (int32_t)((uint32_t)((uint64_t)(2 * (uint32_t)n) * d.factor >> 32) >> d.shift);
}

#endif
