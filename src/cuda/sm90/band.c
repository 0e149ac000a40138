/* SPDX-License-Identifier: BSD-3-Clause
 *
 * band.c: see band.h. */
#include "cuda/sm90/band.h"

/* Positions are below 2^28: beyond 2^29 a shift means the same as there. */
static int32_t clamp_shift(int64_t shift) {
    const int64_t most = (int64_t)1 << 29;
    return (int32_t)(shift < -most ? -most : shift > most ? most : shift);
}

struct sm90_band strobe__sm90_band(const struct problem *p) {
    const int32_t mask = p->a.mask;
    const struct sequence nothing = {0};
    const struct band band = strobe__band(p, &nothing); /* its diagonal is without keys - rows */
    return (struct sm90_band){clamp_shift(band.diagonal - band.left), clamp_shift(band.diagonal + band.right + 1),
                              mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT};
}
