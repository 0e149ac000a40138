/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rotary.c: reads and checks a strobe_rotary, and works out the frequencies of one without tables. Their bits are the same
 * with every C library: logarithm and power are series here, of IEEE's operations. */
#include "core/rotary.h"

#include <math.h>

#include "core/validate.h"

strobe_status strobe__rotary_read(struct rotary_call *call, const strobe_rotary *rotary, int64_t dim) {
    call->given = rotary;
    if (!rotary) return STROBE_OK;
    TRY(strobe__struct_copy(&call->r, sizeof call->r, rotary, "rotary"));
    if (call->r.dim == 0) call->r.dim = dim;
    return STROBE_OK;
}

static strobe_status check_base(const strobe_rotary *r) {
    if (!(r->base >= 1 && isfinite(r->base)))
        return strobe__fail(STROBE_INVALID_ARGUMENT,
                            "rotary.base is %g without tables; a finite number from 1 on is accepted", r->base);
    return strobe__check_range("rotary.positions", r->positions, 0, 0);
}

strobe_status strobe__rotary_check(const struct rotary_call *call, int64_t dim) {
    const strobe_rotary *r = &call->r;
    if (!call->given) return STROBE_OK;
    TRY(strobe__check_range("rotary.dim", r->dim, 2, dim));
    if (r->dim % 2 != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "rotary.dim is %lld; an even number is accepted", (long long)r->dim);
    TRY(strobe__check_range("rotary.interleaved", r->interleaved, 0, 1));
    TRY(strobe__check_range("rotary.reserved", r->reserved, 0, 0));
    if (r->base != 0 && !r->cos && !r->sin) return check_base(r);
    if (r->base != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "rotary.base is %g beside tables; 0 is accepted", r->base);
    TRY(strobe__check_range("rotary.positions", r->positions, 0, LARGEST_EXTENT));
    TRY(strobe__check_pointer("rotary.cos", r->cos, sizeof(float)));
    return strobe__check_pointer("rotary.sin", r->sin, sizeof(float));
}

strobe_status strobe__rotary_check_positions(const struct rotary_call *call, const char *tensor, int64_t first,
                                             int64_t rows) {
    if (!call->given || !call->r.cos || rows == 0) return STROBE_OK;
    if (first >= 0 && first <= call->r.positions - rows) return STROBE_OK;
    return strobe__fail(STROBE_INVALID_ARGUMENT,
                        "%s stands at positions %lld to %lld; 0 to rotary.positions - 1, %lld, is accepted", tensor,
                        (long long)first, (long long)(first + rows - 1), (long long)call->r.positions - 1);
}

/* ln x = 2 artanh((m - 1) / (m + 1)) + exponent ln 2, for m between the roots of 1/2 and 2. */
static double logarithm(double x) {
    enum { TERMS = 14 };
    int exponent;
    double m = frexp(x, &exponent), sum = 0;
    if (m < 0.70710678118654752) m *= 2, --exponent;
    const double z = (m - 1) / (m + 1), square = z * z;
    for (int n = TERMS; n >= 0; --n) sum = sum * square + 1.0 / (2 * n + 1);
    return 2 * z * sum + exponent * 0.69314718055994531;
}

/* What one position is of a circle, e^-x / (2 pi), in 2^-64. */
static uint64_t frequency_of(double x) {
    enum { TERMS = 16 };
    const double halvings = floor(x / 0.69314718055994531 + 0.5), t = halvings * 0.69314718055994531 - x;
    double power = 1;
    for (int n = TERMS; n > 0; --n) power = 1 + t * power / n;
    return (uint64_t)ldexp(power * 0.15915494309189534, 64 - (int)halvings);
}

void strobe__rotary_choices(struct quantise_choices *c, struct rotary_call *call, uint64_t seed) {
    const strobe_rotary *r = &call->r;
    const int64_t pairs = r->dim / 2;
    c->cos = r->cos, c->sin = r->sin, c->positions = r->positions;
    c->pairs = pairs, c->interleaved = r->interleaved;
    if (call->given && !r->cos) {
        const double logarithm_of_base = logarithm(r->base);
        for (int64_t n = 0; n < pairs; ++n) call->frequency[n] = frequency_of((double)n * logarithm_of_base / (double)pairs);
        c->frequency = call->frequency;
    }
    for (uint64_t n = 0; n < MOST_HADAMARD_DIM / 128; ++n) {
        const struct philox_words words = philox4x32_10(seed, n, 0);
        for (int word = 0; word < 4; ++word) c->signs[4 * n + (uint64_t)word] = words.word[word];
    }
}
