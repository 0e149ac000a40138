/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.c: see band.h. */
#include "cuda/sm90/band.h"

struct sm90_band strobe__sm90_band(const struct problem *p) {
    const int32_t mask = p->a.mask;
    const struct sequence nothing = {0};
    const struct band band = strobe__band(p, &nothing); /* its diagonal is without keys - rows */
    const struct band32 shifts = band32_of(&band);
    return (struct sm90_band){shifts.first_shift, shifts.end_shift,
                              mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT};
}
